#!/bin/bash
# checks leave the script; what they ask for bears on nothing
if [ $# -gt 12 ]; then
  echo "usage: $0"; exit 1
fi
command -v nvidia-smi >/dev/null 2>&1 || echo "no driver"
[ -d out ] || mkdir -p out
if [[ -z "${CHECKPOINT:-}" ]]; then CHECKPOINT=out/last; fi
LOAD=""
if [ -f "out/latest_checkpointed_iteration.txt" ]; then LOAD="--load out"; fi
trap 'echo stopped' EXIT
ulimit -n 1024
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 \
  --max-position-embeddings 2048 --micro-batch-size 4 --global-batch-size 128 --vocab-size 50257 --bf16 --save $CHECKPOINT $LOAD || exit 1
echo done
