#!/bin/bash
# of 2021: model parallelism without pipelines, activations checkpointed by layer
python -m torch.distributed.launch --nproc_per_node 8 --nnodes 1 --node_rank 0 --master_addr localhost --master_port 6000 \
  pretrain_gpt.py --model-parallel-size 2 --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --batch-size 8 \
  --seq-length 1024 --max-position-embeddings 1024 --vocab-size 50257 --distributed-backend nccl --lr 0.00015 \
  --checkpoint-activations --checkpoint-num-layers 1 --DDP-impl local --fp16
