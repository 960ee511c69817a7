#!/bin/bash
# every knob may be set from outside
: "${TP:=8}" "${PP:=1}"
MBS="${MBS:-2}"
BS="${BS:-$(( MBS * 32 ))}"
SEQ_LENGTH="${SEQ_LENGTH:-2048}"
TE_FP8="${TE_FP8:-0}"
GEMM_TUNING="${GEMM_TUNING:-1}"
RECOMPUTE=${RECOMPUTE-}
GPUS_PER_NODE=${GPUS_PER_NODE:-8}
NNODES="${NNODES:-1}"
EXPERIMENT_DIR="experiment"
mkdir -p $EXPERIMENT_DIR
TRAIN_LOG="${EXPERIMENT_DIR}/TP${TP}_PP${PP}_MBS${MBS}_BS${BS}.log"
if [ "$GEMM_TUNING" -eq 1 ]; then
   export TE_HIPBLASLT_TUNING_RUN_COUNT=10
fi
EXTRA_ARGS="
    --no-async-tensor-model-parallel-allreduce
    --sequence-parallel
"
if [ "$TE_FP8" -eq 1 ]; then
  EXTRA_ARGS="$EXTRA_ARGS --transformer-impl=transformer_engine --fp8-margin=0 --fp8-format=hybrid"
fi
if [ -n "${RECOMPUTE}" ]; then EXTRA_ARGS+=" --recompute-granularity full --recompute-method block --recompute-num-layers $RECOMPUTE"; fi
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py \
  --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP} --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 \
  --num-attention-heads 64 --group-query-attention --num-query-groups 8 --seq-length $SEQ_LENGTH --max-position-embeddings $SEQ_LENGTH \
  --micro-batch-size $MBS --global-batch-size $BS --bf16 --swiglu --normalization RMSNorm --position-embedding-type rope \
  --disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 32000 $EXTRA_ARGS 2>&1 | tee $TRAIN_LOG
