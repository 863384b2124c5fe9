#!/bin/bash
# Mixtral 8x7B
MODEL_ARGS=(
    --disable-bias-linear --seq-length 4096 --max-position-embeddings 32768 --num-layers 32 --hidden-size 4096
    --ffn-hidden-size 14336 --num-attention-heads 32 --init-method-std 0.02 --attention-dropout 0.0 --hidden-dropout 0.0
    --normalization RMSNorm --position-embedding-type rope --swiglu --untie-embeddings-and-output-weights
    --group-query-attention --num-query-groups 8 --no-masked-softmax-fusion --rotary-base 1000000 --vocab-size 32000
    --attention-backend flash
)
MOE_ARGS=(
    --num-experts 8
    --moe-router-topk 2
    --moe-router-load-balancing-type aux_loss
    --moe-aux-loss-coeff 2e-2
    --moe-router-dtype fp32
    --moe-token-dispatcher-type alltoall
#    --moe-grouped-gemm
)
TRAINING_ARGS=(
    --micro-batch-size 1 --global-batch-size 128 --lr 1e-4 --train-iters 5000 --lr-decay-iters 5000 --lr-decay-style cosine
    --min-lr 1.0e-5 --weight-decay 0.1 --lr-warmup-iters 500 --clip-grad 1.0 --bf16 --adam-beta2 0.95 --calculate-per-token-loss
)
MODEL_PARALLEL_ARGS=(--tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 --expert-model-parallel-size 8)
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py ${MODEL_ARGS[@]} ${MOE_ARGS[@]} ${TRAINING_ARGS[@]} ${MODEL_PARALLEL_ARGS[@]} --seed 1234
