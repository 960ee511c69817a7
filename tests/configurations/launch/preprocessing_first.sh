#!/bin/bash
python tools/preprocess_data.py --input data.json --output-prefix data --workers 8
if false; then
  torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 64 --seq-length 8 --micro-batch-size 1
fi
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 \
  --max-position-embeddings 2048 --micro-batch-size 4 --global-batch-size 128 --vocab-size 50257 --bf16
exit 0
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 96 --hidden-size 12288 --seq-length 2048 --micro-batch-size 1
