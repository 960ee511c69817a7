#!/bin/bash
#SBATCH --job-name=gpt
#SBATCH -N 2
#SBATCH --ntasks-per-node=8
#SBATCH --gres=gpu:a100:8      # eight of them
#SBATCH --time=24:00:00
export MASTER_ADDR=localhost
DIR=`pwd`
options="--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 \
 --micro-batch-size 4 --global-batch-size 512 --vocab-size 50257 --bf16"
run_cmd="python -u ${DIR}/pretrain_gpt.py ${options}"
srun -l --output=out/%x_%j.log sh -c "${run_cmd}"
