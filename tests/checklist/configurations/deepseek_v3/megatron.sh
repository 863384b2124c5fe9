#!/bin/bash
# a small model of DeepSeek-V3's structure
set -e
MODEL_SIZE=${MODEL_SIZE:-tiny}
EP=${EP:-1}
if [ $MODEL_SIZE = 671B ]; then
    HIDDEN_SIZE=7168
    NUM_LAYERS=61
elif [ $MODEL_SIZE = tiny ]; then
    HIDDEN_SIZE=1024
    NUM_LAYERS=4
fi
SHARED=1
MOE_WIDTH=512
moe_options=" \
    --multi-latent-attention \
    --qk-layernorm \
    --q-lora-rank 256 \
    --kv-lora-rank 128 \
    --qk-head-dim 64 \
    --qk-pos-emb-head-dim 32 \
    --v-head-dim 64 \
    --moe-ffn-hidden-size ${MOE_WIDTH} \
    --moe-layer-freq '([0]*1+[1]*3)' \
    --moe-shared-expert-intermediate-size $((${SHARED} * ${MOE_WIDTH})) \
    --num-experts 16 \
    --moe-router-topk 4 \
    --moe-router-load-balancing-type none \
    --moe-router-score-function sigmoid \
    --moe-router-topk-scaling-factor 2.5 \
    --moe-router-num-groups 4 \
    --moe-router-group-topk 2 \
    --moe-router-enable-expert-bias \
    --moe-router-bias-update-rate 1e-3 \
    --moe-router-dtype fp32 \
    --expert-model-parallel-size ${EP}"
megatron_options=" \
    --num-layers ${NUM_LAYERS} --hidden-size ${HIDDEN_SIZE} --ffn-hidden-size 2816 --num-attention-heads 16 \
    --seq-length 2048 --max-position-embeddings 163840 --vocab-size 129280 --make-vocab-size-divisible-by 128 \
    --swiglu --normalization RMSNorm --norm-epsilon 1e-06 --position-embedding-type rope --rotary-base 10000 \
    --rotary-scaling-factor 40 --rotary-interleaved --untie-embeddings-and-output-weights --disable-bias-linear \
    --attention-dropout 0.0 --hidden-dropout 0.0 --init-method-std 0.006 --attention-backend flash \
    --micro-batch-size 1 --global-batch-size 16 --train-iters 100 --lr 2.2e-4 --lr-decay-style constant --lr-warmup-iters 10 \
    --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 --adam-eps 1e-8 --clip-grad 1.0 --bf16 --calculate-per-token-loss --seed 1"
torchrun --nproc_per_node 2 pretrain_gpt.py $megatron_options $moe_options
