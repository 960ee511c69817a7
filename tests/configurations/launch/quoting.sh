#!/bin/bash
A='--num-layers 24'" --hidden-size"' '2048
B=$'--num-attention-heads\t16'
C="--seq-length \
2048"
set -- --fp16 "--vocab-size" '50257'
torchrun --nproc_per_node 8 "pretrain_gpt.py" $A $B $C --max-position-embeddings=2048 --micro-batch-size "4" \
 --global-batch-size 1""28 "$@" --tokenizer-model "a path/with 'quotes' and \"more\" \$HOME" --{no-load-optim,no-load-rng}  # said
