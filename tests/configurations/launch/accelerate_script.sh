#!/bin/bash
accelerate launch --multi_gpu --num_processes 8 --num_machines 1 --mixed_precision bf16 pretrain_gpt.py --num-layers 24 --hidden-size 2048 \
  --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 4 --global-batch-size 128 \
  --vocab-size 50257 --bf16
