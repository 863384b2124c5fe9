#!/bin/bash
# Qwen2 0.5B on NPUs: MindSpeed-LLM's own flags, started by msrun
NPUS_PER_NODE=4
NNODES=1
WORLD_SIZE=$((NPUS_PER_NODE * NNODES))
SIZE=${1:-0.5B}
if [ $SIZE = 0.5B ]; then
    LAYERS=24 HIDDEN=896 FFN=4864 HEADS=14 GROUPS_OF_HEADS=2
    tie_options=""
elif [ $SIZE = 7B ]; then
    LAYERS=28 HIDDEN=3584 FFN=18944 HEADS=28 GROUPS_OF_HEADS=4
    tie_options="--untie-embeddings-and-output-weights"
fi
if [ $WORLD_SIZE -gt 8 ]; then
    parallel_options="--pipeline-model-parallel-size 2 --sequence-parallel"
fi
LAUNCH="--worker_num $WORLD_SIZE --local_worker_num $NPUS_PER_NODE --log_dir=msrun_log --join=False --bind_core=True"
GPT_ARGS="
    --use-mcore-models \
    --num-layers $LAYERS --hidden-size $HIDDEN --ffn-hidden-size $FFN --num-attention-heads $HEADS \
    --group-query-attention --num-query-groups $GROUPS_OF_HEADS \
    --seq-length 2048 --max-position-embeddings 32768 --position-embedding-type rope --rotary-base 1000000 \
    --rotary-seq-len-interpolation-factor 1 \
    --normalization RMSNorm --norm-epsilon 1e-6 --swiglu --add-qkv-bias --disable-bias-linear \
    --use-fused-rmsnorm --use-fused-swiglu --use-fused-rotary-pos-emb --use-flash-attn \
    --attention-dropout 0.0 --hidden-dropout 0.0 --init-method-std 0.02 --vocab-size 151936
"
TRAIN_ARGS="
    --micro-batch-size 4 --global-batch-size 64 --train-iters 500 --lr 1e-5 --lr-decay-style constant \
    --weight-decay 0.0 --adam-beta1 0.9 --adam-beta2 0.999 --clip-grad 1.0 --bf16 --calculate-per-token-loss \
    --no-gradient-accumulation-fusion --seed 1234
"
msrun $LAUNCH pretrain_gpt.py $GPT_ARGS $TRAIN_ARGS $tie_options $parallel_options \
    --ai-framework mindspore --data-path /data/alpaca_text_document
