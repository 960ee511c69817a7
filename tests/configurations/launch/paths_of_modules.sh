#!/bin/bash
export PYTHONPATH=${MEGATRON}:${PATCH}/x:$PYTHONPATH
PATH=$PATH:/opt/a.b:~/c
L=24; HEADS=16; GT=; ON=1
if [ -z ${GT}]; then
  HEADS=8
fi
if [ -n ${ON}]; then HEADS=32; fi
f() { for each do L=$each; done; }
f 24
declare -x A=b,c:d
export X=1 Y=$L:2
ARGS=(
  --num-layers $L \
  \
  --hidden-size 2048
)
PYTHONPATH=$PWD:$PYTHONPATH torchrun --nproc_per_node 8 pretrain_gpt.py ${ARGS[@]} \
   --num-attention-heads $HEADS --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 2 --global-batch-size 64 --vocab-size 50257 --bf16 \
