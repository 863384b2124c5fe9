"""What is said of parts of ranks that are put together, checked from the parts."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from trueup.merging.assembling import Member, assembled
from trueup.merging.infer import InferredLayout
from trueup.merging.nodes import RankPart, Unfit
from trueup.merging.sides import of_side
from trueup.merging.step import MergedStep, copies_reason
from trueup.merging.summary import summary_of_values
from trueup.merging.trace import MergedTrace
from trueup.types.codes import MergingCode as Code
from trueup.types.codes import RecordCode
from trueup.types.layout import Layout, Placed
from trueup.types.placement import At, Invariant, Shard
from trueup.types.reason import reason
from trueup.wording import text

RANDOM = np.random.default_rng(46)
LAYOUT = Layout(mesh={"dp": 2, "tp": 3})


def member(values: np.ndarray, rank: int, stage: int = 0) -> Member:  # type: ignore[type-arg]
    part = RankPart(rank, summary_of_values(values, "float64"), lambda: values)
    return Member(part=part, coordinate={"dp": rank // 3, "tp": rank % 3}, stage=stage)


def test_copies_on_any_ranks() -> None:
    """Each rank that is named holds another tensor than the first of its group."""
    for _ in range(60):
        whole = RANDOM.standard_normal((3, 4))
        kinds = RANDOM.integers(0, 3, 6) * (RANDOM.random(6) < 0.3)
        tensors = [whole * (1 + 0.1 * kind) for kind in kinds]
        placed = Placed({"dp": Invariant(), "tp": Invariant()}, None)
        _, copies = assembled([member(one, rank) for rank, one in enumerate(tensors)], placed, LAYOUT)
        said = copies_reason(copies)
        assert {part.code for part in said.parts} <= {RecordCode.COPY_DIFFERS}
        named = {int(rank) for part in said.parts for rank in part.facts["ranks"]}  # type: ignore[union-attr]
        assert bool(named) is (len(set(kinds.tolist())) > 1)
        for part in said.parts:
            axis, ranks = part.place("axis"), [int(one) for one in part.facts["ranks"]]  # type: ignore[union-attr]
            for rank in ranks:
                assert kinds[rank] != kinds[rank % 3 if axis == "dp" else rank - rank % 3], (
                    kinds,
                    axis,
                    ranks,
                )
            farthest = max(abs(kinds[rank] - kinds[other]) * 0.1 for rank in ranks for other in range(6))
            assert part.number("rel_l2") is None or part.number("rel_l2") <= farthest * 1.5 + 1e-9  # type: ignore[operator]
            assert (text(part).startswith("ranks ")) is (len(ranks) > 1)


@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_a_tensor_of_a_stage(wanted: int) -> None:
    layout = Layout(mesh={"pp": 3}, pipeline="pp", stages=((0,), (1,), (2,)))
    for stages in ((0, 1, 2), (0, 2), (1,)):
        members = [
            Member(part=member(RANDOM.standard_normal(4), rank).part, coordinate={"pp": stage}, stage=stage)
            for rank, stage in enumerate(stages)
        ]
        placed = Placed({"pp": At(wanted)}, None)
        if wanted in stages:
            assembled(members, placed, layout)
            continue
        with pytest.raises(Unfit) as error:
            assembled(members, placed, layout)
        assert error.value.reason == reason(Code.STAGE_WITHOUT_RANK, stage=wanted)


def test_notes_on_what_was_put_together() -> None:
    for num in (0, 1, 3, 9):
        names = [f"norm.{at}" for at in range(num)]
        notes = InferredLayout(layout=LAYOUT, counts=Counter({"shard(0)": 3}), unknown=names).notes()
        left = [note for note in notes if note.code is Code.NO_PLACEMENT_FITS]
        assert [note.number("tensors") for note in left] == ([num] if num else [])
        assert all(set(note.facts["examples"]) <= set(names) for note in left)  # type: ignore[arg-type]
        unfit = [
            reason(Code.RECORD_NOT_MERGED, reason(Code.RANK_WITHOUT_SUMMARY, rank=at), record=name)
            for at, name in enumerate(names)
        ]
        trace = MergedTrace.__new__(MergedTrace)
        trace.notes = {}  # type: ignore[assignment]
        differing = assembled(
            [member(np.ones(4), 0), member(np.zeros(4), 1)],
            Placed({"tp": Invariant()}, None),
            Layout(mesh={"tp": 2}),
        )[1]
        fields = dict.fromkeys(MergedStep.__dataclass_fields__)
        made = MergedStep(
            **{**fields, "notes": [], "unfit": unfit, "copies": [(n, differing) for n in names]}
        )  # type: ignore[arg-type]
        trace._note(made)
        said = list(trace.notes)
        whole = [note for note in said if note.code is Code.RECORDS_NOT_MERGED]
        assert [note.number("records") for note in whole] == ([num] if num else [])
        assert all(set(note.parts) <= set(unfit) for note in whole)
        total = [note for note in said if note.code is Code.COPIES_DIFFER]
        shown = [note for note in said if note.code is Code.COPIES_OF_TENSOR_DIFFER]
        assert [note.number("tensors") for note in total] == ([num] if num > len(shown) else [])
        for note in said:
            assert text(of_side("target", note)) == f"target: {text(note)}"
            assert of_side("target", note) == reason(Code.SIDE, note, side="target")
    with pytest.raises(Unfit) as error:
        assembled(
            [member(np.ones((2, 3)), 0), member(np.ones((2, 4)), 1)], Placed({"tp": Shard(0)}, None), LAYOUT
        )
    parts = reason(RecordCode.PARTS_NOT_MERGED, error.value.reason, num_ranks=2)
    assert text(parts).startswith("the parts of 2 ranks were not merged: ")
