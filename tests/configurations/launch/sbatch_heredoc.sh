#!/bin/bash
# writes a batch script and submits it
NODES=4
TP=4
cat > job.sbatch <<EOF
#!/bin/bash
#SBATCH --nodes=${NODES}
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
export TP=$TP
srun python pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 \
  --max-position-embeddings 2048 --micro-batch-size 2 --global-batch-size 512 --vocab-size 50257 --bf16 \
  --tensor-model-parallel-size \$TP --use-distributed-optimizer
EOF
sbatch job.sbatch
