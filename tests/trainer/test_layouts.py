"""Every layout is the same mathematics: against one process with the same weights and global batch."""

from __future__ import annotations

from typing import Any

import pytest

from tests.trainer.layouts import GPT2, MOE, Run, configuration, cut, differences, reference, run

pytestmark = [pytest.mark.torch, pytest.mark.distributed, pytest.mark.xdist_group("worlds")]
TP, PP, CP, EP = (
    f"{word}_size"
    for word in (
        "tensor_model_parallel",
        "pipeline_model_parallel",
        "context_parallel",
        "expert_model_parallel",
    )
)
VPP, SP = "virtual_pipeline_model_parallel_size", {"sequence_parallel": True}
TIED = {"untie_embeddings_and_output_weights": False}
DEEP = {"num_layers": 4}
CAPACITY = {"moe_expert_capacity_factor": 0.75, "moe_token_drop_policy": "position"}
"""by weight, tokens that are alike take turns at random: a tie is broken by rounding"""
ACCUMULATED = {"micro_batch_num": 4}
PLAIN_CE = {"loss_func_kwargs": {"loss_func_type": "CrossEntropyLoss"}}
Sections = dict[str, dict[str, Any]]

TWO: dict[str, Sections] = {
    "dp2": {"dataset": ACCUMULATED},
    "dp2 per token": {"training": {"calculate_per_token_loss": True}},
    "dp2 sum": {"training": {"loss_reduction": "sum"}},
    "tp2": {"parallel": {TP: 2}},
    "tp2 whole logits": {"parallel": {TP: 2}, "training": PLAIN_CE},
    "tp2 sp": {"parallel": {TP: 2, **SP}},
    "tp2 sp recompute": {"parallel": {TP: 2, **SP, "recompute": True}},
    "tp2 sp tied absolute": {"parallel": {TP: 2, **SP}, "model": {**TIED, **GPT2}},
    "tp2 tied absolute": {"parallel": {TP: 2}, "model": {**TIED, **GPT2}},
    "tp2 sp moe": {"parallel": {TP: 2, **SP}, "moe": MOE},
    "cp2": {"parallel": {CP: 2}},
    "cp2 tokens first": {"parallel": {CP: 2}, "dataset": {"data_layout": "SBH"}},
    "cp2 moe": {"parallel": {CP: 2}, "moe": MOE},
    "ep2": {"parallel": {EP: 2}, "moe": MOE},
    "ep2 capacity": {"parallel": {EP: 2}, "moe": {**MOE, **CAPACITY}},
    "pp2 1f1b tied": {"parallel": {PP: 2}, "model": TIED},
    "pp2 zbv": {"parallel": {PP: 2, "pipeline_schedule": "zbv"}, "model": DEEP},
    "pp2 zbv tied": {"parallel": {PP: 2, "pipeline_schedule": "zbv"}, "model": {**DEEP, **TIED}},
    "pp2 uneven": {"parallel": {PP: 2, "num_layer_list": [1, 3]}, "model": DEEP},
    "z1": {"parallel": {"zero_level": "z1"}, "dataset": ACCUMULATED},
    "z1 tied": {"parallel": {"zero_level": "z1"}, "model": TIED},
    "z1 ep2": {"parallel": {"zero_level": "z1", EP: 2}, "moe": MOE},
    "z2": {"parallel": {"zero_level": "z2"}},
    "z3": {"parallel": {"zero_level": "z3"}, "dataset": ACCUMULATED},
    "z3 ep2": {"parallel": {"zero_level": "z3", EP: 2}, "moe": MOE},
    "z3 tied": {"parallel": {"zero_level": "z3"}, "model": TIED},
}
SAME_BITS: dict[str, Sections] = {
    "pp2 1f1b": {"parallel": {PP: 2}},
    "pp2 1f1b moe": {"parallel": {PP: 2}, "moe": MOE},
    "pp2 gpipe": {"parallel": {PP: 2, "pipeline_schedule": "gpipe"}},
    "pp2 vpp2": {"parallel": {PP: 2, VPP: 2}, "model": DEEP},
}
FOUR: dict[str, Sections] = {
    "tp4": {"parallel": {TP: 4}, "model": {"num_query_groups": 4}},
    "tp4 sp": {"parallel": {TP: 4, **SP}, "model": {"num_query_groups": 4}},
    "dp2 tp2 sp": {"parallel": {TP: 2, **SP}},
    "dp2 pp2": {"parallel": {PP: 2}},
    "pp2 tp2 sp tied": {"parallel": {PP: 2, TP: 2, **SP}, "model": TIED},
    "pp2 tp2 sp zbv": {"parallel": {PP: 2, TP: 2, **SP, "pipeline_schedule": "zbv"}, "model": DEEP},
    "cp2 tp2 sp": {"parallel": {CP: 2, TP: 2, **SP}},
    "dp2 cp2 z1": {"parallel": {CP: 2, "zero_level": "z1"}},
    "ep4": {"parallel": {EP: 4}, "moe": MOE},
    "ep2 tp2 sp": {"parallel": {EP: 2, TP: 2, **SP}, "moe": MOE},
    "ep2 pp2": {"parallel": {EP: 2, PP: 2}, "moe": MOE},
    "pp2 tp2 sp tokens first": {
        "parallel": {PP: 2, TP: 2, **SP},
        "model": {**TIED, **GPT2},
        "dataset": {"data_layout": "SBH"},
    },
    "z1 tp2 sp": {"parallel": {TP: 2, **SP, "zero_level": "z1"}},
    "z2 tp2 sp": {"parallel": {TP: 2, **SP, "zero_level": "z2"}},
    "z3 tp2 sp": {"parallel": {TP: 2, **SP, "zero_level": "z3"}},
    "z2 dp2 ep2": {"parallel": {EP: 2, "zero_level": "z2"}, "moe": MOE},
    "z3 pp2": {"parallel": {PP: 2, "zero_level": "z3"}},
}
EIGHT: dict[str, Sections] = {
    "dp2 pp2 tp2 sp vpp2": {"parallel": {PP: 2, TP: 2, VPP: 2, **SP}, "model": DEEP},
    "dp2 pp2 tp2 sp z1 tied": {"parallel": {PP: 2, TP: 2, **SP, "zero_level": "z1"}, "model": TIED},
}
FP32 = ("dp2", "tp2 sp", "cp2", "z1", "z3")


@pytest.mark.parametrize("name", TWO)
def test_two_processes(name: str) -> None:
    _same(TWO[name], 2, 1e-10)


@pytest.mark.parametrize("name", FOUR)
def test_four_processes(name: str) -> None:
    _same(FOUR[name], 4, 1e-10)


@pytest.mark.parametrize("name", EIGHT)
def test_eight_processes(name: str) -> None:
    _same(EIGHT[name], 8, 1e-10)


@pytest.mark.parametrize("name", FP32)
def test_float32(name: str) -> None:
    plain = configuration("float32", **TWO[name])
    _close(run(plain, 2), reference(plain), 1e-4)


@pytest.mark.parametrize("name", SAME_BITS)
def test_pipelines_give_the_same_bits(name: str) -> None:
    plain = configuration("float32", **SAME_BITS[name], dataset={"micro_batch_num": 4})
    _close(run(plain, 2), reference(plain), 0.0)


def test_a_broken_layout_is_seen() -> None:
    """The comparison can fail: another seed is far beyond every bound."""
    found = run(configuration(training={"seed": 8}), 1)
    with pytest.raises(AssertionError):
        _close(found, reference(configuration()), 1e-4)


def _same(sections: Sections, size: int, atol: float) -> None:
    plain = cut(sections, size)
    _close(run(plain, size), reference(plain), atol)


def _close(found: Run, expected: Run, atol: float) -> None:
    far = differences(found, expected)
    assert expected.losses[-1] < expected.losses[0] - 0.05, "nothing was learned: nothing is compared"
    assert all(value <= atol for value in far.values()), far
