"""What a person asks for becomes a plan: heads from configurations, families, inference handed in."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.weights.made import numbered
from trueup.cli.inferring import infer_plan
from trueup.errors import ConfigError
from trueup.weights.converting import Conversion, merged, plan_conversion
from trueup.weights.layouts import Heads
from trueup.weights.model_config import heads_beside
from trueup.weights.opening import open_weights
from trueup.weights.pairing import most_common
from trueup.weights.plan import ConversionPlan, PlannedWeight, SourcePiece
from trueup.weights.weight_set import MemoryWeights
from trueup.weights.writing import write_weights

RENAMED = ConversionPlan(entries=(PlannedWeight(target="b", pieces=(SourcePiece(source="a"),)),))


@pytest.mark.parametrize(
    ("config", "heads"),
    [
        ({"num_attention_heads": 8, "num_key_value_heads": 2}, Heads(num_heads=8, num_kv_heads=2)),
        ({"n_head": 12}, Heads(num_heads=12)),
        ({"text_config": {"num_attention_heads": 4}}, Heads(num_heads=4)),
        ({"num_attention_heads": 8, "num_key_value_heads": None}, Heads(num_heads=8)),
        ({"num_attention_heads": "8"}, Heads()),
        ([1], Heads()),
    ],
)
def test_heads_of_a_configuration(tmp_path: Path, config: Any, heads: Heads) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert heads_beside(tmp_path) == heads_beside(tmp_path / "model.safetensors") == heads


def test_heads_of_a_trace(tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "manifest.json").write_text("{}")
    facts = {"configuration": {"": {"num_attention_heads": 6, "num_key_value_heads": 3}}}
    (tmp_path / "ranks/rank_00000.json").write_text(json.dumps(facts))
    assert heads_beside(tmp_path) == Heads(num_heads=6, num_kv_heads=3)


def test_no_configuration_or_a_damaged_one(tmp_path: Path) -> None:
    assert heads_beside(tmp_path) == Heads()
    (tmp_path / "config.json").write_text("{")
    assert heads_beside(tmp_path) == Heads()


def test_what_a_person_says_of_heads_goes_first() -> None:
    found = Heads(num_heads=8, num_kv_heads=2)
    assert merged(Heads(), found) == found
    assert merged(Heads(num_heads=4), found) == Heads(num_heads=4)
    assert merged(Heads(num_kv_heads=4), found) == Heads(num_heads=8, num_kv_heads=4)


def test_without_a_wish_names_stay() -> None:
    source = MemoryWeights(numbered(a=(2,), b=(3,)))
    plan = plan_conversion(source, Conversion())
    assert [(entry.target, entry.pieces[0].source) for entry in plan.entries] == [("a", "a"), ("b", "b")]


def test_inference_is_handed_in_and_its_result_checked() -> None:
    source, target = MemoryWeights(numbered(a=(2,))), MemoryWeights(numbered(b=(2,)))
    asked = Conversion(like=target)
    assert plan_conversion(source, asked, infer=lambda t, s: RENAMED) is RENAMED
    with pytest.raises(ConfigError, match="cannot infer a plan"):
        plan_conversion(source, asked)
    wider = Conversion(like=MemoryWeights(numbered(b=(2,), c=(1,))))
    with pytest.raises(ConfigError, match="c: wanted, and nothing makes it"):
        plan_conversion(source, wider, infer=lambda t, s: RENAMED)


@dataclass(frozen=True, kw_only=True)
class Facts:
    shape: tuple[int, ...]
    dtype: str
    content: int
    uniform: float | None


def test_weights_as_matching_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def infer(target: Any, source: Any) -> ConversionPlan:
        seen.extend((target, source))
        return RENAMED if source.names() == ["a", "ones"] else ConversionPlan(entries=())

    matching, content = ModuleType("trueup.matching.weights"), ModuleType("trueup.numerics.content")
    matching.infer_plan, matching.WeightFacts = infer, Facts  # type: ignore[attr-defined]
    content.content_hash = lambda values: int(values.sum() * 2)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, matching.__name__, matching)
    monkeypatch.setitem(sys.modules, content.__name__, content)
    bits = np.array([0x3F80, 0xC000], np.uint16)
    source = MemoryWeights({"a": bits, "ones": np.ones((2, 2), np.float16)}, dtypes={"a": "bfloat16"})
    assert infer_plan(MemoryWeights({"b": np.zeros((0, 2))}), source) is RENAMED
    target, read = seen
    assert read.read("a").tolist() == [1.0, -2.0]
    assert read.read("a").dtype == np.float32
    assert read.facts("a") == Facts(shape=(2,), dtype="bfloat16", content=-2, uniform=None)
    assert read.facts("ones").uniform == 1.0
    assert target.facts("b").uniform is None
    with pytest.raises(ConfigError, match="nothing of memory was found in memory"):
        infer_plan(MemoryWeights({"b": bits}), MemoryWeights({"x": bits}))


def test_names_in_common_go_before_maps() -> None:
    arrays = numbered(**{"ln.weight": (3,), "ln.bias": (3,), "fc.weight": (2, 3)})
    target, reference = MemoryWeights(arrays), MemoryWeights(arrays)
    assert most_common(target, reference, Heads()) == (reference, "")
    few = MemoryWeights({"fc.weight": arrays["fc.weight"], "x": arrays["ln.bias"], "y": arrays["ln.bias"]})
    assert most_common(target, few, Heads())[0] is few, "no map leads further, so the one pair is taken"


@pytest.mark.torch
def test_shards_of_torch_files_with_an_index(tmp_path: Path) -> None:
    arrays = numbered(a=(2,), b=(3,))
    for name, array in arrays.items():
        write_weights(MemoryWeights({name: array}), tmp_path / f"pytorch_model-{name}.bin")
    write_weights(MemoryWeights({"state": np.ones(1)}), tmp_path / "optimizer.bin")
    index = {"weight_map": {name: f"pytorch_model-{name}.bin" for name in arrays}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    for path in (tmp_path, tmp_path / "pytorch_model.bin.index.json"):
        assert set(open_weights(path).table) == {"a", "b"}
    (tmp_path / "pytorch_model.bin.index.json").unlink()
    assert set(open_weights(tmp_path).table) == {"a", "b"}, "an optimizer's file is no weights"
