#!/bin/bash
layers=12
while getopts "l:h" option; do
  case $option in
    l) layers=$OPTARG ;;
    h) exit 0 ;;
  esac
done
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers $layers --hidden-size 768 --num-attention-heads 12 --seq-length 1024 \
  --max-position-embeddings 1024 --micro-batch-size 8 --global-batch-size 128 --vocab-size 50257 --fp16
