#!/bin/bash
# Llama 3 8B, eight devices, data parallel
export CUDA_DEVICE_MAX_CONNECTIONS=1
export CUBLAS_WORKSPACE_CONFIG=:4096:8

GPUS_PER_NODE=8
NNODES=${NNODES:-1}
WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))
DTYPE=${DTYPE:-"bf16"}
NUM_LAYERS=32
SEQ_LENGTH=8192

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES
)

MODEL_ARGS=(
    --use-mcore-models
    --num-layers $NUM_LAYERS
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --seq-length $SEQ_LENGTH
    --max-position-embeddings $SEQ_LENGTH
    --position-embedding-type rope
    --rotary-base 500000          # not the default
    --normalization RMSNorm
    --norm-epsilon 1e-5
    --swiglu
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --init-method-std 0.02
    --vocab-size 128256
    --attention-backend flash
)

TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 64
    --train-iters 1000
    --lr 3e-4
    --min-lr 3e-5
    --lr-decay-style cosine
    --lr-warmup-fraction 0.05
    --weight-decay 0.1
    --adam-beta1 0.9
    --adam-beta2 0.95
    --clip-grad 1.0
    --calculate-per-token-loss
    --seed 42
)
if [[ "$DTYPE" == "bf16" ]]; then
    TRAINING_ARGS+=(--bf16)
elif [[ "$DTYPE" == "fp16" ]]; then
    TRAINING_ARGS+=(--fp16 --initial-loss-scale 65536)
fi

torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    ${MODEL_ARGS[@]} \
    ${TRAINING_ARGS[@]} \
    --tensor-model-parallel-size 1 \
    --data-path /data/c4_text_document \
    --save $CHECKPOINT_PATH
