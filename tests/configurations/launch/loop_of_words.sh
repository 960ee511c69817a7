#!/bin/bash
declare -A SIZES=([layers]=24 [hidden]=2048 [heads]=16)
args=
for name in num-layers:layers hidden-size:hidden num-attention-heads:heads; do
  args="$args --${name%%:*} ${SIZES[${name##*:}]}"
done
for flag in bf16 use-distributed-optimizer; do args+=" --$flag"; done
for ((i = 0; i < 3; i++)); do size=$(( ${size:-1} * 4 )); done
i=0
while [ $i -lt 2 ]; do
  i=$((i + 1)); micro=$i
done
torchrun --nproc_per_node 8 pretrain_gpt.py $args --seq-length 2048 --max-position-embeddings 2048 --vocab-size 50257 \
  --micro-batch-size $micro --global-batch-size $size
