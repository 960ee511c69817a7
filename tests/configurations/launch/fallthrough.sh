#!/bin/bash
LEVEL=${LEVEL:-2}
OPTS=(--bf16)
case $LEVEL in
  3) OPTS+=(--tp-comm-overlap) ;&
  2) OPTS+=(--overlap-param-gather) ;&
  1) OPTS+=(--use-distributed-optimizer --overlap-grad-reduce) ;;
  0) ;;
esac
case "$LEVEL" in [1-9]) OPTS+=(--manual-gc);; esac
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 \
  --max-position-embeddings 2048 --micro-batch-size 4 --global-batch-size 128 --vocab-size 50257 "${OPTS[@]}"
