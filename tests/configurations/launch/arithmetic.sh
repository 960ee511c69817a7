#!/bin/bash
((GPUS = 2 ** 3))
let "DP = GPUS / 2"
declare -i HIDDEN=16*128
MBS=$(( (DP > 2) ? 2 : 1 ))
GBS=$(( MBS * DP << 3 ))
(( GBS += 0x40, GBS -= 64 ))
HEADS=$((HIDDEN/128))
LAYERS=$(( HEADS % 10 * 4 ))
(( LAYERS == 24 && HEADS >= 16 )) || LAYERS=1
SEQ=$[1024 * 2]
SEQ=2048
torchrun --nproc_per_node $GPUS pretrain_gpt.py --num-layers $LAYERS --hidden-size $HIDDEN --num-attention-heads $HEADS --seq-length $SEQ \
  --max-position-embeddings $((SEQ)) --micro-batch-size $MBS --global-batch-size $GBS --vocab-size 50257 --bf16 --tensor-model-parallel-size $((GPUS/DP))
