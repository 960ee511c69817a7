#!/bin/bash
BASE="--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 2048 --micro-batch-size 1"
torchrun --nproc_per_node 8 pretrain_gpt.py $BASE --seq-length 2048 --global_batch_size 128 --micro-batch-size=4 --vocab-size 50257 --fp16
