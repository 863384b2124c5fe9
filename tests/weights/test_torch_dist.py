"""Megatron's distributed checkpoints: every layout is the whole model, and a mistake in one part is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.weights import megatron_checkpoints as made
from tests.weights import torch_dist_checkpoints as dist
from tests.weights.test_megatron import assert_holds
from trueup.errors import WeightsError
from trueup.weights.comparing import PairStatus, compare_weights
from trueup.weights.layouts import Heads
from trueup.weights.model_config import heads_beside
from trueup.weights.opening import open_weights

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
ARGUMENTS = {
    "num_attention_heads": 4,
    "num_query_groups": 2,
    "group_query_attention": True,
    "vocab_size": made.VOCABULARY,
    "padded_vocab_size": made.PADDED,
    "tokenizer_type": "GPT2BPETokenizer",
}


def transposed(model: dict[str, Tensor]) -> dict[str, Tensor]:
    stored = dist.stacked(model)
    return {n: w.mT.contiguous() if "experts.experts" in n else w for n, w in stored.items()}


def all_in_one(model: dict[str, Tensor]) -> dict[str, Tensor]:
    """As Megatron-core's GroupedMLP views them: (experts, in, out) under a shape of two dimensions."""
    found = {}
    for name, whole in dist.stacked(model).items():
        if "experts.experts" not in name:
            found[name] = whole
            continue
        layers, experts, rows, columns = whole.shape
        first = "linear_fc1" in name
        shape = (columns, experts * rows) if first else (experts * columns, rows)
        found[f"{name.split('experts.')[0]}experts.weight{1 if first else 2}"] = whole.mT.reshape(
            layers, *shape
        )
    return found


def with_optimizer(model: dict[str, Tensor], beginning: str = "") -> dict[str, Tensor]:
    stored = dist.stacked(model)
    states = {
        f"{beginning}optimizer.state.{kind}.{name}": whole * 2
        for name, whole in stored.items()
        for kind in ("exp_avg", "exp_avg_sq", "fp32_param")
    }
    return {**stored, **states}


@pytest.mark.parametrize("experts", [0, 4])
@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize(
    "stored",
    [
        dist.stacked,
        dist.one_by_one,
        with_optimizer,
        lambda model: with_optimizer(model, "chained_0."),
        transposed,
        all_in_one,
    ],
)
def test_every_layout_is_the_whole_model(
    stored: Callable[[dict[str, Tensor]], dict[str, Tensor]], tensor: int, experts: int, tmp_path: Path
) -> None:
    model = made.whole_model(experts=experts, layers=2)
    if stored is transposed:
        tensor = 1  # its parts are cut along the other dimension
    folder = dist.write(tmp_path, stored(model), tensor=tensor, expert=tensor, own_metadata=tensor == 2)
    assert_holds(open_weights(folder), model)


SECTIONS = {
    "mixer.in_proj.weight": ("z", "x", "B", "C", "dt"),
    "mixer.conv1d.weight": ("x", "B", "C"),
    "mixer.conv1d_bias": ("x", "B", "C"),
    "self_attention.in_proj.weight": ("query", "key", "value", "z", "beta", "alpha"),
    "self_attention.conv1d.weight": ("query", "key", "value"),
    "self_attention.out_proj.weight": (),
}


def test_sections_that_are_saved_apart_are_put_together(tmp_path: Path) -> None:
    model, stored = {}, {}
    for number, (name, sections) in enumerate(SECTIONS.items()):
        parts = [torch.full((rows + 2, 3), 10.0 * number + rows) for rows in range(len(sections) or 1)]
        whole = f"decoder.layers.{number}.{name}"
        model[whole] = torch.cat(parts)
        names = [f"{whole}.{section}" for section in sections] or [whole]
        stored |= dict(zip(names, parts, strict=True))
    assert_holds(open_weights(dist.write(tmp_path / "whole", stored)), model)
    del stored["decoder.layers.0.mixer.in_proj.weight.B"]
    left = open_weights(dist.write(tmp_path / "part", stored)).table
    assert "decoder.layers.0.mixer.in_proj.weight" not in left
    assert "decoder.layers.0.mixer.in_proj.weight.z" in left


def test_what_its_arguments_say(tmp_path: Path) -> None:
    """Heads, and rows that are padding: these may differ."""
    model = made.whole_model()
    other = {name: whole.clone() for name, whole in model.items()}
    other["output_layer.weight"][made.VOCABULARY :] += 1
    folders = [
        dist.write(tmp_path / f"{at}", dist.stacked(one), arguments=ARGUMENTS)
        for at, one in enumerate((model, other))
    ]
    assert heads_beside(folders[0]) == Heads(num_heads=4, num_kv_heads=2)
    target, reference = map(open_weights, folders)
    assert any("padded to 64" in remark for remark in target.remarks)
    assert compare_weights(target, reference).exit_code() == 0
    common = folders[0] / "iter_0000100/common.pt"
    common.write_bytes(common.read_bytes()[:-50])
    damaged = open_weights(folders[0])
    assert any("arguments are not known" in remark for remark in damaged.remarks)
    assert heads_beside(folders[0]) == Heads()


@pytest.mark.parametrize("stored", [dist.stacked, dist.one_by_one])
def test_a_value_in_one_part_is_found(
    stored: Callable[[dict[str, Tensor]], dict[str, Tensor]], tmp_path: Path
) -> None:
    """In the last row of one expert's gate, which one of four parts holds; against files of ranks."""
    model = made.whole_model(experts=4, layers=2)
    name = "decoder.layers.1.mlp.experts.local_experts.3.linear_fc1.weight"
    changed = {key: whole.clone() for key, whole in model.items()}
    changed[name][made.FFN - 1, -1] += 0.25
    reference = open_weights(
        made.write(tmp_path / "ranks", model, made.Layout(pipeline=2), layers=2, experts=4)
    )
    for at, (own, wrong) in enumerate(((model, []), (changed, [name]))):
        folder = dist.write(tmp_path / f"{at}", stored(own), tensor=2, expert=2)
        found = compare_weights(open_weights(folder), reference)
        assert [pair.name for pair in found.pairs if pair.status is not PairStatus.EQUAL] == wrong
        assert found.only_target == found.only_reference == ()


def test_a_part_that_no_file_holds_is_named(tmp_path: Path) -> None:
    folder = dist.write(tmp_path, dist.stacked(made.whole_model()), tensor=2)
    place = folder / "iter_0000100/.metadata"
    dist.without_a_part(place, "decoder.layers.mlp.linear_fc2.weight")
    weights = open_weights(folder)
    with pytest.raises(WeightsError, match=r"linear_fc2\.weight cover 48 of its 96"):
        weights.read("decoder.layers.3.mlp.linear_fc2.weight")
