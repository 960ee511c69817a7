#!/bin/bash
launch() {
  local gpus=$1; shift
  local -a head=(torchrun --nproc_per_node "$gpus")
  "${head[@]}" pretrain_gpt.py "$@" ${EXTRA:-}
}
set -- --num-layers 24 --hidden-size 2048
launch 8 "$@" --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size ${#} --global-batch-size 128 \
  --vocab-size 50257 --bf16 "${@:1:0}" ${1:+--no-load-optim}
