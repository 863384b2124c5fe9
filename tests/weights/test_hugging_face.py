"""Real Hugging Face models: what they save and what they hold in memory, through other families and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trueup.weights.applying import apply_plan
from trueup.weights.comparing import PairStatus, compare_weights
from trueup.weights.mapping import family_of, plan_from_maps
from trueup.weights.model_config import heads_beside
from trueup.weights.opening import open_weights
from trueup.weights.weight_set import WeightSet

pytestmark = [pytest.mark.torch, pytest.mark.slow]
_SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def model(kind: str) -> Any:
    import torch
    import transformers as hf

    torch.manual_seed(0)
    if kind == "gpt2":
        return hf.GPT2LMHeadModel(
            hf.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=16)
        )
    if kind == "qwen2":
        return hf.Qwen2ForCausalLM(hf.Qwen2Config(**_SIZES))
    if kind == "mixtral":
        return hf.MixtralForCausalLM(hf.MixtralConfig(**_SIZES, num_local_experts=3))
    experts = {"num_experts": 3, "moe_intermediate_size": 24, "num_experts_per_tok": 2}
    if kind == "qwen2-moe":
        return hf.Qwen2MoeForCausalLM(hf.Qwen2MoeConfig(**_SIZES, **experts))
    return hf.Qwen3MoeForCausalLM(hf.Qwen3MoeConfig(**_SIZES, **experts, head_dim=8))


def all_equal(actual: WeightSet, expected: WeightSet) -> None:
    comparison = compare_weights(actual, expected)
    assert comparison.exit_code() == 0, (comparison.only_target, comparison.only_reference)
    assert {pair.status for pair in comparison.pairs} == {PairStatus.EQUAL}


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        ("gpt2", "hf-gpt2"),
        ("qwen2", "hf-llama"),
        ("mixtral", "hf-mixtral"),
        ("qwen2-moe", "hf-qwen-moe"),
        ("qwen3-moe", "hf-qwen-moe"),
    ],
)
def test_saved_models_through_megatron_and_back(tmp_path: Path, kind: str, family: str) -> None:
    model(kind).save_pretrained(tmp_path)
    saved, heads = open_weights(tmp_path), heads_beside(tmp_path)
    assert heads.num_heads == 4
    assert family_of(saved.table) == family
    there = apply_plan(plan_from_maps(saved.table, to="megatron", heads=heads), saved)
    assert any("linear_qkv" in name for name in there.table)
    back = apply_plan(plan_from_maps(there.table, to=family, heads=heads), there)
    all_equal(back, saved)


@pytest.mark.parametrize(("kind", "family"), [("mixtral", "hf-mixtral"), ("qwen3-moe", "hf-qwen-moe")])
def test_stacked_experts_in_memory_are_those_on_disk(tmp_path: Path, kind: str, family: str) -> None:
    import torch

    made = model(kind)
    made.save_pretrained(tmp_path / "disk")
    torch.save(made.state_dict(), tmp_path / "memory.pth")
    disk, memory = open_weights(tmp_path / "disk"), open_weights(tmp_path / "memory.pth")
    assert family_of(memory.table) == "hf-moe-stacked"
    assert disk.table.keys() != memory.table.keys()
    all_equal(apply_plan(plan_from_maps(memory.table, to=family), memory), disk)
    all_equal(apply_plan(plan_from_maps(disk.table, to="hf-moe-stacked"), disk), memory)
