"""Plans applied, their shapes foretold, and turned round."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.weights.made import assert_same, numbered
from trueup.errors import ConfigError
from trueup.weights.applying import apply_plan, misfits, unused_sources
from trueup.weights.inverse import inverse
from trueup.weights.plan import (
    ConversionPlan,
    MovingStep,
    Permute,
    PlannedWeight,
    Reshape,
    Slice,
    SourcePiece,
    made,
    moved,
)
from trueup.weights.shapes import Shape, made_shape, moved_shape
from trueup.weights.weight_set import MemoryWeights


def plan_of(*entries: PlannedWeight) -> ConversionPlan:
    return ConversionPlan(entries=entries)


def one(target: str, *sources: str, **how: object) -> PlannedWeight:
    return PlannedWeight(target=target, pieces=tuple(SourcePiece(source=source) for source in sources), **how)  # type: ignore[arg-type]


@st.composite
def steps_of(draw: st.DrawFn, shape: Shape, *, slices: bool) -> tuple[MovingStep, ...]:
    """Steps that fit ``shape``."""
    steps: list[MovingStep] = []
    begun = shape
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["split", "merge", "permute", *(["slice"] if slices else [])]))
        if kind == "permute":
            steps.append(Permute(dims=tuple(draw(st.permutations(range(len(shape)))))))
        elif kind == "merge" and len(shape) > 1:
            steps.append(Reshape(shape=(shape[0] * shape[1], *shape[2:])))
        elif kind == "split" and shape and shape[0] % 2 == 0:
            steps.append(Reshape(shape=(2, shape[0] // 2, *shape[1:])))
        elif kind == "slice" and shape:
            dim = draw(st.integers(0, len(shape) - 1))
            start = draw(st.integers(0, shape[dim] - 1))
            steps.append(Slice(dim=dim, start=start, stop=draw(st.integers(start + 1, shape[dim]))))
        shape = moved_shape(begun, steps)
    return tuple(steps)


SHAPES = st.lists(st.sampled_from([1, 2, 3, 4, 6]), max_size=3).map(tuple)


@settings(max_examples=80, deadline=None)
@given(st.data(), SHAPES)
def test_shapes_are_foretold(data: st.DataObject, shape: Shape) -> None:
    steps = data.draw(steps_of(shape, slices=True))
    assert moved_shape(shape, steps) == moved(np.zeros(shape), steps).shape


@settings(max_examples=80, deadline=None)
@given(st.data(), SHAPES, st.integers(1, 3), st.sampled_from(["concat", "stack"]), st.integers(0, 3))
def test_a_plan_turned_round_gives_the_sources_back(
    data: st.DataObject, shape: Shape, num: int, join: str, padding: int
) -> None:
    names = [f"s{at}" for at in range(num)]
    sources = MemoryWeights(numbered(**dict.fromkeys(names, shape)))
    first = data.draw(steps_of(shape, slices=False))
    met = moved_shape(shape, first)
    dims = len(met) + (join == "stack")
    if not dims:
        join, num = "stack", 1
    dim = data.draw(st.integers(0, max(dims - 1, 0)))
    pieces = tuple(SourcePiece(source=name, steps=first) for name in names)
    entry = PlannedWeight(target="t", pieces=pieces, join=join, dim=dim if dims else 0)
    shapes = dict.fromkeys(names, shape)
    whole = made_shape(entry, shapes.__getitem__)
    entry = PlannedWeight(
        target="t",
        pieces=pieces,
        join=join,
        dim=entry.dim,
        steps=data.draw(steps_of(whole, slices=False)),
        padding=padding if whole else 0,
    )
    plan = plan_of(entry)
    there = apply_plan(plan, sources)
    assert there.table["t"].shape == there.read("t").shape == made_shape(entry, shapes.__getitem__)
    back = apply_plan(inverse(plan, shapes), there)
    assert_same(back, MemoryWeights({name: sources.read(name) for name in back.table}))
    assert set(back.table) == set(names)


@settings(max_examples=100, deadline=None)
@given(st.data(), st.lists(st.integers(1, 3), min_size=1, max_size=4))
def test_a_split_turned_round_is_a_join(data: st.DataObject, lengths: list[int]) -> None:
    shape = (2, sum(lengths), 3)
    source = MemoryWeights(numbered(s=shape))
    before = data.draw(st.sampled_from([(), (Permute(dims=(0, 1, 2)),), (Reshape(shape=shape),)]))
    ends = np.cumsum([0, *lengths]).tolist()
    entries = []
    for at, (start, stop) in enumerate(pairwise(ends)):
        cut = Slice(dim=1, start=start, stop=stop)
        after = data.draw(steps_of((2, stop - start, 3), slices=False))
        entries.append(
            PlannedWeight(target=f"t{at}", pieces=(SourcePiece(source="s", steps=(*before, cut, *after)),))
        )
    plan = plan_of(*data.draw(st.permutations(entries)))
    assert_same(apply_plan(inverse(plan, {"s": shape}), apply_plan(plan, source)), source)


def test_what_cannot_be_turned_round_says_why() -> None:
    def refusal(*entries: PlannedWeight) -> str:
        with pytest.raises(ConfigError) as caught:
            inverse(plan_of(*entries), {"s": (6, 2)})
        return str(caught.value)

    def cut(start: int, stop: int, target: str = "t", dim: int = 0) -> PlannedWeight:
        step = Slice(dim=dim, start=start, stop=stop)
        return PlannedWeight(target=target, pieces=(SourcePiece(source="s", steps=(step,)),))

    assert refusal(cut(0, 4)) == "s: 4:6 along dimension 0 goes nowhere"
    assert refusal(cut(0, 2), cut(3, 6, "u")) == "s: 2:3 along dimension 0 goes nowhere"
    assert refusal(cut(0, 4), cut(3, 6, "u")) == "s: 3:4 along dimension 0 is taken twice"
    assert "cut in different ways" in refusal(cut(0, 3), cut(0, 1, "u", 1))
    whole = one("t", "s", steps=(Slice(dim=0, start=0, stop=3),))
    assert "a part of it is cut away" in refusal(whole)
    two = (Slice(dim=0, start=0, stop=6), Slice(dim=0, start=0, stop=6))
    assert "two slices of s" in refusal(
        PlannedWeight(target="t", pieces=(SourcePiece(source="s", steps=two),))
    )
    assert "the shape of x is not known" in refusal(one("t", "x"))


def test_tied_weights_come_back_once() -> None:
    source = MemoryWeights(numbered(embed=(4, 2)))
    plan = plan_of(one("embed_tokens", "embed"), one("lm_head", "embed"))
    back = inverse(plan, {"embed": (4, 2)})
    assert [entry.pieces[0].source for entry in back.entries] == ["embed_tokens"]
    assert_same(apply_plan(back, apply_plan(plan, source)), source)


def test_a_plan_that_does_not_fit_is_refused_before_a_value_is_read() -> None:
    source = MemoryWeights(numbered(a=(2, 3), b=(4, 3)) | {"half": np.zeros((2, 3), np.float16)}, dtypes={})

    def refusal(*entries: PlannedWeight) -> str:
        with pytest.raises(ConfigError) as caught:
            apply_plan(plan_of(*entries), source)
        return str(caught.value)

    assert "t is to be made of halv, which memory does not have; did you mean half?" in refusal(
        one("t", "halv")
    )
    assert "the plan makes 't' twice" in refusal(one("t", "a"), one("t", "b"))
    assert "t: 2 pieces and no word" in refusal(one("t", "a", "b"))
    assert "t: cannot stack (2, 3), (4, 3)" in refusal(one("t", "a", "b", join="stack"))
    assert "t: cannot concatenate" in refusal(one("t", "a", "b", join="concat", dim=1))
    assert "different dtypes (float32, float16)" in refusal(one("t", "a", "half", join="concat"))
    assert "t: cannot reshape (2, 3) to (5,)" in refusal(one("t", "a", steps=(Reshape(shape=(5,)),)))
    assert "t: no 1:9 along dimension 0" in refusal(one("t", "a", steps=(Slice(dim=0, start=1, stop=9),)))
    assert "t: cannot permute" in refusal(one("t", "a", steps=(Permute(dims=(0, 0)),)))
    assert "t: join 'sum'" in refusal(one("t", "a", join="sum"))
    assert "t: no 2 rows can be added to shape ()" in refusal(
        one(
            "t",
            "a",
            steps=(Slice(dim=0, start=0, stop=1), Slice(dim=1, start=0, stop=1), Reshape(shape=())),
            padding=2,
        )
    )
    assert "t: no pieces" in refusal(PlannedWeight(target="t", pieces=()))


def test_bits_are_only_moved() -> None:
    nan = np.array([0x7F800001, 0xFFC12345, 0x80000000], np.uint32).view(np.float32)
    source = MemoryWeights({"a": nan})
    back = made(one("t", "a", "a", join="stack", padding=1), source.read)
    assert back.view(np.uint32).tolist() == [[0x7F800001, 0xFFC12345, 0x80000000]] * 2 + [[0, 0, 0]]


def test_what_is_left_over_and_what_does_not_fit() -> None:
    source = MemoryWeights(numbered(a=(2, 3), b=(4,), buffer=(1,)))
    plan = ConversionPlan(entries=(one("t", "a"),), only_source=("buffer",))
    assert unused_sources(plan, source.table) == ["b"]
    table = apply_plan(plan, source).table
    assert misfits(table, {"t": (2, 3)}) == []
    assert misfits(table, {"t": (3, 2), "u": (1,)}) == [
        "t: made [2, 3], wanted [3, 2]",
        "u: wanted, and nothing makes it",
    ]
    assert misfits(table, {}) == ["t: made, and not wanted"]
