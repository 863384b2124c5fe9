#!/bin/bash
# Megatron side of the pair that docs/guide.md goes through.
export CUDA_DEVICE_MAX_CONNECTIONS=1
export PYTHONHASHSEED=1234
torchrun --nproc_per_node 2 pretrain_gpt.py \
    --num-layers 4 --hidden-size 512 --num-attention-heads 8 --ffn-hidden-size 1024 \
    --seq-length 1024 --max-position-embeddings 1024 --vocab-size 32000 --swiglu --disable-bias-linear \
    --normalization LayerNorm --norm-epsilon 1e-6 --position-embedding-type learned_absolute \
    --untie-embeddings-and-output-weights --hidden-dropout 0.0 --attention-dropout 0.0 --use-flash-attn \
    --num-experts 16 --moe-router-topk 2 --moe-expert-capacity-factor 1.5 --moe-ffn-hidden-size 1024 \
    --moe-token-drop-policy position --moe-pad-expert-input-to-capacity --moe-router-dtype fp32 \
    --micro-batch-size 2 --global-batch-size 4 --lr 1e-5 --lr-decay-style constant --train-iters 1000 \
    --adam-beta1 0.9 --adam-beta2 0.95 --adam-eps 1e-8 --weight-decay 0.1 --clip-grad 1.0 \
    --seed 1234 --bf16 --init-method-std 0.02 --data-path 1 /data/wiki_text_document --split 1,0,0
