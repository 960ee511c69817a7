#!/bin/bash
# bash places.sh ENVIRONMENT SIZE BATCH GLOBAL_BATCH SEQUENCE PRECISION TP PP AC DISTRIBUTED
set -e
ENV=$1
MODEL_SIZE=$2
BATCH_SIZE=$3
GLOBAL_BATCH_SIZE=$4
SEQ_LEN=$5
PR=$6
TP=$7
PP=$8
AC=$9
DO=${10}
if [ $ENV = one ]; then
  NNODES=1
  GPUS_PER_NODE=8
elif [ $ENV = cluster ]; then
  NNODES=${WORLD_SIZE}
  GPUS_PER_NODE=${GPUS_OF_POD}
fi
if [ $MODEL_SIZE = 7B ]; then
  NUM_LAYERS=32
  HIDDEN_SIZE=4096
  NUM_ATTN_HEADS=32
  INTERMEDIATE_SIZE=11008
elif [ $MODEL_SIZE = 13B ]; then
  NUM_LAYERS=40
  HIDDEN_SIZE=5120
  NUM_ATTN_HEADS=40
  INTERMEDIATE_SIZE=13824
fi
if [ $AC = full ]; then
  activation_checkpoint_options=" \
    --recompute-method uniform \
    --recompute-granularity full"
elif [ $AC = sel ]; then
  activation_checkpoint_options=" \
    --recompute-activations"
elif [ $AC = none ]; then
  activation_checkpoint_options=""
fi
if [ $PR = fp16 ]; then
  pr_options=" --fp16"
elif [ $PR = bf16 ]; then
  pr_options=" --bf16"
elif [ $PR = fp8 ]; then
  pr_options=" --bf16 --fp8-format hybrid"
fi
if [ $DO = true ]; then
  do_options=" --use-distributed-optimizer"
elif [ $DO = false ]; then
  do_options=""
fi
NAME="pretrain-${MODEL_SIZE}-tp-${TP}-pp-${PP}"
megatron_options="  \
  --save out/${NAME} \
  --micro-batch-size ${BATCH_SIZE} \
  --global-batch-size ${GLOBAL_BATCH_SIZE} \
  --num-layers ${NUM_LAYERS} \
  --hidden-size ${HIDDEN_SIZE} \
  --num-attention-heads ${NUM_ATTN_HEADS} \
  --ffn-hidden-size ${INTERMEDIATE_SIZE} \
  --seq-length ${SEQ_LEN} \
  --max-position-embeddings ${SEQ_LEN} \
  --tensor-model-parallel-size ${TP} \
  --pipeline-model-parallel-size ${PP} \
  --extra-vocab-size 0 --vocab-size 32000 \
  --swiglu --normalization RMSNorm --use-rotary-position-embeddings --untie-embeddings-and-output-weights --disable-bias-linear"
DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES"
run_cmd="torchrun $DISTRIBUTED_ARGS pretrain_llama.py
 ${megatron_options} ${pr_options} ${activation_checkpoint_options} ${do_options}"
echo ${run_cmd}
eval ${run_cmd}
set +x
