#!/bin/bash
# options are texts with line ends, split where they are used
GPUS=8
OPTIONS=" \
  --num-layers 24 \
  --hidden-size 2048 \
  --num-attention-heads 16 \
  --seq-length 2048 \
  --max-position-embeddings 2048 \
  --micro-batch-size 4 \
  --global-batch-size 256 \
  --vocab-size 50257 \
  --fp16
"
if [ -n "${ACTIVATIONS:-}" ]; then
  OPTIONS="${OPTIONS} --recompute-activations"
fi
run="torchrun --nproc_per_node=${GPUS} pretrain_gpt.py ${OPTIONS}"
echo ${run}
eval ${run}
