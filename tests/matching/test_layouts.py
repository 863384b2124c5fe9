"""Layouts found from shapes and plans bring both sides to the same values."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.matching.layouts import layout_of_entry, pieces_of_entry, rotary_turns, ways
from trueup.weights.plan import Permute, PlannedWeight, Reshape, Slice, SourcePiece, made


@given(
    dims=st.permutations([2, 3, 4, 5]).map(tuple),
    order=st.sampled_from(list(permutations(range(4)))),
    merged=st.integers(0, 3),
)
def test_a_permuted_and_merged_tensor_is_brought_back(
    dims: tuple[int, ...], order: tuple[int, ...], merged: int
) -> None:
    reference = np.arange(120).reshape(dims)
    target = reference.transpose(order)
    if merged < 3:
        shape = list(target.shape)
        target = target.reshape(*shape[:merged], shape[merged] * shape[merged + 1], *shape[merged + 2 :])
    found = ways(target.shape, reference.shape)
    assert any(np.array_equal(w.of_target(target), w.of_reference(reference)) for w in found)


def test_both_sides_merged_are_told_by_a_third_shape() -> None:
    fine = np.arange(2 * 3 * 5 * 7).reshape(2, 3, 5, 7)  # batch, head, place, channel
    target = fine.transpose(2, 0, 1, 3).reshape(5, 6, 7)
    reference = fine.transpose(0, 2, 1, 3).reshape(2, 5, 21)
    assert not ways(target.shape, reference.shape)
    found = ways(target.shape, reference.shape, [(2, 3, 5, 7)])
    assert any(np.array_equal(w.of_target(target), reference) for w in found)


def test_other_numbers_of_elements_have_no_layout() -> None:
    assert not ways((2, 3), (2, 4))


HALVES = (Reshape(shape=(2, 2, 4, 5)), Permute(dims=(0, 2, 1, 3)), Reshape(shape=(16, 5)))
ENTRIES = [
    PlannedWeight(target="t", pieces=(SourcePiece(source="a", steps=(Permute(dims=(1, 0)),)),)),
    PlannedWeight(target="t", pieces=(SourcePiece(source="a", steps=HALVES),)),
    PlannedWeight(target="t", pieces=(SourcePiece(source="a"),), padding=3),
    PlannedWeight(target="t", pieces=(SourcePiece(source="a"), SourcePiece(source="b")), join="concat"),
    PlannedWeight(
        target="t",
        pieces=(
            SourcePiece(source="a", steps=(Slice(dim=0, start=0, stop=8),)),
            SourcePiece(source="b"),
            SourcePiece(source="a", steps=(Slice(dim=0, start=8, stop=16),)),
        ),
        join="concat",
        steps=(Permute(dims=(1, 0)),),
    ),
    PlannedWeight(target="t", pieces=(SourcePiece(source="a"), SourcePiece(source="b")), join="stack"),
]


@pytest.mark.parametrize("entry", ENTRIES, ids=range(len(ENTRIES)))
def test_every_part_of_a_plan_can_be_compared(entry: PlannedWeight) -> None:
    rng = np.random.default_rng(0)
    held = {name: rng.standard_normal((16, 5)) for name in ("a", "b")}
    target = made(entry, held.__getitem__)
    parts = pieces_of_entry(entry, {name: value.shape for name, value in held.items()})
    covered = 0
    for source, layout in parts.items():
        mine, theirs = layout.of_target(target), layout.of_reference(held[source])
        assert np.array_equal(mine, theirs)
        covered += mine.size
        assert layout.whole == (len(parts) == 1 and not entry.padding)
    assert covered == sum(held[source].size for source in parts)


def test_a_weight_that_stands_as_it_is_has_no_layout() -> None:
    assert (
        layout_of_entry(PlannedWeight(target="t", pieces=(SourcePiece(source="a"),)), {"a": (2, 2)}) is None
    )


def test_rotary_turns_are_known_by_their_steps() -> None:
    assert rotary_turns(ENTRIES) == [(2, 4)]
