"""The configuration file: what is taken, what is refused, and what the refusal says."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.trainer.layouts import BASE, configuration
from trueup.errors import ConfigError
from trueup_gpt.config import Config, check_combinations, config_from, load_config, shipped_configs
from trueup_gpt.config.reading import NoEffect
from trueup_gpt.torch.limits import check_supported

pytestmark = pytest.mark.torch
TP, PP = "tensor_model_parallel_size", "pipeline_model_parallel_size"


def test_the_original_keys_are_read(tmp_path: Path) -> None:
    text = """
training_config: {seed: 42, training_iters: 10, loss_scale: 4096, loss_reduction: mean,
  grad_clip_kwargs: {grad_clip_type: GradClipByValue, clip_value: 2.0},
  use_distributed_optimizer: True, bf16: True}
parallel_config: {tensor_model_parallel_size: 1, virtual_pipeline_model_parallel_size: null}
gpt_config: {vocab_size: 100, position_embedding_type: learned_absolute, num_layers: 6, hidden_size: 4096,
  ffn_hidden_size: 11008, num_attention_heads: 32}
optimizer_config: {optimizer_type: mint.AdamW, betas: [0.9, 0.95], eps: 1.e-8, learning_rate: 1.25e-6,
  learning_rate_scheduler_kwargs:
    {warmup_steps: 200, decay_steps: 2000, use_cosine: True, end_learning_rate: 1.25e-7}}
lora_config: {use_lora: False}
"""
    (tmp_path / "a.yaml").write_text(text)
    config = load_config(tmp_path / "a.yaml")
    assert config.parallel.zero_level == "z1"
    assert config.model.compute_dtype == "bfloat16"
    assert config.model.position_embedding_type == "absolute"
    assert config.optimizer.optimizer_type == "AdamW"
    assert config.clip is not None
    assert config.clip.grad_clip_type == "GradClipByValue"
    assert config_from(yaml.safe_load(yaml.safe_dump(config.to_dict()))) == config


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"training_config": {"sead": 1}}, "in 'training_config': unknown key 'sead'; did you mean 'seed'?"),
        ({"trainingconfig": {}}, "unknown section 'trainingconfig'; did you mean 'training_config'?"),
        (
            {"training_config": {"grad_clip_kwargs": {"clip": 1}}},
            "in 'training_config.grad_clip_kwargs': unknown key 'clip'; did you mean 'clip_value'?",
        ),
        (
            {"model_config": {"hidden_act": "mish"}},
            "'gelu', 'fast_gelu', 'swiglu', 'squared_relu', 'silu' or 'relu'",
        ),
        (
            {"model_config": {"encoder_attn_mask_type": "block"}},
            "'causal', 'padding', 'padding_causal' or 'no_mask'",
        ),
        (
            {"model_config": {"use_sandwich_norm": True}},
            "use_sandwich_norm: True is not possible: there are two norms",
        ),
        ({"lora_config": {"use_lora": True}}, "there is no LoRA here"),
        (
            {"optimizer_config": {"betas": [0.9]}},
            "expected two numbers, such as [0.9, 0.95], or three with Came",
        ),
        ({"training_config": {"fp16": True, "bf16": True}}, "fp16 and bf16 are both on"),
        ({"training_config": []}, "training_config: expected keys with values, got []"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], said: str) -> None:
    plain = configuration()
    for name, section in change.items():
        plain[name] = plain.get(name, {}) | section if isinstance(section, dict) else section
    with pytest.raises(ConfigError, match=re.escape(said)):
        config_from(plain)


def test_fewer_microbatches_than_stages_are_refused_by_torchs_1f1b_alone() -> None:
    def config(count: int, schedule: str | None = None) -> Config:
        parallel = {PP: 2, "pipeline_schedule": schedule}
        return config_from(configuration(parallel=parallel, dataset={"micro_batch_num": count}))

    for schedule in (None, "1f1b"):
        with pytest.raises(ConfigError, match=r"2 or more are possible .* any number with gpipe"):
            check_supported(config(1, schedule))
        check_supported(config(2, schedule))
    check_supported(config(1, "gpipe"))


def test_a_key_without_effect_warns_and_says_why() -> None:
    plain = configuration(training={"overlap_grad_reduce": True}, moe={"moe_grouped_gemm": False})
    with pytest.warns(NoEffect, match="overlap_grad_reduce has no effect here: gradients are reduced after"):
        config_from(plain)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config_from(configuration(training={"overlap_grad_reduce": False}))


@pytest.mark.parametrize(
    ("sections", "world", "said"),
    [
        (
            {"parallel": {TP: 3}},
            3,
            "num_attention_heads 4 cannot be divided by tensor_model_parallel_size 3; 1, 2, 4",
        ),
        (
            {"parallel": {TP: 4}},
            4,
            "num_query_groups 2 cannot be divided by tensor_model_parallel_size 4; 1, 2 would do",
        ),
        (
            {"parallel": {PP: 3}},
            3,
            "num_layers 2 cannot be divided by stages 3; 1, 2 would do; num_layer_list",
        ),
        ({"parallel": {TP: 2, PP: 2}}, 6, "6 processes cannot be cut into tensor 2 x pipeline 2 x context 1"),
        ({"parallel": {"sequence_parallel": True}}, 1, "tensor_model_parallel_size is 1"),
        ({"parallel": {"expert_model_parallel_size": 2}}, 2, "needs num_experts of moe_config above 1"),
        (
            {"parallel": {"context_parallel_size": 3}},
            3,
            "seq_length 16 cannot be divided by 2 x context_parallel",
        ),
        ({"model": {"fp16_lm_cross_entropy": True}}, 1, "needs compute_dtype float16; it is float64"),
        (
            {"training": {"loss_scale": 2, "loss_scale_value": 2}},
            1,
            "loss_scale is static and loss_scale_value",
        ),
        (
            {"optimizer": {"optimizer_type": "Came"}, "parallel": {"zero_level": "z1"}},
            2,
            "Came needs whole weights",
        ),
        (
            {"optimizer": {"optimizer_type": "Came", "betas": [0.9, 0.95]}},
            1,
            "Came takes three betas, such as [0.9, 0.999, 0.9999] (got [0.9, 0.95])",
        ),
        (
            {"optimizer": {"optimizer_type": "Came", "eps": 1e-8}},
            1,
            "Came takes two eps, such as [1e-30, 1e-16] (got 1e-08)",
        ),
        (
            {"optimizer": {"optimizer_type": "AdamW", "betas": [0.9, 0.95, 0.99]}},
            1,
            "AdamW takes two betas, such as [0.9, 0.95]",
        ),
        (
            {"parallel": {PP: 2, "num_layer_list": [1, 2]}},
            2,
            "expected 2 numbers that add up to num_layers 2",
        ),
        (
            {
                "parallel": {"context_parallel_size": 2},
                "moe": {"num_experts": 4, "moe_expert_capacity_factor": 1.0},
            },
            2,
            "moe_expert_capacity_factor counts tokens of whole rows",
        ),
    ],
)
def test_what_does_not_go_together_says_what_would(sections: dict[str, Any], world: int, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        check_combinations(config_from(configuration(**sections)), world)


def test_overrides_win_and_are_checked() -> None:
    assert config_from(BASE, overrides={"training_config.seed": 9, "model.num_layers": 3}).training.seed == 9
    assert (
        config_from(BASE, overrides={"training_config.grad_clip_kwargs.clip_value": 3}).clip.clip_value == 3
    )  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match=r"expected SECTION\.KEY"):
        config_from(BASE, overrides={"seed": 9})
    with pytest.raises(ConfigError, match="unknown key 'sede'; did you mean 'seed'"):
        config_from(BASE, overrides={"training_config.sede": 9})


def test_a_missing_file_lists_what_is_shipped() -> None:
    with pytest.raises(ConfigError, match="pretrain_gpt_70B, pretrain_gpt_7B, pretrain_gpt_moe_8x7B, tiny"):
        load_config("pretrain_gpt_9B.yaml")


@pytest.mark.parametrize(
    ("name", "parameters", "active"),
    [
        ("pretrain_gpt_7B", 6_738_415_616, 6_738_415_616),
        ("pretrain_gpt_13B", 13_015_864_320, 13_015_864_320),
        ("pretrain_gpt_70B", 68_976_648_192, 68_976_648_192),
        ("pretrain_gpt_moe_8x7B", 46_702_792_704, 12_879_925_248),
    ],
)
def test_shipped_configurations_have_their_published_sizes(name: str, parameters: int, active: int) -> None:
    """Those of Llama 2 and Mixtral 8x7B."""
    from trueup_gpt.dry_run import needs

    found = needs(load_config(name))
    assert (found.parameters, found.active_parameters) == (parameters, active)
    cut = sum(rank.parameters for rank in found.ranks)
    tp, ep = found.world_size // len(found.ranks), load_config(name).parallel.expert_model_parallel_size
    assert cut * tp >= parameters
    assert cut * tp < parameters * (1.001 if ep == 1 else 2)


def test_every_shipped_configuration_reads_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert {load_config(name).training.seed for name in shipped_configs()} == {42}


def test_memory_of_a_small_rank_is_what_torch_allocates() -> None:
    from tests.trainer.layouts import start
    from trueup_gpt.dry_run import needs

    plain = configuration("float32", parallel={"zero_level": "z1"})
    rank = needs(config_from(plain), 1).ranks[0]
    parallel = start(plain)[2]
    assert rank.weights == sum(p.numel() * p.element_size() for p in parallel.parameters.values())
    assert rank.optimizer == 2 * rank.weights


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("model_config", "num_layers", True),
        ("training_config", "seed", False),
        ("optimizer_config", "learning_rate", float("inf")),
        ("optimizer_config", "weight_decay", float("nan")),
        ("optimizer_config", "betas", [0.9, 1.0]),
        ("optimizer_config", "betas", [1, 2, 3]),
        ("optimizer_config", "eps", -1e-8),
    ],
)
def test_a_number_that_is_none_is_refused(section: str, key: str, value: object, tmp_path: Path) -> None:
    data = yaml.safe_load(shipped_configs()["tiny"].read_text())
    load_config(_written(data, tmp_path))
    data[section][key] = value
    with pytest.raises(ConfigError, match=f"{section}.{key}"):
        load_config(_written(data, tmp_path))


def _written(data: object, folder: Path) -> Path:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(data))
    return path
