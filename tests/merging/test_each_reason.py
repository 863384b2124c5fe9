"""Why parts make no whole: each reason where it is true, and the same parts where they do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.diagnosing.made_steps import context_of, facts_of, gradients, run, step
from trueup.merging.assembling import Member, OwnPlace, assembled
from trueup.merging.nodes import Join, RankPart, Seen, Sum, Unfit, rounded
from trueup.merging.summary import summary_of_values
from trueup.store.view import ACCUMULATED
from trueup.types.codes import MergingCode as Code
from trueup.types.layout import Layout, Placed
from trueup.types.placement import Shard

LAYOUT = Layout(mesh={"tp": 2})


def part(*shape: int, rank: int = 0) -> RankPart:
    values = np.random.default_rng(rank).standard_normal(shape)
    return RankPart(rank, summary_of_values(values, "float64"), lambda: values)


def members(first: tuple[int, ...], second: tuple[int, ...], **own: Any) -> list[Member]:
    """Parts of two ranks."""
    return [
        Member(
            part=part(*shape, rank=rank),
            coordinate={"tp": rank},
            own=OwnPlace(axes=("tp",), offset=(rank * first[0],), shape=(8,), flat=True) if own else None,
        )
        for rank, shape in enumerate((first, second))
    ]


def whole(parts: list[Member], shard: Shard | None = None, split: tuple[int, ...] | None = None) -> object:
    placements = {} if shard is None else {"tp": shard}
    return assembled(parts, Placed(placements, split), LAYOUT)


ZIGZAG = Shard(0, zigzag=True)


@pytest.mark.parametrize(
    ("code", "unfit", "fits"),
    [
        (
            Code.NOT_DIVISIBLE,
            lambda: whole(members((5, 2), (5, 2)), Shard(1), (2, -1)),
            lambda: whole(members((6, 2), (6, 2)), Shard(1), (2, -1)),
        ),
        (
            Code.PIECES_INCOMPLETE,
            lambda: whole(members((4,), (3,), flat=True)),
            lambda: whole(members((4,), (4,), flat=True)),
        ),
        (
            Code.LENGTHS_DIFFER,
            lambda: whole(members((6, 2), (2, 2)), ZIGZAG),
            lambda: whole(members((4, 2), (4, 2)), ZIGZAG),
        ),
        (Code.TERMS_DIFFER, lambda: Sum([part(4), part(5)]), lambda: Sum([part(4), part(4)])),
        (Code.SIZE_DIFFERS, lambda: Seen(part(4, 2), (3, 3)), lambda: Seen(part(4, 2), (2, 4))),
        (
            Code.SUM_NOT_ROUNDED,
            lambda: rounded(np.ones(3), "float8_e4m3fn"),
            lambda: rounded(np.ones(3), "bfloat16"),
        ),
        (
            Code.SHAPES_DIFFER,
            lambda: Join([part(4, 2), part(4, 3)], 0, None),
            lambda: Join([part(4, 2), part(3, 2)], 0, None),
        ),
    ],
    ids=lambda value: value.value if isinstance(value, Code) else "",
)
def test_parts_that_make_no_whole(
    code: Code, unfit: Callable[[], object], fits: Callable[[], object]
) -> None:
    with pytest.raises(Unfit) as error:
        unfit()
    assert error.value.reason.code is code
    fits()


STAGES = {
    "version": 1,
    "mesh": {"pp": 2},
    "pipeline": {"axis": "pp", "stages": [[0], [1]]},
}


@pytest.mark.parametrize("whole", [True, False])
def test_gradients_that_a_schedule_shows_of_some_weights_only(tmp_path: Path, whole: bool) -> None:
    """Of two stages, one may run parts of backward by itself."""
    shown = {slot: held for slot, held in gradients(2).items() if whole or slot != ACCUMULATED}
    target = run(tmp_path / "t", [step({"a": gradients(1)}), step({"b": shown})], layout=STAGES)
    reference = run(tmp_path / "r", step({"a": gradients(1), "b": gradients(2)}))
    facts = facts_of(context_of(target, reference).comparison.content.notes, Code.GRADIENTS_LEFT_OUT)
    assert facts == (None if whole else {"parameters": 1})
