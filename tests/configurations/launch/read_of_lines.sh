#!/bin/bash
ARGS=""
while read -r key value; do
  [[ $key == \#* || -z $key ]] && continue
  ARGS+=" --$key $value"
done <<'TABLE'
# key value
num-layers 24
hidden-size 2048

num-attention-heads 16
seq-length 2048
max-position-embeddings 2048
TABLE
IFS=, read -r micro global <<< "2,64"
IFS=: read -ra list <<< "bf16:use-distributed-optimizer"
torchrun --nproc_per_node 8 pretrain_gpt.py ${ARGS# } --micro-batch-size $micro --global-batch-size $global "${list[@]/#/--}" --vocab-size 50257
