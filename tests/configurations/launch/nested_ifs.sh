#!/bin/bash
MODE=${MODE:-pretrain}
FSDP=${FSDP:-false}
LEN=${LEN:-8192}
if [ "$MODE" = "pretrain" ] && [ "$LEN" -ge 8192 ]; then
  if $FSDP; then
    PAR="--use-torch-fsdp2 --no-gradient-accumulation-fusion"
  else
    if test $LEN -gt 16384 -o "$MODE" = long; then
      PAR="--context-parallel-size 4"
    elif ! [ $LEN -ne 8192 ]; then
      PAR="--context-parallel-size 2 --cp-comm-type p2p"
    else
      PAR=
    fi
  fi
elif [[ ( $MODE == sft || $MODE =~ ^dpo ) && ! $LEN -lt 1 ]]; then
  PAR="--tensor-model-parallel-size 2"
fi
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \
 --group-query-attention --num-query-groups 8 --seq-length $LEN --max-position-embeddings $LEN --position-embedding-type rope --swiglu \
 --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 128256 --bf16 --micro-batch-size 1 \
 --global-batch-size 64 $PAR
