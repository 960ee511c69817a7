#!/bin/bash
LAYERS=24
( LAYERS=12; cd /tmp; echo $LAYERS )
{ HIDDEN=2048; HEADS=16; }
echo 8 | while read N; do LAYERS=$N; done
cat <<< "words" > /dev/null
(
  export OMP_NUM_THREADS=1
  torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers $LAYERS --hidden-size $HIDDEN --num-attention-heads $HEADS --seq-length 2048 \
    --max-position-embeddings 2048 --micro-batch-size 4 --global-batch-size 128 --vocab-size 50257 --bf16
) &
wait
