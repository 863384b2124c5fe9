# ruff: noqa: E501 - configurations of one line a section, cases of one line each
"""A pair of configurations of their own, and one change a row of the guide: what the check must say of it.

Sizes, spellings and forms are others than in :mod:`tests.checklist.guided`: a MindFormers file as people keep it,
and the arguments that Megatron-LM prints at the top of its log, or the script that was started.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MINDFORMERS = """\
seed: 2027
output_dir: './output'
load_checkpoint: ''
use_parallel: True
micro_batch_interleave_num: 1
trainer:
  type: CausalLanguageModelingTrainer
  model_name: 'mixtral_small'
runner_config:
  epochs: 2
  batch_size: 3
  sink_mode: True
  sink_size: 1
  gradient_accumulation_steps: 4
optimizer: &optim
  type: AdamW
  betas: [0.9, 0.95]
  eps: 1.e-8
  weight_decay: 0.05
lr_schedule:
  type: ConstantWarmUpLR
  learning_rate: 3.e-5
  warmup_steps: 0
  total_steps: -1
train_dataset: &train_dataset
  data_loader:
    type: BlendedMegatronDatasetDataLoader
    shuffle: False
    config:
      seed: 2027
      split: "990, 8, 2"
      seq_length: 3072
      data_path: ['1', "/corpus/de_text_document"]
      eod_mask_loss: False
  input_columns: ["input_ids", "labels", "loss_mask", "position_ids"]
runner_wrapper:
  type: MFTrainOneStepCell
  scale_sense: 1.0
  use_clip_grad: True
  max_grad_norm: 1.0
context:
  mode: 0
  device_target: "Ascend"
  enable_graph_kernel: False
  deterministic: "ON"
  ascend_config:
    precision_mode: "must_keep_origin_dtype"
parallel:
  parallel_mode: 1
  enable_parallel_optimizer: False
parallel_config:
  data_parallel: 4
  model_parallel: 1
  pipeline_stage: 1
  context_parallel: 1
  use_seq_parallel: False
recompute_config:
  recompute: False
moe_config:
  expert_num: 24
  shared_expert_num: 2
  num_experts_chosen: 6
  capacity_factor: 2.5
  aux_loss_factor: 0.0
  routing_policy: "TopkRouterV2"
  enable_sdrop: True
  router_dense_type: "float32"
  use_fused_ops_topkrouter: True
  use_shared_expert_gating: True
  moe_intermediate_size: 704
model:
  model_config:
    type: LlamaConfig
    batch_size: 1
    seq_length: 3072
    hidden_size: 1280
    num_layers: 11
    num_heads: 20
    n_kv_heads: 5
    vocab_size: 48128
    intermediate_size: 3456
    rms_norm_eps: 3.0e-6
    theta: 250000.0
    bos_token_id: 3
    eos_token_id: 4
    pad_token_id: 5
    ignore_token_id: -100
    compute_dtype: "bfloat16"
    layernorm_compute_type: "float32"
    softmax_compute_type: "float32"
    rotary_dtype: "float32"
    param_init_type: "float32"
    embedding_init_type: "float32"
    residual_dtype: "bfloat16"
    init_method_std: 0.013
    use_flash_attention: True
    hidden_dropout: 0.0
    attention_dropout: 0.0
    use_fused_rope: True
    use_fused_swiglu: True
    qkv_has_bias: False
    tie_word_embeddings: False
"""
ARGUMENTS: dict[str, object] = {
    "num_layers": 11,
    "hidden_size": 1280,
    "num_attention_heads": 20,
    "group_query_attention": True,
    "num_query_groups": 5,
    "ffn_hidden_size": 3456,
    "kv_channels": 64,
    "seq_length": 3072,
    "max_position_embeddings": 3072,
    "vocab_size": 48128,
    "padded_vocab_size": 48128,
    "swiglu": True,
    "add_bias_linear": False,
    "add_qkv_bias": False,
    "normalization": "RMSNorm",
    "norm_epsilon": "3e-06",
    "position_embedding_type": "rope",
    "rotary_base": 250000,
    "rotary_percent": 1.0,
    "untie_embeddings_and_output_weights": True,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "num_experts": 24,
    "moe_router_topk": 6,
    "moe_expert_capacity_factor": 2.5,
    "moe_token_drop_policy": "position",
    "moe_pad_expert_input_to_capacity": True,
    "moe_router_dtype": "fp32",
    "moe_ffn_hidden_size": 704,
    "moe_shared_expert_intermediate_size": 1408,
    "moe_use_shared_expert_gate": True,
    "moe_aux_loss_coeff": 0.0,
    "moe_permute_fusion": True,
    "micro_batch_size": 3,
    "global_batch_size": 48,
    "world_size": 4,
    "data_parallel_size": 4,
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "context_parallel_size": 1,
    "sequence_parallel": False,
    "use_distributed_optimizer": False,
    "lr": "3e-05",
    "lr_decay_style": "constant",
    "lr_warmup_iters": 0,
    "train_iters": 2000,
    "optimizer": "adam",
    "adam_beta1": 0.9,
    "adam_beta2": 0.95,
    "adam_eps": "1e-08",
    "weight_decay": 0.05,
    "clip_grad": 1.0,
    "seed": 2027,
    "bf16": True,
    "fp16": False,
    "init_method_std": 0.013,
    "data_path": "['1', '/corpus/de_text_document']",
    "split": "990,8,2",
    "use_flash_attn": True,
    "apply_rope_fusion": True,
    "bias_swiglu_fusion": True,
    "reset_attention_mask": False,
    "reset_position_ids": False,
    "eod_mask_loss": False,
    "recompute_granularity": None,
    "window_size": None,
    "transformer_impl": "local",
    "deterministic_mode": True,
}
"""what Megatron-LM prints of the same training"""
_LEFT_OUT = ("padded_vocab_size", "world_size", "data_parallel_size", "transformer_impl")
GONE = object()
"""an argument that is not there"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One change of a side or of both, and what follows."""

    name: str
    target: tuple[tuple[str, str], ...] = ()
    """text of the MindFormers file, and what takes its place"""
    reference: dict[str, object] = field(default_factory=dict)
    """arguments of Megatron-LM"""
    differs: frozenset[str] = frozenset()
    """rows in which the sides differ or a condition is broken"""
    unmet: frozenset[str] = frozenset()
    """recommendations that are not met"""

    def mindformers(self) -> str:
        """The target's file."""
        text = MINDFORMERS
        for old, new in self.target:
            assert old in text, (self.name, old)
            text = text.replace(old, new)
        return text

    def megatron(self, form: str) -> str:
        """The reference's ``log`` or ``script``."""
        arguments = {name: value for name, value in (ARGUMENTS | self.reference).items() if value is not GONE}
        return (_log if form == "log" else _script)(arguments)


def _log(arguments: dict[str, object]) -> str:
    lines = "".join(
        f"  {name} {'.' * (48 - len(name))} {value}\n" for name, value in sorted(arguments.items())
    )
    return (
        f"using world size: 4\n------------ arguments ------------\n{lines}------- end of arguments -------\n"
    )


def _script(arguments: dict[str, object]) -> str:
    flags = []
    for name, value in arguments.items():
        flag = "--" + name.replace("_", "-")
        if name in _LEFT_OUT or name == "add_bias_linear" or value in (None, "None"):
            continue
        if name == "data_path":
            flags.append(f"{flag} 1 {str(value).rpartition(', ')[2].strip(chr(39) + ']')}")
        elif value is False:
            flags += [f"--no-{name.removeprefix('apply_').replace('_', '-')}"] if "fusion" in name else []
        else:
            flags.append(flag if value is True else f"{flag} {value}")
    words = " \\\n  ".join([*flags, "--disable-bias-linear --transformer-impl local"])
    devices = arguments["world_size"]
    return f'#!/bin/bash\nARGS="{words}"\ntorchrun --nproc_per_node={devices} pretrain_gpt.py $ARGS\n'


def _case(
    name: str,
    target: tuple[tuple[str, str], ...] = (),
    reference: dict[str, object] | None = None,
    differs: str = "",
    unmet: str = "",
) -> Case:
    return Case(
        name=name,
        target=target,
        reference=reference or {},
        differs=frozenset(differs.split()),
        unmet=frozenset(unmet.split()),
    )


CASES = (
    _case('nothing_changed'),
    _case('num_layers', (('num_layers: 11', 'num_layers: 13'),), {}, 'num_layers', ''),
    _case('num_layers_new_key', (('num_layers: 11', 'num_hidden_layers: 9'),), {}, 'num_layers', ''),
    _case('num_heads', (('num_heads: 20', 'num_attention_heads: 10'),), {}, 'head_dim num_heads', ''),
    _case('hidden_size', (), {'hidden_size': 1600}, 'hidden_size', ''),
    _case('n_kv_heads', (), {'num_query_groups': 4}, 'num_kv_heads', ''),
    _case('n_kv_heads_mqa', (('n_kv_heads: 5', 'n_kv_heads: 1'),), {}, 'attention num_kv_heads', ''),
    _case('gqa_to_mha_default', (('    n_kv_heads: 5\n', ''),), {}, 'attention num_kv_heads', ''),
    _case('gqa_off_megatron', (), {'group_query_attention': False, 'num_query_groups': 1}, 'attention num_kv_heads', ''),
    _case('sliding_window', (('use_flash_attention: True', 'use_flash_attention: True\n    sliding_window: 640'),), {}, 'sliding_window', ''),
    _case('sliding_window_same', (('use_flash_attention: True', 'use_flash_attention: True\n    sliding_window: 640'),), {'window_size': '(639, 0)'}, '', ''),
    _case('qkv_concat', (('use_flash_attention: True', 'use_flash_attention: True\n    qkv_concat: False'),), {}, '', ''),
    _case('normalization', (), {'normalization': 'LayerNorm'}, 'normalization', ''),
    _case('norm_eps', (('3.0e-6', '3.0e-5'),), {}, 'norm_eps', ''),
    _case('norm_eps_string', (('3.0e-6', "'3e-6'"),), {}, '', ''),
    _case('dropout_mf', (('hidden_dropout: 0.0', 'hidden_dropout: 0.05'),), {}, 'embedding_dropout hidden_dropout', 'embedding_dropout hidden_dropout'),
    _case('dropout_and_recompute', (('hidden_dropout: 0.0', 'hidden_dropout: 0.05'), ('  recompute: False', '  recompute: True')), {'hidden_dropout': 0.05, 'recompute_granularity': 'full'}, 'dropout_excludes_recompute', 'dropout_excludes_recompute embedding_dropout hidden_dropout'),
    _case('dropout_mg_default', (), {'hidden_dropout': GONE}, 'embedding_dropout hidden_dropout', 'embedding_dropout hidden_dropout'),
    _case('activation_gelu', (), {'swiglu': False, 'add_bias_linear': False}, 'activation', ''),
    _case('activation_mf', (('use_fused_swiglu: True', 'use_fused_swiglu: True\n    hidden_act: gelu'),), {}, 'activation', ''),
    _case('activation_fast', (('use_fused_swiglu: True', 'hidden_act: fastgelu'),), {'swiglu': False, 'openai_gelu': True}, '', ''),
    _case('fa', (('use_flash_attention: True', 'use_flash_attention: False'),), {}, '', 'flash_attention'),
    _case('rope_fusion', (), {'apply_rope_fusion': False}, '', 'rope_fusion'),
    _case('swiglu_fusion', (), {'bias_swiglu_fusion': False}, '', 'activation_fusion'),
    _case('position_learned', (), {'position_embedding_type': 'learned_absolute'}, 'position_embedding', ''),
    _case('position_none', (), {'position_embedding_type': 'none'}, 'position_embedding', ''),
    _case('position_relative', (), {'position_embedding_type': 'relative'}, 'position_embedding', ''),
    _case('position_alibi', (('use_fused_rope: True', 'use_fused_rope: True\n    use_alibi: True\n    position_embedding_type: alibi'),), {}, 'position_embedding', ''),
    _case('theta', (('250000.0', '500000.0'),), {}, 'rope_theta', ''),
    _case('rope_pct', (), {'rotary_percent': 0.5}, 'rope_percent', ''),
    _case('vocab_odd_both', (('48128', '48129'),), {'vocab_size': 48129, 'padded_vocab_size': 48129, 'make_vocab_size_divisible_by': 1}, '', 'vocab_size'),
    _case('vocab_not_16_mf', (('48128', '48130'),), {'vocab_size': 48130, 'padded_vocab_size': 48256}, 'padded_vocab_size', 'vocab_size'),
    _case('expert_num', (('expert_num: 24', 'expert_num: 48'),), {}, 'num_experts', ''),
    _case('expert_num_new', (('  expert_num: 24', '  num_experts: 12'),), {}, 'capacity_in_range num_experts', 'capacity_in_range'),
    _case('shared_expert_num', (('shared_expert_num: 2', 'shared_expert_num: 1'),), {}, 'num_shared_experts shared_expert_intermediate_size', ''),
    _case('topk', (('num_experts_chosen: 6', 'num_experts_chosen: 4'),), {}, 'experts_per_token', ''),
    _case('capacity_below_1', (('capacity_factor: 2.5', 'capacity_factor: 0.9'),), {'moe_expert_capacity_factor': 0.9}, 'capacity_in_range', 'capacity_in_range'),
    _case('capacity_above', (('capacity_factor: 2.5', 'capacity_factor: 4.01'),), {'moe_expert_capacity_factor': 4.01}, 'capacity_in_range', 'capacity_in_range'),
    _case('capacity_at_the_bound', (('capacity_factor: 2.5', 'capacity_factor: 4.0'),), {'moe_expert_capacity_factor': 4}, '', ''),
    _case('dropless', (('capacity_factor: 2.5', 'capacity_factor: -1.0'),), {'moe_expert_capacity_factor': 'None'}, '', ''),
    _case('dropless_negative', (('capacity_factor: 2.5', 'capacity_factor: -2'),), {'moe_expert_capacity_factor': GONE, 'moe_token_drop_policy': 'probs', 'moe_pad_expert_input_to_capacity': False}, '', ''),
    _case('capacity_differs', (('capacity_factor: 2.5', 'capacity_factor: 1.5'),), {}, 'capacity_factor', ''),
    _case('aux_03_both', (('aux_loss_factor: 0.0', 'aux_loss_factor: 0.03'),), {'moe_aux_loss_coeff': 0.03}, '', 'aux_loss_factor'),
    _case('aux_05_both', (('aux_loss_factor: 0.0', 'aux_loss_factor: 0.05'),), {'moe_aux_loss_coeff': 0.05}, 'aux_loss_is_small', 'aux_loss_factor aux_loss_is_small'),
    _case('router_v1', (('TopkRouterV2', 'TopkRouterV1'),), {}, '', 'router_version'),
    _case('sdrop_off', (('enable_sdrop: True', 'enable_sdrop: False'),), {}, 'enable_sdrop fused_router_needs_sdrop pad_to_capacity token_drop_policy', 'enable_sdrop fused_router_needs_sdrop'),
    _case('sdrop_mg_no_pad', (), {'moe_pad_expert_input_to_capacity': False}, 'enable_sdrop pad_to_capacity', 'enable_sdrop'),
    _case('router_dtype', (('router_dense_type: "float32"', 'router_dense_type: "bfloat16"'),), {}, 'router_dtype', 'router_dtype'),
    _case('router_dtype_mg_bf16', (), {'moe_router_dtype': 'bf16'}, 'router_dtype', 'router_dtype'),
    _case('router_dtype_mg_none', (), {'moe_router_dtype': 'None'}, '', 'router_dtype'),
    _case('fused_router', (('use_fused_ops_topkrouter: True', 'use_fused_ops_topkrouter: False'),), {}, 'fused_router fused_router_for_alignment', 'fused_router_for_alignment'),
    _case('shared_gate', (('use_shared_expert_gating: True', 'use_shared_expert_gating: False'),), {}, 'shared_expert_gate', ''),
    _case('optimizer_type', (('type: AdamW', 'type: SGD'),), {}, 'optimizer', ''),
    _case('optimizer_adam', (('type: AdamW', 'type: Adam'),), {}, 'optimizer', ''),
    _case('eps_both', (('eps: 1.e-8', 'eps: 1.e-7'),), {'adam_eps': '1e-07'}, '', 'adam_eps'),
    _case('eps_one', (('eps: 1.e-8', 'eps: 1.e-15'),), {}, 'adam_eps', 'adam_eps'),
    _case('beta1', (('[0.9, 0.95]', '[0.88, 0.95]'),), {}, 'adam_beta1', 'adam_beta1'),
    _case('beta2', (), {'adam_beta2': 0.98}, 'adam_beta2', 'adam_beta2'),
    _case('beta2_tuple_spelling', (('betas: [0.9, 0.95]', 'beta1: 0.9\n  beta2: 0.95'),), {}, '', ''),
    _case('weight_decay', (('weight_decay: 0.05', 'weight_decay: 0.5'),), {}, 'weight_decay', ''),
    _case('lr', (('3.e-5', '3.e-4'),), {}, 'learning_rate', ''),
    _case('lr_cosine', (('ConstantWarmUpLR', 'CosineWithWarmUpLR'), ('total_steps: -1', 'total_steps: 2000')), {'lr_decay_style': 'cosine', 'lr_decay_iters': 2000}, '', ''),
    _case('warmup_ratio_equal', (('  warmup_steps: 0', '  warmup_ratio: 0.05'), ('total_steps: -1', 'total_steps: 2000')), {'lr_warmup_iters': 100}, '', ''),
    _case('warmup_ratio_frac', (('  warmup_steps: 0', '  warmup_ratio: 0.05'), ('total_steps: -1', 'total_steps: 2000')), {'lr_warmup_iters': 0, 'lr_warmup_fraction': 0.1, 'lr_decay_iters': 2000}, 'warmup_steps', ''),
    _case('clip_both', (('max_grad_norm: 1.0', 'max_grad_norm: 0.5'),), {'clip_grad': 0.5}, '', 'clip_grad'),
    _case('clip_off', (('use_clip_grad: True', 'use_clip_grad: False'),), {}, 'clip_grad', 'clip_grad'),
    _case('gbs', (('batch_size: 3', 'batch_size: 6'),), {}, 'global_batch_size micro_batch_size', ''),
    _case('gbs_accum', (('gradient_accumulation_steps: 4', 'gradient_accumulation_steps: 2'),), {}, 'global_batch_size gradient_accumulation', ''),
    _case('gbs_not_given', (), {'global_batch_size': GONE}, 'global_batch_size gradient_accumulation', ''),
    _case('gbs_not_given_same', (('gradient_accumulation_steps: 4', 'gradient_accumulation_steps: 1'),), {'global_batch_size': GONE}, '', ''),
    _case('gbs_not_given_tp', (('gradient_accumulation_steps: 4', 'gradient_accumulation_steps: 1'), ('data_parallel: 4', 'data_parallel: 2'), ('model_parallel: 1', 'model_parallel: 2')), {'global_batch_size': GONE, 'tensor_model_parallel_size': 2, 'data_parallel_size': 2}, '', ''),
    _case('ignored_label', (('ignore_token_id: -100', 'ignore_token_id: 0'),), {}, 'ignore_token_id', ''),
    _case('ignored_label_of_padding', (('ignore_token_id: -100', 'ignore_token_id: 5'),), {}, 'ignore_token_id', ''),
    _case('ignored_label_negative', (('ignore_token_id: -100', 'ignore_token_id: -1'),), {}, '', ''),
    _case('ignored_label_of_instructions', (('ignore_token_id: -100', 'ignore_token_id: 0'),), {'sft': True}, '', ''),
    _case('param_dtype', (('param_init_type: "float32"', 'param_init_type: "bfloat16"'),), {}, 'grad_comm_dtype gradients_follow_weights param_dtype', 'grad_comm_dtype gradients_follow_weights param_dtype'),
    _case('init_std', (('0.013', '0.02'),), {}, 'init_std', ''),
    _case('compute', (('compute_dtype: "bfloat16"', 'compute_dtype: "float16"'),), {}, 'compute_dtype', ''),
    _case('compute_fp32', (), {'bf16': False}, 'compute_dtype residual_dtype', ''),
    _case('ln_dtype', (('layernorm_compute_type: "float32"', 'layernorm_compute_type: "bfloat16"'),), {}, '', 'norm_compute_dtype'),
    _case('softmax_nofa', (('softmax_compute_type: "float32"', 'softmax_compute_type: "float16"'), ('use_flash_attention: True', 'use_flash_attention: False')), {'use_flash_attn': False}, '', 'softmax_compute_dtype'),
    _case('softmax_fa', (('softmax_compute_type: "float32"', 'softmax_compute_type: "bfloat16"'),), {}, '', ''),
    _case('rotary', (('rotary_dtype: "float32"', 'rotary_dtype: "bfloat16"'),), {}, '', 'rotary_dtype'),
    _case('embedding', (('embedding_init_type: "float32"', 'embedding_init_type: "float16"'),), {}, '', 'embedding_dtype'),
    _case('residual', (('residual_dtype: "bfloat16"', 'residual_dtype: "float32"'),), {}, 'residual_dtype', ''),
    _case('residual_mg', (), {'fp32_residual_connection': True}, 'residual_dtype', ''),
    _case('loss', (), {'fp16_lm_cross_entropy': True}, 'loss_dtype', 'loss_dtype'),
    _case('op_precision_one', (('precision_mode: "must_keep_origin_dtype"', 'precision_mode: "must_keep_origin_dtype"\n    ge_options:\n      global:\n        ge.opSelectImplmode: high_performance'),), {}, '', 'operator_precision'),
    _case('op_precision_high', (('precision_mode: "must_keep_origin_dtype"', 'precision_mode: "must_keep_origin_dtype"\n    ge_options: {"global": {"ge.opSelectImplmode": "high_precision"}}'),), {}, '', ''),
    _case('precision_mode', (('must_keep_origin_dtype', 'allow_fp32_to_fp16'),), {}, '', 'precision_mode'),
    _case('dp', (('data_parallel: 4', 'data_parallel: 2'), ('gradient_accumulation_steps: 4', 'gradient_accumulation_steps: 8')), {}, 'data_parallel gradient_accumulation num_devices', ''),
    _case('tp', (('model_parallel: 1', 'model_parallel: 2'),), {}, 'num_devices tensor_parallel', ''),
    _case('pp', (('pipeline_stage: 1', 'pipeline_stage: 2\n  micro_batch_num: 4'),), {}, 'num_devices pipeline_parallel', ''),
    _case('sp', (('model_parallel: 1', 'model_parallel: 2'), ('use_seq_parallel: False', 'use_seq_parallel: True')), {'tensor_model_parallel_size': 2, 'world_size': 8}, 'sequence_parallel', ''),
    _case('sp_at_tp1', (('use_seq_parallel: False', 'use_seq_parallel: True'),), {}, 'sequence_parallel_needs_tp', ''),
    _case('opt_parallel', (('enable_parallel_optimizer: False', 'enable_parallel_optimizer: True'),), {}, 'optimizer_parallel zero_level', 'optimizer_parallel'),
    _case('opt_parallel_both', (('enable_parallel_optimizer: False', 'enable_parallel_optimizer: True'),), {'use_distributed_optimizer': True}, '', 'optimizer_parallel'),
    _case('interleave', (('interleave_num: 1', 'interleave_num: 2'), ('gradient_accumulation_steps: 4', 'gradient_accumulation_steps: 2')), {}, '', 'micro_batch_interleave'),
    _case('special_ids', (('bos_token_id: 3', 'bos_token_id: 48128'),), {}, 'special_ids_in_range', 'special_ids_in_range'),
    _case('graph_kernel', (('enable_graph_kernel: False', 'enable_graph_kernel: True'),), {}, '', 'graph_kernel_fusion'),
    _case('data', (), {'data_path': "['/corpus/en_text_document']"}, 'data_files', 'data_files'),
    _case('seed', (('seed: 2027\noutput', 'seed: 5\noutput'),), {}, 'seed', ''),
    _case('determinism_off', (('deterministic: "ON"', 'deterministic: "OFF"'),), {}, 'deterministic', 'deterministic'),
    _case('shuffle', (('shuffle: False', 'shuffle: True'),), {}, 'index_shuffled_again', ''),
    _case('shuffled_again_mg', (), {'dataloader_type': 'cyclic'}, 'index_shuffled_again', ''),
    _case('split_of_training', (), {'split': '900,90,10'}, 'data_split', ''),
    _case('split_behind_training', (), {'split': '990,0,10'}, '', ''),
    _case('optimizer_without_bias_correction', (('type: AdamW', 'type: FP32StateAdamWeightDecay'),), {}, 'optimizer', ''),
    _case('optimizer_of_mindspore', (('type: AdamW', 'type: AdamWeightDecay'), ('eps: 1.e-8', 'eps: 1.e-6')), {}, 'adam_eps optimizer', 'adam_eps'),
    _case('no_load_balancing', (), {'moe_router_load_balancing_type': 'none', 'moe_aux_loss_coeff': 0.02}, '', ''),
    _case('load_balancing_not_given', (), {'moe_router_load_balancing_type': None, 'moe_aux_loss_coeff': 0.02}, 'aux_loss_factor load_balancing', 'aux_loss_factor'),
    _case('shared_gate_new_name', (('use_shared_expert_gating: True', 'use_shared_expert_gating: False'),), {'moe_use_shared_expert_gate': GONE, 'moe_shared_expert_gate': True}, 'shared_expert_gate', ''),
    _case('shared_gate_new_name_same', (), {'moe_use_shared_expert_gate': GONE, 'moe_shared_expert_gate': True}, '', ''),
    _case('intermediate_size_same', (('  expert_num: 24', '  expert_num: 1'), ('    intermediate_size: 3456\n', '    multiple_of: 384\n')), {'num_experts': None}, '', ''),
    _case('intermediate_size', (('  expert_num: 24', '  expert_num: 1'), ('    intermediate_size: 3456\n', '    multiple_of: 512\n')), {'num_experts': None}, 'intermediate_size', ''),
    _case('intermediate_size_multiplier', (('  expert_num: 24', '  expert_num: 1'), ('    intermediate_size: 3456\n', '    multiple_of: 384\n    ffn_dim_multiplier: 1.3\n')), {'num_experts': None}, 'intermediate_size', ''),
)  # fmt: skip
