#!/bin/bash
n=1
until (( n >= 64 )); do n=$((n*2)); (( n == 16 )) && break; done
for size in 1 2 4 8; do
  [ $size -lt 4 ] && continue
  micro=$size
  break
done
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads $n --seq-length 2048 \
  --max-position-embeddings 2048 --micro-batch-size $micro --global-batch-size 128 --vocab-size 50257 --bf16
