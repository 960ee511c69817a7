#!/bin/bash
PROFILE=${PROFILE:-1}
LAUNCHER="torchrun --nproc_per_node 8"
if [ $PROFILE = 1 ]; then
  LAUNCHER="nsys profile -s none -t nvtx,cuda -o out --force-overwrite true $LAUNCHER"
fi
$LAUNCHER pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 \
  --micro-batch-size 4 --global-batch-size 128 --vocab-size 50257 --bf16 --profile --profile-step-start 4
