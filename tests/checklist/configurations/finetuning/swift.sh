#!/bin/bash
export OMP_NUM_THREADS=4
swift sft \
    --model models/base-7b \
    --train_type lora \
    --torch_dtype bfloat16 \
    --bf16 true \
    --dataset instructions \
    --template qwen \
    --lora_rank 16 \
    --lora_alpha 32 \
    --lora_dropout 0 \
    --target_modules q_proj v_proj \
    --max_length 2048 \
    --packing true \
    --attn_impl flash_attn \
    --per_device_train_batch_size 2 \
    --gradient_accumulation_steps 8 \
    --max_steps 1000 \
    --warmup_steps 30 \
    --learning_rate 1e-4 \
    --weight_decay 0 \
    --adam_beta2 0.999 \
    --optim adamw_torch \
    --output_dir output
