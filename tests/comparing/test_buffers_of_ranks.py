"""Buffers that another rank than the first left otherwise."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trueup.comparing.buffers import buffer_gaps
from trueup.types.codes import EvidenceCode

FIRST, SECOND = {"bn.mean": 4.0, "bn.var": 9.0}, {"bn.mean": 2.0, "bn.var": 7.0}


def run(second: dict[str, float], *, ranks: int = 2, first: dict[str, float] | None = None) -> Any:
    """Two steps of two ranks; what the ranks leave in the second step."""
    lines = [
        [(0, FIRST), (1, first or {"bn.mean": 5.0, "bn.var": 8.0})],
        [(0, SECOND), (1, second)],
    ]
    held = [[{"step": step, "buffers": of, "buffer_sums": of} for step, of in rank] for rank in lines[:ranks]]
    return SimpleNamespace(
        steps=lambda: {0: list(range(ranks)), 1: list(range(ranks))},
        scalars=lambda rank: held[rank],
        rank_facts=lambda rank: {"buffers": []},
    )


def kept(beginning: dict[str, float], momentum: float = 0.1, batch: float = 6.0) -> dict[str, float]:
    return {name: (1 - momentum) * one + momentum * batch for name, one in beginning.items()}


STEPS = {0: 0, 1: 1}


@pytest.mark.parametrize("side", ["target", "reference"])
def test_a_rank_that_follows_the_first_in_one_run(side: str) -> None:
    runs = {"follows": run(kept(FIRST)), "own": run(kept(SECOND))}
    order = ("follows", "own") if side == "target" else ("own", "follows")
    gaps = buffer_gaps(runs[order[0]], runs[order[1]], STEPS)
    assert {(one.fqn, one.step, one.rank) for one in gaps.written} == {("bn.mean", 1, 1), ("bn.var", 1, 1)}
    (follows,) = gaps.follow
    assert (follows.code, follows.place("side")) == (EvidenceCode.BUFFERS_FOLLOW, side)


def test_other_buffers_of_a_rank_follow_none() -> None:
    gaps = buffer_gaps(run({"bn.mean": 1.0, "bn.var": 30.0}), run(kept(SECOND)), STEPS)
    assert len(gaps.written) == 2
    assert gaps.follow == ()


def test_what_all_ranks_leave_alike_is_no_gap() -> None:
    assert not buffer_gaps(run(kept(SECOND)), run(kept(SECOND)), STEPS).written
    assert not buffer_gaps(run(kept(SECOND), ranks=1), run(kept(SECOND)), STEPS).written
