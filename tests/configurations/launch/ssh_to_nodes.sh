#!/bin/bash
# starts the same on every node
HOSTS=(node0 node1)
ARGS="--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 4 --global-batch-size 256 --vocab-size 50257 --bf16"
rank=0
for host in "${HOSTS[@]}"; do
  torchrun --nnodes ${#HOSTS[@]} --nproc_per_node 8 --node_rank $rank --master_addr ${HOSTS[0]} pretrain_gpt.py $ARGS &
  ((rank++))
done
wait
