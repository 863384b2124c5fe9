"""Ranks that hold parts of the gradients and clip them together: what is told is the norm of all ranks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.diagnosing.made_steps import Slots, context_of, drawn, facts_of, run, said_by, step
from trueup.diagnosing.stages.clipping import clipping_findings, norms_of_own_parts
from trueup.store import Trace
from trueup.store.view import ACCUMULATED, CLIPPED, LOCAL, WEIGHT
from trueup.types.codes import ClippingCode

NAMES = ("a.weight", "b.weight")
HELD = [{name: drawn(10 * rank + at) for at, name in enumerate(NAMES)} for rank in range(2)]
RANK = [math.hypot(*(float(np.linalg.norm(one)) for one in held.values())) for held in HELD]
TOGETHER = math.hypot(*RANK)


def sharded(path: Path, *, limit: float | None, each: bool = False) -> Trace:
    """Two ranks; ``each``: a rank takes the norm of its own part."""
    ranks = []
    for rank, held in enumerate(HELD):
        norm = RANK[rank] if each else TOGETHER
        factor = np.float32(1.0 if limit is None else min(1.0, limit / norm))
        slots: dict[str, Slots] = {
            name: {WEIGHT: drawn(100 + rank), LOCAL: made, ACCUMULATED: made, CLIPPED: made * factor}
            for name, made in held.items()
        }
        ranks.append(step(slots))
    return run(path, ranks)


@pytest.mark.parametrize(("limits", "code"), [
    ((None, 1.0), ClippingCode.REFERENCE_ONLY),
    ((1.0, None), ClippingCode.TARGET_ONLY),
    ((2.0, 1.0), ClippingCode.NORM_DIFFERS),
])  # fmt: skip
def test_the_norm_is_that_of_all_ranks(
    limits: tuple[float | None, float | None], code: ClippingCode, tmp_path: Path
) -> None:
    sides = [sharded(tmp_path / str(at), limit=limit) for at, limit in enumerate(limits)]
    found, _ = clipping_findings(context_of(*sides))
    told = facts_of(said_by(found), code)
    assert told is not None
    expected = [TOGETHER if limit is None else limit for limit in limits]
    assert [told["target"], told["reference"]] == pytest.approx(expected, rel=1e-4)


def test_norms_of_each_rank_are_no_norm_of_all(tmp_path: Path) -> None:
    """Near miss: ranks that scale their parts by factors of their own have no common norm."""
    sides = sharded(tmp_path / "target", limit=1.0, each=True), sharded(tmp_path / "reference", limit=1.0)
    found, _ = clipping_findings(context_of(*sides))
    assert facts_of(said_by(found), ClippingCode.NORM_OF_OWN_PART) is not None


def shared(path: Path, *, limit: float, each: bool, clipped: bool = True) -> Trace:
    """Two ranks; what they share is summed over them by the program, then all is clipped by one norm."""
    parts = [drawn(50 + rank) for rank in range(2)]
    ranks = []
    for rank, held in enumerate(HELD):
        summed = {"shared.weight": parts[0] + parts[1]}
        norms = [float(np.linalg.norm(one)) for one in (*held.values(), *summed.values())]
        whole = math.hypot(TOGETHER, norms[-1])
        factor = np.float32(limit / (math.hypot(*norms) if each else whole)) if clipped else np.float32(1)
        left = {**held, "shared.weight": parts[rank]}
        slots: dict[str, Slots] = {
            name: {WEIGHT: drawn(100), LOCAL: left[name], ACCUMULATED: left[name], CLIPPED: made * factor}
            for name, made in (held | summed).items()
        }
        ranks.append(step(slots))
    return run(path, ranks)


@pytest.mark.parametrize(
    ("target", "is_own"),
    [
        ({"limit": 1.0, "each": True}, True),
        ({"limit": 1.0, "each": False}, False),
        ({"limit": 2.0, "each": True}, False),
        ({"limit": 2.0, "each": False}, False),
        ({"limit": 1.0, "each": False, "clipped": False}, False),
    ],
    ids=["own norms", "one norm", "own norms, another limit", "another limit", "not clipped"],
)
def test_own_norms_where_some_gradients_are_summed_in_between(
    target: dict[str, Any], is_own: bool, tmp_path: Path
) -> None:
    """No factor of all gradients tells then: of a summed one it is the sum's."""
    sides = shared(tmp_path / "target", **target), shared(tmp_path / "reference", limit=1.0, each=False)
    found = norms_of_own_parts(context_of(*sides), ("norm", "later"))
    assert (found is not None) is is_own
    if found is not None:
        assert found.headline.number("reference") == pytest.approx(1.0, rel=1e-4)
        assert float(found.headline.number("together") or 0) > 1.1
