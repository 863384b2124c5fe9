#!/bin/bash
set -e
LR=3e-4
torchrun --nproc_per_node=8 train.py \
  --model_name_or_path "" \
  --bf16 True \
  --attn_implementation flash_attention_2 \
  --max_seq_length 8192 \
  --per_device_train_batch_size 1 \
  --gradient_accumulation_steps 8 \
  --max_steps 1000 \
  --learning_rate $LR \
  --lr_scheduler_type cosine_with_min_lr \
  --lr_scheduler_kwargs.min_lr 3e-5 \
  --warmup_steps 50 \
  --weight_decay 0.1 \
  --adam_beta2 0.95 \
  --max_grad_norm 1.0 \
  --seed 42
