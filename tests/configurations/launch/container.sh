#!/bin/bash
IMAGE=nvcr.io/nvidia/pytorch:24.07-py3
docker run --rm --gpus all --ipc=host -v $PWD:/workspace -w /workspace $IMAGE bash -c "export NCCL_DEBUG=WARN && torchrun --nproc_per_node 8 \
  pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 \
  --micro-batch-size 4 --global-batch-size 128 --vocab-size 50257 --bf16"
