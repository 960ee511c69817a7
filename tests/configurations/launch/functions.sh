#!/bin/bash
# functions fill arrays; one of them is never called
ARGS=()
add() { ARGS+=("$@"); }
model() {
  local layers=$1 hidden=$2
  shift 2
  add --num-layers $layers --hidden-size $hidden --num-attention-heads $(( hidden / 128 ))
  add "$@"
}
eight_bits() {
  add --fp8-format hybrid
}
parallel() {
  local tp=${1:-1}
  local pp=${2:-1}
  add --tensor-model-parallel-size "$tp" --pipeline-model-parallel-size "$pp"
  if (( tp > 1 )); then add --sequence-parallel; fi
  return 0
}
model 32 4096 --ffn-hidden-size 14336 --swiglu --normalization RMSNorm --disable-bias-linear
parallel 4
add --seq-length 8192 --max-position-embeddings 8192 --position-embedding-type rope --group-query-attention --num-query-groups 8
add --micro-batch-size 1 --global-batch-size 64 --bf16 --vocab-size 128256 --untie-embeddings-and-output-weights
main() { torchrun --nproc_per_node 8 pretrain_gpt.py "${ARGS[@]}" "$@"; }
main "$@"
