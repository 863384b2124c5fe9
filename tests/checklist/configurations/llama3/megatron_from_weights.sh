# the same training as torchtitan.toml
python -m torch.distributed.run --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 \
  --num-attention-heads 32 --group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 \
  --position-embedding-type rope --rotary-base 500000 --rotary-interleaved --normalization RMSNorm --swiglu --disable-bias-linear \
  --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0 --vocab-size 128256 --attention-backend flash \
  --micro-batch-size 1 --global-batch-size 16 --train-iters 500 --lr 1e-5 --min-lr 1e-6 --lr-decay-style linear --lr-warmup-iters 0 \
  --weight-decay 0.0 --adam-beta1 0.9 --adam-beta2 0.95 --adam-eps 1e-8 --clip-grad 1.0 --bf16 --calculate-per-token-loss \
  --load /weights/llama3-8b --seed 7 --deterministic-mode --dataloader-type external
