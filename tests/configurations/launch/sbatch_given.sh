#!/bin/bash
TP=${TP:-2}
sbatch <<SUBMIT
#!/bin/bash
#SBATCH -N 2
#SBATCH --gres=gpu:8
srun bash -c 'torchrun --nnodes \$SLURM_NNODES --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 2 --global-batch-size 256 --vocab-size 50257 --bf16 --tensor-model-parallel-size $TP'
SUBMIT
