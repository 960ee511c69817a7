#!/usr/bin/env bash
set -euo pipefail
MODEL_SIZE="${MODEL_SIZE:-7B}"
case "${MODEL_SIZE}" in
  1[bB])  L=16; H=2048; F=8192;  A=32 ;;
  7b|7B)  L=32; H=4096; F=11008; A=32 ;;
  13[bB]) L=40; H=5120; F=13824; A=40 ;;
  *) echo "unknown size ${MODEL_SIZE}" >&2; exit 1 ;;
esac
args=(--num-layers "$L" --hidden-size "$H" --ffn-hidden-size "$F" --num-attention-heads "$A")
args+=(--seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 128)
args+=(--swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope --vocab-size 32000 --bf16)
[[ "${MODEL_SIZE}" == 13* ]] && args+=(--tensor-model-parallel-size 2 --sequence-parallel)
torchrun --nproc-per-node=8 pretrain_gpt.py "${args[@]}"
