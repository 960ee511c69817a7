#!/bin/bash
list=(zero --num-layers 24 "--hidden-size 2048")
unset 'list[0]'
list[7]="--num-attention-heads"
list+=(16)
rest=("${list[@]:0}")
seq=(512 1024 2048)
last=${seq[-1]}; count=${#seq[@]}
flags=(bf16 sequence-parallel)
copy=("${flags[@]}")
torchrun --nproc_per_node 8 pretrain_gpt.py ${rest[*]} --seq-length ${seq[count-1]} --max-position-embeddings $last \
  "${copy[@]/#/--}" --micro-batch-size ${#flags[@]} --global-batch-size $(( ${#flags[0]} * 32 )) --vocab-size 50257 \
  --tensor-model-parallel-size ${seq[0]:0:0}2
