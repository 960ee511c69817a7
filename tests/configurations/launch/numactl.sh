#!/bin/bash
export CUDA_VISIBLE_DEVICES=0,1,2,3
numactl --cpunodebind=0 --membind=0 deepspeed --num_gpus=4 pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 \
  --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 4 --global-batch-size 128 --vocab-size 50257 --bf16
