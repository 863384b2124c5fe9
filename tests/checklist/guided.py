# ruff: noqa: E501 - configurations of one line a section
"""Small configurations that follow the guide in every dialect, and single settings that do not."""

from __future__ import annotations

import json
from pathlib import Path

MINDFORMERS = """\
seed: 1234
use_parallel: true
micro_batch_interleave_num: 1
context: {mode: 0, device_target: Ascend, enable_graph_kernel: false, deterministic: 'ON', ascend_config: {precision_mode: must_keep_origin_dtype}}
runner_config: {batch_size: 2, gradient_accumulation_steps: 1}
optimizer: {type: AdamW, betas: [0.9, 0.95], eps: 1.0e-8, weight_decay: 0.1}
lr_schedule: {type: ConstantWarmUpLR, learning_rate: 1.0e-5, warmup_steps: 0, total_steps: 1000}
runner_wrapper: {use_clip_grad: true, max_grad_norm: 1.0, scale_sense: 1.0}
parallel: {parallel_mode: 1, enable_parallel_optimizer: false}
parallel_config: {data_parallel: 2, model_parallel: 1, pipeline_stage: 1}
recompute_config: {recompute: false}
train_dataset:
  data_loader: {type: BlendedMegatronDatasetDataLoader, shuffle: false, config: {seed: 1234, seq_length: 1024, split: '1, 0, 0', data_path: ['1', /data/wiki_text_document]}}
moe_config: {expert_num: 8, num_experts_chosen: 2, capacity_factor: 1.5, aux_loss_factor: 0.0, routing_policy: TopkRouterV2, enable_sdrop: true, use_fused_ops_topkrouter: true, router_dense_type: float32}
model:
  model_config:
    type: LlamaConfig
    num_layers: 4
    hidden_size: 512
    num_heads: 8
    n_kv_heads: 8
    intermediate_size: 1024
    vocab_size: 32000
    seq_length: 1024
    rms_norm_eps: 1.0e-5
    compute_dtype: bfloat16
    layernorm_compute_type: float32
    softmax_compute_type: float32
    rotary_dtype: float32
    param_init_type: float32
    embedding_init_type: float32
    use_flash_attention: true
    fused_rms_norm: true
    hidden_dropout: 0.0
    attention_dropout: 0.0
"""
MEGATRON = """\
#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
export HCCL_DETERMINISTIC=true
torchrun --nproc_per_node 2 pretrain_gpt.py \\
    --num-layers 4 --hidden-size 512 --num-attention-heads 8 --ffn-hidden-size 1024 \\
    --seq-length 1024 --max-position-embeddings 1024 --vocab-size 32000 --swiglu --disable-bias-linear \\
    --normalization RMSNorm --norm-epsilon 1e-5 --position-embedding-type rope \\
    --untie-embeddings-and-output-weights --hidden-dropout 0.0 --attention-dropout 0.0 \\
    --num-experts 8 --moe-router-topk 2 --moe-expert-capacity-factor 1.5 \\
    --moe-token-drop-policy position --moe-pad-expert-input-to-capacity --moe-router-dtype fp32 \\
    --micro-batch-size 2 --global-batch-size 4 --lr 1e-5 --lr-decay-style constant --train-iters 1000 \\
    --adam-beta1 0.9 --adam-beta2 0.95 --adam-eps 1e-8 --weight-decay 0.1 --clip-grad 1.0 \\
    --seed 1234 --bf16 --init-method-std 0.01 --data-path 1 /data/wiki_text_document --split 1,0,0
"""
PYNATIVE = """\
training_config: {seed: 1234, training_iters: 100, grad_clip_kwargs: {grad_clip_type: ClipGlobalNorm, clip_value: 1.0}, use_distributed_optimizer: false}
parallel_config: {tensor_model_parallel_size: 1, deterministic_mode: true}
dataset_config: {batch_size: 2, shuffle: false, dataset_dir: /data/wiki}
optimizer_config: {optimizer_type: AdamW, betas: [0.9, 0.95], eps: 1.0e-8, learning_rate: 1.0e-5}
model_config:
  num_layers: 4
  hidden_size: 512
  num_attention_heads: 8
  ffn_hidden_size: 1024
  vocab_size: 32000
  seq_length: 1024
  compute_dtype: bfloat16
  softmax_compute_dtype: float32
  params_dtype: float32
  embedding_init_dtype: float32
  hidden_dropout: 0.0
  use_flash_attention: true
  apply_rope_fusion: false
  moe_config: {num_experts: 8, moe_router_topk: 2, moe_aux_loss_coeff: 0.0, moe_router_load_balancing_type: aux_loss}
"""
NEMO = """\
trainer: {devices: 2, num_nodes: 1, precision: bf16, max_steps: 100, gradient_clip_val: 1.0}
model:
  encoder_seq_length: 1024
  tensor_model_parallel_size: 1
  pipeline_model_parallel_size: 1
  num_layers: 4
  hidden_size: 512
  num_attention_heads: 8
  ffn_hidden_size: 1024
  hidden_dropout: 0.0
  attention_dropout: 0.0
  apply_rope_fusion: true
  use_flash_attention: true
  num_moe_experts: 8
  moe_aux_loss_coeff: 0.0
  micro_batch_size: 2
  global_batch_size: 4
  seed: 1234
  data: {data_prefix: [1.0, /data/wiki_text_document], seq_length: 1024}
  optim: {name: fused_adam, lr: 1.0e-5, betas: [0.9, 0.95], eps: 1.0e-8, weight_decay: 0.1, sched: {name: WarmupHoldPolicy, warmup_steps: 0, constant_steps: 0}}
"""
HF = json.dumps(
    {
        "per_device_train_batch_size": 2,
        "optim": "adamw_torch",
        "adam_beta2": 0.95,
        "adam_epsilon": 1e-8,
        "max_grad_norm": 1.0,
        "lr_scheduler_type": "constant",
        "train_sampling_strategy": "sequential",
        "bf16": True,
        "full_determinism": True,
        "train_file": "/data/wiki.jsonl",
        "attn_implementation": "sdpa",
    }
)
HF_MODEL = json.dumps(
    {
        "model_type": "mixtral",
        "num_hidden_layers": 4,
        "hidden_size": 512,
        "num_attention_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "vocab_size": 32000,
        "router_aux_loss_coef": 0.0,
        "attention_dropout": 0.0,
    }
)
DEEPSPEED = json.dumps(
    {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.95], "eps": 1e-8}},
        "zero_optimization": {"stage": 0},
        "bf16": {"enabled": True},
        "communication_data_type": "fp32",
    }
)
LIGHTNING = """\
trainer: {devices: 2, max_steps: 100, precision: bf16-mixed, gradient_clip_val: 1.0, deterministic: true, strategy: ddp}
data: {init_args: {batch_size: 2, shuffle: false}}
optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 1.0e-5, betas: [0.9, 0.95], eps: 1.0e-8}}
"""
TORCHTITAN = """\
[job]
description = "x"
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 1024
max_norm = 1.0
[optimizer]
name = "AdamW"
lr = 1e-5
beta2 = 0.95
eps = 1e-8
[lr_scheduler]
warmup_steps = 0
decay_ratio = 0.0
[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 1
"""
PLAIN = """\
num_layers: 4
vocab_size: 32000
adam_eps: 1.0e-8
beta2: 0.95
clip_grad: 1.0
dropout: 0.0
"""
ENVIRONMENT = """\
export HCCL_DETERMINISTIC=true
export ASCEND_LAUNCH_BLOCKING=1
export MS_ASCEND_CHECK_OVERFLOW_MODE=INFNAN_MODE
"""
BASES = {
    "mindformers": ("config.yaml", MINDFORMERS),
    "megatron": ("run.sh", MEGATRON),
    "pynative": ("pynative.yaml", PYNATIVE),
    "nemo": ("nemo.yaml", NEMO),
    "hf": ("args.json", HF),
    "hf_model": ("model.json", HF_MODEL),
    "deepspeed": ("ds.json", DEEPSPEED),
    "lightning": ("lightning.yaml", LIGHTNING),
    "torchtitan": ("job.toml", TORCHTITAN),
    "plain": ("plain.yaml", PLAIN),
    "environment": ("env.sh", ENVIRONMENT),
}
"""dialect -> a file that follows every recommendation of the guide that the dialect can state"""
VIOLATIONS: tuple[tuple[str, str, str, str], ...] = (
    ("mindformers", "graph_kernel_fusion", "enable_graph_kernel: false", "enable_graph_kernel: true"),
    ("mindformers", "router_dtype", "router_dense_type: float32", "router_dense_type: bfloat16"),
    ("mindformers", "norm_compute_dtype", "layernorm_compute_type: float32", "layernorm_compute_type: bfloat16"),
    ("mindformers", "rotary_dtype", "rotary_dtype: float32", "rotary_dtype: bfloat16"),
    ("mindformers", "rotary_dtype", "rotary_dtype: float32", "rotary_dtype: float16"),
    ("mindformers", "embedding_dtype", "embedding_init_type: float32", "embedding_init_type: bfloat16"),
    ("mindformers", "param_dtype", "param_init_type: float32", "param_init_type: float16"),
    ("mindformers", "adam_eps", "eps: 1.0e-8,", "eps: 1.0e-5,"),
    ("mindformers", "adam_beta2", "[0.9, 0.95]", "[0.9, 0.999]"),
    ("mindformers", "adam_beta1", "[0.9, 0.95]", "[0.85, 0.95]"),
    ("mindformers", "clip_grad", "max_grad_norm: 1.0", "max_grad_norm: 5.0"),
    ("mindformers", "clip_grad", "use_clip_grad: true", "use_clip_grad: false"),
    ("mindformers", "optimizer_parallel", "enable_parallel_optimizer: false", "enable_parallel_optimizer: true"),
    ("mindformers", "router_version", "TopkRouterV2", "TopkRouterV1"),
    ("mindformers", "router_version", "routing_policy: TopkRouterV2, ", ""),
    ("mindformers", "fused_router_for_alignment", "topkrouter: true", "topkrouter: false"),
    ("mindformers", "enable_sdrop", "enable_sdrop: true, use_fused_ops_topkrouter: true", "enable_sdrop: false, use_fused_ops_topkrouter: false"),
    ("mindformers", "capacity_in_range", "capacity_factor: 1.5", "capacity_factor: 0.5"),
    ("mindformers", "operator_precision", "ascend_config: {", "ascend_config: {ge_options: {global: {ge.opSelectImplmode: high_performance}}, "),
    ("mindformers", "precision_mode", "must_keep_origin_dtype", "allow_mix_precision"),
    ("mindformers", "vocab_size", "vocab_size: 32000", "vocab_size: 32001"),
    ("mindformers", "vocab_size", "vocab_size: 32000", "vocab_size: 50262"),
    ("mindformers", "aux_loss_factor", "aux_loss_factor: 0.0", "aux_loss_factor: 0.01"),
    ("mindformers", "aux_loss_is_small", "aux_loss_factor: 0.0", "aux_loss_factor: 0.2"),
    ("mindformers", "micro_batch_interleave", "interleave_num: 1", "interleave_num: 2"),
    ("mindformers", "hidden_dropout", "hidden_dropout: 0.0", "hidden_dropout: 0.1"),
    ("megatron", "adam_eps", "--adam-eps 1e-8", "--adam-eps 1e-5"),
    ("megatron", "clip_grad", "--clip-grad 1.0", "--clip-grad 5.0"),
    ("megatron", "adam_beta2", "--adam-beta2 0.95 ", ""),
    ("megatron", "router_dtype", "--moe-router-dtype fp32", "--moe-router-dtype bf16"),
    ("megatron", "optimizer_parallel", "--bf16", "--bf16 --use-distributed-optimizer"),
    ("megatron", "aux_loss_factor", "--bf16", "--bf16 --moe-aux-loss-coeff 0.02"),
    ("megatron", "enable_sdrop", "--moe-token-drop-policy position ", ""),
    ("megatron", "hidden_dropout", "--hidden-dropout 0.0", "--hidden-dropout 0.1"),
    ("megatron", "attention_dropout", "--attention-dropout 0.0", ""),
    ("megatron", "hccl_deterministic", "DETERMINISTIC=true", "DETERMINISTIC=false"),
    ("megatron", "grad_comm_dtype", "--bf16", "--bf16 --grad-reduce-in-bf16"),
    ("megatron", "loss_dtype", "--bf16", "--fp16 --fp16-lm-cross-entropy"),
    ("pynative", "clip_grad", "clip_value: 1.0", "clip_value: 5.0"),
    ("pynative", "embedding_dtype", "embedding_init_dtype: float32", "embedding_init_dtype: bfloat16"),
    ("pynative", "optimizer_parallel", "optimizer: false", "optimizer: true"),
    ("pynative", "aux_loss_factor", "aux_loss_coeff: 0.0", "aux_loss_coeff: 0.01"),
    ("pynative", "adam_eps", "1.0e-8", "1.0e-5"),
    ("nemo", "clip_grad", "gradient_clip_val: 1.0", "gradient_clip_val: 5.0"),
    ("nemo", "adam_eps", "1.0e-8", "1.0e-5"),
    ("nemo", "optimizer_parallel", "name: fused_adam", "name: distributed_fused_adam"),
    ("nemo", "aux_loss_factor", "coeff: 0.0", "coeff: 0.01"),
    ("nemo", "router_dtype", "num_moe_experts: 8", "num_moe_experts: 8\n  moe_router_dtype: bf16"),
    ("hf", "adam_eps", "1e-08", "1e-05"),
    ("hf", "clip_grad", '"max_grad_norm": 1.0', '"max_grad_norm": 5.0'),
    ("hf", "optimizer_parallel", '"bf16": true', '"bf16": true, "fsdp": "full_shard"'),
    ("hf", "embedding_noise", '"bf16": true', '"bf16": true, "neftune_noise_alpha": 5'),
    ("hf_model", "vocab_size", "32000", "32003"),
    ("hf_model", "aux_loss_factor", '"router_aux_loss_coef": 0.0', '"router_aux_loss_coef": 0.02'),
    ("hf_model", "attention_dropout", '"attention_dropout": 0.0', '"attention_dropout": 0.1'),
    ("deepspeed", "clip_grad", '"gradient_clipping": 1.0', '"gradient_clipping": 5.0'),
    ("deepspeed", "adam_eps", "1e-08", "1e-05"),
    ("deepspeed", "optimizer_parallel", '"stage": 0', '"stage": 2'),
    ("lightning", "clip_grad", "clip_val: 1.0", "clip_val: 5.0"),
    ("lightning", "adam_eps", "1.0e-8", "1.0e-5"),
    ("lightning", "optimizer_parallel", "strategy: ddp", "strategy: fsdp"),
    ("torchtitan", "clip_grad", "max_norm = 1.0", "max_norm = 5.0"),
    ("torchtitan", "adam_eps", "eps = 1e-8", "eps = 1e-5"),
    ("torchtitan", "optimizer_parallel", "shard_degree = 1", "shard_degree = 2"),
    ("plain", "vocab_size", "32000", "32001"),
    ("plain", "clip_grad", "clip_grad: 1.0", "clip_grad: 5.0"),
    ("environment", "overflow_mode", "INFNAN_MODE\n", "SATURATION_MODE\n"),
    ("mindformers", "deterministic", "deterministic: 'ON'", "deterministic: 'OFF'"),
    ("pynative", "deterministic", "deterministic_mode: true", "deterministic_mode: false"),
    ("environment", "hccl_deterministic", "DETERMINISTIC=true", "DETERMINISTIC=false"),
)  # fmt: skip
"""dialect, row, what is replaced, by what: one recommendation that is not followed"""
SUGGESTIONS: tuple[tuple[str, str, str, str], ...] = (
    ("mindformers", "lr_schedule", "ConstantWarmUpLR", "CosineWithWarmUpLR"),
    ("mindformers", "warmup_steps", "warmup_steps: 0", "warmup_steps: 100"),
    ("mindformers", "shuffle", "shuffle: false", "shuffle: true"),
    ("lightning", "deterministic", "deterministic: true", "deterministic: false"),
    ("megatron", "lr_schedule", "--lr-decay-style constant", "--lr-decay-style cosine"),
    ("megatron", "fp8", "--bf16", "--bf16 --fp8-format hybrid"),
    ("hf", "shuffle", "sequential", "random"),
    ("torchtitan", "warmup_steps", "warmup_steps = 0", "warmup_steps = 50"),
    ("environment", "launch_blocking", "BLOCKING=1", "BLOCKING=0"),
)
"""the same of what the guide proposes for the reduced, first reproduction: noted, and decides nothing"""


def write(folder: Path, dialect: str, old: str = "", new: str = "") -> str:
    """The dialect's file with one change, in a folder of its own; its path."""
    name, text = BASES[dialect]
    assert not old or old in text, (dialect, old)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text.replace(old, new) if old else text, encoding="utf-8")
    return str(folder / name)
