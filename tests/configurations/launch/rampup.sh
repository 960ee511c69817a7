#!/bin/bash
RAMP="32 32 4882813"
torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 \
  --max-position-embeddings 2048 --micro-batch-size 2 --global-batch-size 1024 --rampup-batch-size $RAMP --train-samples 146484375 \
  --lr-decay-samples 126953125 --lr-warmup-samples 183105 --vocab-size 50257 --bf16 --tensor-model-parallel-size 2
