#!/bin/sh
PP=4 VPP=2
LAYERS=48
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers $LAYERS --hidden-size 6144 --num-attention-heads 48 --seq-length 2048 \
  --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 256 --vocab-size 50257 --bf16 --tensor-model-parallel-size 4 \
  --pipeline-model-parallel-size $PP --num-layers-per-virtual-pipeline-stage $(expr $LAYERS / $PP / $VPP) --recompute-activations
