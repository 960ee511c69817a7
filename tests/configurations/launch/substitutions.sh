#!/bin/bash
layers=$(expr 6 \* 4)
heads=`echo 16`
hidden=$(printf '%d' 2048)
seq=$(echo 2K | tr K k | sed 's/k/048/')
gbs=$(seq 1 64 | tail -n 1)
stem=$(basename runs/gpt-small.yaml .yaml)
folder=$(dirname runs/gpt-small.yaml)
micro=$(echo "a,4,b" | cut -d, -f2)
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers $layers --hidden-size $hidden --num-attention-heads $heads --seq-length $seq \
  --max-position-embeddings $seq --micro-batch-size $micro --global-batch-size $gbs --vocab-size 50257 --bf16 \
  --save $folder/$stem --log-interval $(( $(echo 5) + 5 ))
