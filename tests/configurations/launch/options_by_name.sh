#!/bin/bash
TP=2; SP=false
while [[ $# -gt 0 ]]; do
  case $1 in
    --tp) TP="$2"; shift 2 ;;
    --tp=*) TP="${1#*=}"; shift ;;
    --sp) SP=true; shift ;;
    --) shift; break ;;
    *) echo "unknown $1"; exit 2 ;;
  esac
done
EXTRA=()
$SP && EXTRA=(--sequence-parallel)
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 \
  --max-position-embeddings 2048 --micro-batch-size 4 --global-batch-size 128 --vocab-size 50257 --bf16 \
  --tensor-model-parallel-size $TP "${EXTRA[@]}" "$@"
