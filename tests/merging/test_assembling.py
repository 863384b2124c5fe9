"""Whole tensors from parts: any mesh, any placements, with values and without."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from trueup.errors import ConfigError
from trueup.merging.assembling import Member, OwnPlace, assembled
from trueup.merging.nodes import Node, RankPart, Unfit
from trueup.merging.sequence_cut import SequenceCut
from trueup.merging.summary import Summary, summary_of_values
from trueup.numerics.digest import digest
from trueup.numerics.sketch import sketch
from trueup.types.codes import MergingCode
from trueup.types.layout import Layout, LayoutRow, Placed
from trueup.types.placement import (
    At,
    Invariant,
    Partial,
    Placement,
    Replicate,
    Scattered,
    Shard,
    Unknown,
    cut,
    gradient_of,
    part_of,
    place,
    placement_from,
)
from trueup.types.reason import reason

Array = NDArray[np.float64]
MESH = {"dp": 2, "cp": 2, "tp": 2}
SHAPE = (6, 8, 4)
PLACEMENTS: list[Placement] = [
    Replicate(),
    Invariant(),
    Shard(0, total=6),
    Shard(1),
    Shard(-1),
    Shard(1, zigzag=True),
    Shard(1, blocks=2),
    Partial(),
    Partial(mean=True),
]


def parts_of(
    whole: Array, placements: dict[str, Placement], layout: Layout, *, in_place: bool = True
) -> list[Member]:
    """What each rank of the mesh would record of ``whole``."""
    rng = np.random.default_rng(3)
    terms = {axis: layout.mesh[axis] for axis, one in placements.items() if isinstance(one, Partial)}
    held: dict[tuple[int, ...], Array] = {}
    members = []
    for rank in range(layout.size):
        coordinate = layout.coordinate(rank)
        mine = tuple(coordinate[axis] for axis in terms)
        if mine not in held:
            held[mine] = rng.standard_normal(whole.shape)
    if terms:  # terms of a sum that makes the whole, the means counted with how many they are over
        factor = np.prod([n for axis, n in terms.items() if placements[axis] == Partial(mean=True)] or [1])
        last = list(held)[-1]
        held[last] = whole * factor - sum(held[key] for key in held if key != last)
    else:
        held[()] = whole
    for rank in range(layout.size):
        coordinate = layout.coordinate(rank)
        values = held[tuple(coordinate[axis] for axis in terms)]
        cuts = {axis: one for axis, one in placements.items() if isinstance(one, Shard)}
        index: list[Any] = []
        offsets = []
        for dim in range(values.ndim):
            segments: Any = ((0, values.shape[dim]),)
            for axis, one in cuts.items():
                if one.dim % values.ndim == dim:
                    segments = cut(
                        segments, layout.mesh[axis], coordinate[axis], zigzag=one.zigzag, blocks=one.blocks
                    )
            index.append(np.concatenate([np.arange(s, s + n) for s, n in segments] or [np.arange(0)]))
            offsets.append(segments)
        local = np.ascontiguousarray(values[np.ix_(*index)])
        summary = summary_of_values(local, "float64")
        if in_place:
            summary.sketch = _sketch_at(local, whole.shape, offsets)
        part = RankPart(rank, summary, lambda local=local: local)
        size = whole.size if in_place else local.size
        members.append(Member(part=part, coordinate=coordinate, sketched=size))
    return members


def _sketch_at(local: Array, full: tuple[int, ...], where: Any) -> Array:
    total = np.zeros(64)
    boxes: list[Any] = [[]]
    for segments in where:
        start, found = 0, []
        for first, length in segments:
            found.append((slice(start, start + length), first))
            start += length
        boxes = [[*one, more] for one in boxes for more in found]
    for box in boxes:
        piece = local[tuple(part for part, _ in box)]
        total += sketch(piece, full, [first for _, first in box])
    return total


def merge(members: list[Member], placements: dict[str, Placement], layout: Layout) -> Node:
    return assembled(members, Placed(placements, None), layout)[0]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(PLACEMENTS), min_size=3, max_size=3))
def test_any_placements_give_the_whole_back(chosen: list[Placement]) -> None:
    placements = dict(zip(MESH, chosen, strict=True))
    if sum(isinstance(one, Shard) and one.total is not None for one in chosen) > 1:
        placements["dp"] = Replicate()
    layout = Layout(mesh=MESH)
    whole = np.random.default_rng(5).standard_normal(SHAPE)
    node = merge(parts_of(whole, placements, layout), placements, layout)
    values = node.values()
    assert values is not None
    np.testing.assert_allclose(values, whole, atol=1e-12)
    found, expected = node.summary(), summary_of_values(whole, "float64")
    assert found.shape == SHAPE
    assert found.sketch is not None
    np.testing.assert_allclose(found.sketch, sketch(whole), atol=1e-4)
    np.testing.assert_allclose(found.mean, expected.mean, atol=1e-12)
    if not any(isinstance(one, Partial) for one in placements.values()):
        assert (found.minimum, found.maximum, found.num_zero) == (expected.minimum, expected.maximum, 0)
        np.testing.assert_allclose(found.l2_norm, expected.l2_norm, rtol=1e-14)
        zigzag = any(isinstance(one, Shard) and (one.zigzag or one.blocks > 1) for one in placements.values())
        assert found.digest == digest(whole) or (zigzag and found.digest is None)
    else:
        assert found.l2_norm is None
        assert found.digest is None


def test_copies_in_other_pieces_are_the_same() -> None:
    """An optimizer's flat pieces, cut elsewhere on every stage; their sketches know nothing of the whole."""
    layout = Layout(mesh={"pp": 2, "dp": 2})
    values = np.random.default_rng(7).standard_normal((5, 4))
    members = []
    for rank, (stage, start, stop) in enumerate(((0, 0, 13), (0, 13, 20), (1, 0, 8), (1, 8, 20))):
        piece = values.ravel()[start:stop]
        own = OwnPlace(axes=("dp",), offset=(start,), shape=values.shape, flat=True)
        part = RankPart(rank, summary_of_values(piece, "float64"), lambda piece=piece: piece)
        coordinate = layout.coordinate(rank)
        members.append(Member(part=part, coordinate=coordinate, stage=stage, own=own, sketched=piece.size))
    whole, copies = assembled(members, Placed({"pp": Invariant()}, None), layout)
    np.testing.assert_array_equal(whole.values(), values)
    assert copies.differing == []
    members[3].part = RankPart(3, summary_of_values(values.ravel()[8:] * 1.5, "float64"), None)
    _, copies = assembled(members, Placed({"pp": Invariant()}, None), layout)
    assert [(axis, ranks) for axis, ranks, _ in copies.differing] == [("pp", (2, 3))]


def test_a_digest_found_only_afterwards_is_rebased() -> None:
    """Each part was hashed from its own start: no placement was known then."""
    layout, whole = Layout(mesh={"dp": 2, "tp": 2}), np.random.default_rng(1).standard_normal((6, 8))
    placements: dict[str, Placement] = {"dp": Shard(0), "tp": Shard(1)}
    members = parts_of(whole, placements, layout, in_place=False)
    node = merge(members, placements, layout)
    assert node.summary().digest == digest(whole)
    assert node.summary().sketch is None  # those were taken elsewhere
    swapped: dict[str, Placement] = {"dp": Shard(1), "tp": Shard(0)}
    assert merge(members, swapped, layout).summary().digest != digest(whole)


def test_a_sketch_taken_elsewhere_is_not_added() -> None:
    layout, whole = Layout(mesh={"tp": 2}), np.random.default_rng(1).standard_normal((6, 8))
    members = parts_of(whole, {"tp": Shard(0)}, layout, in_place=False)
    assert merge(members, {"tp": Shard(0)}, layout).summary().sketch is None


def test_copies_that_differ_are_named() -> None:
    layout, whole = Layout(mesh={"tp": 3}), np.ones((2, 2))
    members = parts_of(whole, {"tp": Replicate()}, layout)
    other = whole * 1.3
    members[1].part = RankPart(1, summary_of_values(other, "float64"), lambda: other)
    node, copies = assembled(members, Placed({"tp": Replicate()}, None), layout)
    ((axis, ranks, far),) = copies.differing
    assert (axis, ranks) == ("tp", (1,))
    assert far == pytest.approx(0.3, rel=1e-3)
    values = node.values()
    assert values is not None
    assert np.array_equal(values, whole)


def test_parts_that_do_not_fit_say_how() -> None:
    layout, whole = Layout(mesh={"tp": 2}), np.arange(8.0).reshape(2, 4)
    members = parts_of(whole, {"tp": Shard(1)}, layout)
    with pytest.raises(Unfit) as refused:
        merge(members, {"tp": Shard(2)}, layout)
    assert refused.value.reason == reason(MergingCode.NO_SUCH_DIM, dim=2, shape="[2, 2]")
    with pytest.raises(Unfit) as refused:
        merge(members[:1], {"tp": Shard(1)}, layout)
    parts = {"parts_found": 1, "parts_expected": 2}
    assert refused.value.reason == reason(MergingCode.PARTS_MISSING, **parts, axis="tp")
    with pytest.raises(Unfit) as refused:
        merge(members, {"tp": Unknown()}, layout)
    assert refused.value.reason == reason(MergingCode.PLACEMENT_UNKNOWN, axis="tp")


def test_scattered_parts_add_their_statistics_alone() -> None:
    layout, whole = Layout(mesh={"ep": 2}), np.random.default_rng(1).standard_normal((4, 3))
    members = parts_of(whole, {"ep": Shard(0)}, layout)
    node = merge(members, {"ep": Scattered()}, layout)
    found = node.summary()
    assert found.l2_norm == pytest.approx(float(np.linalg.norm(whole)))
    assert found.digest is None
    assert node.values() is None


def test_scattered_gradients_of_means_over_parts_count_one_over_n() -> None:
    layout, whole = Layout(mesh={"dp": 2}, batch=("dp",)), np.random.default_rng(1).standard_normal((4, 3))
    members = parts_of(2 * whole, {"dp": Shard(0)}, layout)
    found = merge(members, {"dp": Scattered(0, divided=True)}, layout).summary()
    assert found.l2_norm == pytest.approx(float(np.linalg.norm(whole)))
    assert found.maximum == pytest.approx(whole.max())
    plain = merge(members, {"dp": Scattered()}, layout).summary()
    assert plain.l2_norm == pytest.approx(2 * float(np.linalg.norm(whole)))


def test_gradients_are_placed_dually() -> None:
    assert gradient_of(Replicate()) == Partial()
    assert gradient_of(Partial()) == Replicate()
    assert gradient_of(Invariant()) == Invariant()
    assert gradient_of(Shard(1)) == Shard(1)
    assert gradient_of(Shard(0, mean=True)) == Shard(0, divided=True)
    whole = np.random.default_rng(2).standard_normal((4, 3))
    layout = Layout(mesh={"dp": 2})
    placements: dict[str, Placement] = {"dp": Shard(0, divided=True)}
    node = merge(parts_of(whole, placements, layout), placements, layout)
    found = node.summary()
    assert found.l2_norm == pytest.approx(float(np.linalg.norm(whole)) / 2)
    values = node.values()
    assert values is not None
    assert np.allclose(values, whole / 2)


@pytest.mark.parametrize(
    "one",
    [
        *PLACEMENTS,
        Scattered(),
        Scattered(1),
        Scattered(0, divided=True),
        Scattered(1, divided=True),
        Unknown(),
        At(-1),
        Shard(0, mean=True),
        Shard(2, 257, zigzag=True),
        Shard(0, blocks=3),
    ],
    ids=str,
)
def test_placements_are_read_as_they_are_written(one: Placement) -> None:
    assert placement_from(str(one)) == one


@pytest.mark.parametrize(
    "text", ["shard", "shard(x)", "at(0,zigzag)", "at(0,divided)", "scattered(0,mean)", "whole", ""]
)
def test_other_words_are_no_placement(text: str) -> None:
    with pytest.raises(ConfigError, match=r"shard\(DIM\)"):
        placement_from(text)


def test_where_a_part_lies() -> None:
    assert [part_of(7, 3, at) for at in range(3)] == [(0, 3), (3, 2), (5, 2)]
    mesh, coordinate = {"cp": 2, "tp": 2}, {"cp": 1, "tp": 0}
    both: dict[str, Placement] = {"cp": Shard(0, zigzag=True), "tp": Shard(0)}
    assert place((4,), both, mesh, coordinate) == ((16,), (((4, 4),),))
    assert place((4,), {"cp": Shard(3)}, mesh, coordinate) is None
    assert place((5,), {"tp": Shard(0, total=9)}, mesh, coordinate) == ((9,), (((0, 5),),))
    assert place((4,), {"tp": Shard(0, total=9)}, mesh, coordinate) is None


def test_rows_dealt_in_turn_keep_that_their_gradients_are_divided() -> None:
    """Without values the order of the rows is not known; that parts count 1/n is."""
    whole = Summary(dtype="float32", shape=(4, 6, 5), numel=120)
    cut = SequenceCut(shape=(4, 6), placement=Scattered(0), dim=0)
    for divided in (True, False):
        row = LayoutRow("head", {"dp": Shard(0, divided=divided)}, "output.0", "backward")
        assert cut.row(row, "dp", whole).placements == {"dp": Scattered(0, divided=divided)}
