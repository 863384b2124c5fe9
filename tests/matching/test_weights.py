"""Weights of two implementations are found again in each other, and the plan makes one's values of the
other's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from trueup.matching.weights import WeightFacts, infer, infer_plan
from trueup.numerics.content import content_hash
from trueup.weights.plan import made

Arrays = dict[str, NDArray[Any]]
RNG = np.random.default_rng(3)


class Held:
    """Weights held in memory; ``readable`` or known by hash alone."""

    def __init__(self, values: Arrays, *, readable: bool = True) -> None:
        self.values, self._readable = values, readable

    def names(self) -> Sequence[str]:
        return list(self.values)

    def facts(self, name: str) -> WeightFacts:
        array = self.values[name]
        uniform = float(array.flat[0]) if (array == array.flat[0]).all() else None
        return WeightFacts(shape=array.shape, dtype="float32", content=content_hash(array), uniform=uniform)

    def read(self, name: str) -> NDArray[Any] | None:
        return self.values[name] if self._readable else None


def random(*shape: int) -> NDArray[np.float32]:
    return RNG.standard_normal(shape).astype(np.float32)


def layer(i: int) -> Arrays:
    """One layer with separate projections, 6 heads in 2 groups of 8 channels, 3 experts."""
    at = f"blocks.{i}."
    named = {
        f"{at}n1.gamma": np.ones(48, np.float32),
        f"{at}q.w": random(48, 48),
        f"{at}q.beta": random(48),
        f"{at}k.w": random(16, 48),
        f"{at}k.beta": np.zeros(16, np.float32),
        f"{at}v.w": random(16, 48),
        f"{at}o.w": random(48, 48),
        f"{at}n2.gamma": np.ones(48, np.float32),
        f"{at}gate.w": random(20, 48),
        f"{at}up.w": random(20, 48),
        f"{at}down.w": random(48, 20),
    }
    return named | {f"{at}experts.{e}.w": random(10, 48) for e in range(3)}


def otherwise(values: Arrays, i: int) -> Arrays:
    """The same layer: fused grouped qkv, gate and up fused, transposes, stacked experts."""
    at, to = f"blocks.{i}.", f"h.{i}."
    q, k, v = (values[f"{at}{x}.w"] for x in "qkv")
    groups = [
        part
        for g in range(2)
        for part in (q[24 * g : 24 * g + 24], k[8 * g : 8 * g + 8], v[8 * g : 8 * g + 8])
    ]
    return {
        f"{to}first.weight": np.ones(48, np.float32),
        f"{to}qkv.weight": np.concatenate(groups),
        f"{to}q_alone.beta": values[f"{at}q.beta"].reshape(6, 2, 4).swapaxes(1, 2).reshape(-1),
        f"{to}out.weight": np.ascontiguousarray(values[f"{at}o.w"].T),
        f"{to}second.weight": np.ones(48, np.float32),
        f"{to}gate_up.weight": np.concatenate([values[f"{at}up.w"], values[f"{at}gate.w"]]).T.copy(),
        f"{to}down.weight": np.ascontiguousarray(values[f"{at}down.w"].T),
        f"{to}experts.weight": np.stack([values[f"{at}experts.{e}.w"].T for e in range(3)]),
    }


def model() -> tuple[Arrays, Arrays]:
    """Two layers and an embedding whose vocabulary one side pads."""
    one: Arrays = {"emb.table": random(50, 48)}
    other: Arrays = {"wte.weight": np.concatenate([one["emb.table"], np.zeros((14, 48), np.float32)])}
    for i in range(2):
        here = layer(i)
        one |= here
        other |= otherwise(here, i)
    return one, other


@pytest.mark.parametrize("turned", [False, True])
def test_every_entry_makes_the_targets_values(turned: bool) -> None:
    source, target = model()[:: -1 if turned else 1]
    plan = infer_plan(Held(target), Held(source))
    assert {e.target for e in plan.entries} >= {n for n, v in target.items() if len(np.unique(v)) > 2}
    for entry in plan.entries:
        assert np.array_equal(made(entry, source.__getitem__), target[entry.target]), entry


def test_fused_transposed_stacked_and_padded_are_named() -> None:
    source, target = model()
    plan = infer_plan(Held(target), Held(source))
    qkv = plan.entry_of("h.0.qkv.weight")
    assert qkv is not None
    assert [p.source[-3] for p in qkv.pieces] == list("qkvqkv")
    experts = plan.entry_of("h.1.experts.weight")
    assert experts is not None
    assert experts.join == "stack"
    padded = plan.entry_of("wte.weight")
    assert padded is not None
    assert padded.padding == 14


def test_norms_of_ones_are_found_by_their_neighbours() -> None:
    source, target = model()
    plan = infer_plan(Held(target), Held(source))
    found = {
        e.target: e.pieces[0].source
        for e in plan.entries
        if e.target.endswith(("first.weight", "second.weight"))
    }
    assert found["h.1.second.weight"] == "blocks.1.n2.gamma"
    assert all(t[2] == s[7] for t, s in found.items())


def heads(prefix: str, *, swapped: bool = False) -> Arrays:
    """Two layers, each with two norms of ones of one shape, whose order and neighbours say nothing."""
    draw = np.random.default_rng(5)
    held: Arrays = {}
    for at in range(2):
        out = draw.standard_normal((8, 8)).astype(np.float32)
        norms = {f"{prefix}{at}.attn.{name}.weight": np.ones(4, np.float32) for name in ("a", "b")}
        held |= {f"{prefix}{1 - at if swapped else at}.attn.out.weight": out, **norms}
    return held


@pytest.mark.parametrize("prefix", ["blocks.", "trunk.h."])
def test_norms_of_ones_are_found_by_the_module_around_them(prefix: str) -> None:
    plan = infer_plan(Held(heads(prefix)), Held(heads("blocks.")))
    assert {e.target: e.pieces[0].source for e in plan.entries} == {
        name: name.replace(prefix, "blocks.") for name in heads(prefix)
    }


def test_norms_of_a_module_that_holds_another_s_weights_are_those_of_the_other() -> None:
    plan = infer_plan(Held(heads("blocks.", swapped=True)), Held(heads("blocks.")))
    found = plan.entry_of("blocks.0.attn.a.weight")
    assert found is None or found.pieces[0].source == "blocks.1.attn.a.weight"


def test_a_norm_of_another_value_is_not_found_by_its_module() -> None:
    target = heads("trunk.h.")
    target["trunk.h.0.attn.a.weight"] = np.full(4, 2, np.float32)
    plan = infer_plan(Held(target), Held(heads("blocks.")))
    assert plan.entry_of("trunk.h.0.attn.a.weight") is None
    assert plan.entry_of("trunk.h.0.attn.b.weight") is not None


def test_hashes_alone_find_what_belongs_together_but_give_no_steps_they_cannot_know() -> None:
    source, target = model()
    found = infer(Held(target, readable=False), Held(source, readable=False))
    atoms = {a.targets[0]: set(a.sources) for a in found.atoms if len(a.targets) == 1}
    assert atoms["h.0.qkv.weight"] == {f"blocks.0.{x}.w" for x in "qkv"}
    assert atoms["h.1.experts.weight"] == {f"blocks.1.experts.{e}.w" for e in range(3)}
    assert atoms["h.1.gate_up.weight"] == {"blocks.1.gate.w", "blocks.1.up.w"}
    assert found.plan().entry_of("h.0.qkv.weight") is None


def test_equal_weights_of_several_layers_are_left_undecided() -> None:
    same = random(8, 8)
    target = Held({"a.w": same, "b.w": same, "c.w": random(3, 8)})
    plan = infer_plan(target, Held({"x.w": same, "y.w": random(4, 8)}))
    assert not plan.entries
    assert set(plan.only_target) == {"a.w", "b.w", "c.w"}


def test_tied_weights_share_an_origin() -> None:
    table = random(20, 8)
    plan = infer_plan(Held({"emb": table, "head": table}), Held({"wte": table, "lm": table}))
    assert [(e.target, e.pieces[0].source) for e in plan.entries] == [("emb", "wte"), ("head", "lm")]


def test_a_weight_that_differs_in_one_layer_is_found_by_its_like() -> None:
    source, target = model()
    target["h.1.qkv.weight"] = target["h.1.qkv.weight"] + np.float32(0.1)
    plan = infer_plan(Held(target), Held(source))
    entry, like = plan.entry_of("h.1.qkv.weight"), plan.entry_of("h.0.qkv.weight")
    assert entry is not None
    assert like is not None
    assert [p.source for p in entry.pieces] == [p.source.replace("0", "1") for p in like.pieces]
    assert entry.how == "name"


def test_random_weights_of_two_models_are_not_paired() -> None:
    one = {f"a.{i}.w": random(8, 8) for i in range(4)}
    other = {f"b.{i}.v": random(8, 8) for i in range(4)}
    assert not infer_plan(Held(one), Held(other)).entries
