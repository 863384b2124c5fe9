#!/bin/bash
GPT_ARGS="
    --num-layers 24
    --hidden-size 896
    --ffn-hidden-size 4864
    --num-attention-heads 14
    --group-query-attention
    --num-query-groups 2
    --seq-length 2048
    --max-position-embeddings 32768
    --position-embedding-type rope
    --rotary-base 1000000
    --normalization RMSNorm
    --norm-epsilon 1e-6
    --swiglu
    --add-qkv-bias
    --disable-bias-linear
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --vocab-size 151936
    --init-method-std 0.02
    --attention-backend flash
"
OPTIM_ARGS="--micro-batch-size 4 --global-batch-size 64 --train-iters 500 --lr 1e-5 --lr-decay-style constant
    --weight-decay 0.0 --adam-beta1 0.9 --adam-beta2 0.999 --adam-eps 1e-8 --clip-grad 1.0 --lr-warmup-iters 0"
torchrun --nproc_per_node 4 pretrain_gpt.py $GPT_ARGS $OPTIM_ARGS --bf16 --calculate-per-token-loss \
    --tensor-model-parallel-size 1 --seed 1234 --data-path /data/alpaca_text_document
