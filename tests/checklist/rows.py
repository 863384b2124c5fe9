"""The rows of the accuracy guide's tables, section by section: each must have a rule."""

from __future__ import annotations

ROWS: dict[str, tuple[str, ...]] = {
    "network structure": (
        *("num_layers", "num_heads", "hidden_size", "intermediate_size", "n_kv_heads", "Attention"),
        *("normalization", "Regularization function", "normal_eps", "rms_norm_eps", "dropout"),
        *("activation function", "fusion computation", "position code", "vocab_size"),
    ),
    "moe structure": (
        *("expert_num", "shared_expert_num", "num_experts_chosen", "capacity_factor", "aux_loss_factor"),
        *("routing_policy", "enable_sdrop", "router_dense_type", "use_fused_ops_topkrouter"),
        "use_shared_expert_gating",
    ),
    "optimizer": (
        *("adam optimizer", "eps", "beta1", "beta2", "weight_decay", "lr", "warmup_ratio"),
        *("lr_warmup_fraction", "clip_grad", "global_batch_size"),
    ),
    "weights": ("param_init_type", "init-method-std"),
    "mixed precision": (
        *("compute_dtype", "layernorm_compute_type", "softmax_compute_type", "Calculation of weights"),
        *("rotary_dtype", "bias add", "residual add", "loss", "Operator High Precision Mode"),
    ),
    "parallel strategy": (
        *("data_parallel", "model_parallel", "pipeline_stage", "use_seq_parallel"),
        *("enable_parallel_optimizer", "micro_batch_interleave_num"),
    ),
    "other": (
        *("Data Check", "Special Words Check", "input_ids check", "Overflow Detection"),
        *("Graph Operator Fusion", "Training Inference Template Consistency", "Version Check"),
        "Differences with Open Source",
    ),
    "aligning parameters": ("num_layers", "learning_rate_type", "warmup_steps", "adam-eps", "dropout"),
    "randomness": (
        *("HCCL_DETERMINISTIC", "ASCEND_LAUNCH_BLOCKING", "PYTHONHASHSEED", "seed_all"),
        "deterministic computation",
    ),
}
BY_HAND = {
    "other: Version Check": "the table of versions (test_versions.py)",
    "other: Differences with Open Source": "a check against the upstream configuration",
}
"""rows without a field that could be misaligned in one setting: where they are tested or done"""
