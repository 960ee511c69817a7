#!/bin/bash
name=gpt-L24-H2048-A16.Seq_2048
parts=${name#gpt-}
layers=${parts%%-*}; layers=${layers#L}
hidden=${parts#*-H}; hidden=${hidden%%-*}
heads=${name/*-A/}; heads=${heads%.*}
seq=${name##*_}
precision=BF16
upper="sequence_parallel"
flag=--${upper//_/-}
prefix=${name:0:3}; [ "$prefix" = gpt ] && vocab=50257
half=$(( ${#name} > 3 ? seq / 2 : 1 ))
which=layers
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers ${!which} --hidden-size $hidden --num-attention-heads $heads \
  --seq-length $seq --max-position-embeddings $seq --micro-batch-size 1 --global-batch-size $half --vocab-size ${vocab:?} \
  --${precision,,} --tensor-model-parallel-size 2 $flag ${prefix+--no-load-rng}
