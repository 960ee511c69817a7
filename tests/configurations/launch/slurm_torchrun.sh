#!/bin/bash
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
srun --nodes=8 --ntasks-per-node=1 torchrun --nnodes=8 --nproc_per_node=4 --rdzv_backend=c10d pretrain_gpt.py \
  --num-layers 48 --hidden-size 6144 --num-attention-heads 48 --seq-length 2048 --max-position-embeddings 2048 \
  --tensor-model-parallel-size 4 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3 \
  --micro-batch-size 1 --global-batch-size 512 --vocab-size 50257 --bf16
