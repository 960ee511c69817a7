#!/bin/bash
join() { local IFS="$1"; shift; echo "$*"; }
printf -v COMMON -- '--%s ' bf16 swiglu
list=$(join ' ' --num-layers 24 --hidden-size 2048)
fill=$(printf ' --%s %d' num-attention-heads 16 seq-length 2048)
torchrun --nproc_per_node 8 pretrain_gpt.py $list $fill $COMMON --max-position-embeddings 2048 --micro-batch-size 4 \
 --global-batch-size 128 --vocab-size 50257 --normalization RMSNorm --disable-bias-linear --position-embedding-type rope
