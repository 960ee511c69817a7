#!/bin/bash
NP=$((2*8))
mpirun -np $NP --hostfile hosts -x PATH -x NCCL_DEBUG=WARN -mca pml ob1 -bind-to none \
  python pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 \
  --max-position-embeddings 2048 --micro-batch-size 4 --global-batch-size 512 --vocab-size 50257 --fp16
