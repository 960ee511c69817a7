#!/bin/bash
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "${HERE}/sizes.inc" large
. $HERE/parallel.inc
torchrun --nproc_per_node 8 pretrain_gpt.py $SIZES $PARALLEL --micro-batch-size 1 --global-batch-size 32 --bf16 --vocab-size 50257
