"""Clipping inside the loop over microbatches, told from what each microbatch of each rank counts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.diagnosing.made_steps import Array, Slots, drawn, run, step
from trueup.comparing.result import Comparison
from trueup.comparing.run import compare_sources
from trueup.diagnosing.stages.clipped_between import clipped_between_findings
from trueup.diagnosing.stages.context import Context
from trueup.store import Trace
from trueup.store.view import ACCUMULATED, CLIPPED, LOCAL, WEIGHT
from trueup.types.codes import ClippingCode
from trueup.types.finding import Finding

NAMES = ("a.weight", "b.weight", "c.weight")
PARTS = 2


def length(arrays: list[Array]) -> float:
    return math.hypot(*(float(np.linalg.norm(one)) for one in arrays))


def trained(
    path: Path,
    *,
    ranks: int = 2,
    limit: float | None = None,
    factor: float = 1.0,
    last: float = 1.0,
    only: int | None = None,
    at_end: float | None = None,
    parts: int = PARTS,
    each: bool = False,
) -> Trace:
    """Gradients averaged over ranks with the last microbatch. What the first left is clipped to ``limit`` or
    multiplied by ``factor``, of one weight ``only``; what the last adds by ``last``; the whole is clipped to
    ``at_end``. ``each``: the sum is clipped to ``limit`` after each microbatch but the last."""
    given = [
        [[drawn(100 * r + 10 * m + w) for w in range(len(NAMES))] for m in range(parts)] for r in range(ranks)
    ]
    total: list[Array] = [np.zeros((8, 8), np.float32) for _ in NAMES]
    for microbatches in given:
        summed: list[Array] = [np.zeros((8, 8), np.float32) for _ in NAMES]
        for m, made in enumerate(microbatches):
            is_last = m == parts - 1
            summed = [
                one + np.float32(last if is_last else 1.0) * more
                for one, more in zip(summed, made, strict=True)
            ]
            is_cut = not is_last and (each or not m)
            scale = factor if limit is None else min(1.0, limit / length(summed))
            if is_cut:
                counts = [scale if only in (None, w) else 1.0 for w in range(len(NAMES))]
                summed = [np.float32(count) * one for count, one in zip(counts, summed, strict=True)]
        total = [one + more / ranks for one, more in zip(total, summed, strict=True)]
    cut = np.float32(1.0 if at_end is None else min(1.0, at_end / length(total)))
    made = []
    for rank in range(ranks):
        slots: dict[str, Slots] = {
            name: {
                WEIGHT: drawn(500 + w),
                LOCAL: [given[rank][m][w] for m in range(parts)],
                ACCUMULATED: total[w],
                CLIPPED: total[w] * cut,
            }
            for w, name in enumerate(NAMES)
        }
        made.append(step(slots))
    return run(path, made)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Of any two runs: what microbatches count is asked of the runs themselves."""
    plain = trained(tmp_path_factory.mktemp("runs") / "plain")
    return compare_sources(plain, plain)


def findings(target: Trace, reference: Trace, comparison: Comparison) -> list[Finding]:
    return clipped_between_findings(Context(target=target, reference=reference, comparison=comparison))


@pytest.mark.parametrize(
    "target", [{"limit": 1.0}, {"limit": 13.7}, {"limit": 1.0, "ranks": 1, "at_end": 1.0}]
)
def test_what_the_first_microbatch_left_is_clipped(
    target: dict[str, float], tmp_path: Path, comparison: Comparison
) -> None:
    """13.7 cuts one of the two ranks alone, and is then known from what is clipped to at last."""
    ranks = int(target.get("ranks", 2))
    plain = {"at_end": 13.7} if target["limit"] > 1 else {}
    sides = [
        trained(tmp_path / "target", **{**plain, **target}),  # type: ignore[arg-type]
        trained(tmp_path / "reference", ranks=ranks, **plain),
    ]
    (found,) = findings(*sides, comparison)
    ends_alike = target.get("at_end") == target["limit"]
    assert found.headline.code is (ClippingCode.CLIPPED_EACH if ends_alike else ClippingCode.CLIPPED_BETWEEN)
    assert found.headline.number("limit") == pytest.approx(target["limit"], rel=1e-3)
    counted = found.evidence[1]
    assert counted.code is ClippingCode.FIRST_COUNTS
    ranks_of = [
        [float(str(one)) for one in found_of]
        for found_of in (counted.facts["factors"], counted.facts["norms"])
    ]
    clipped = [factor * norm for factor, norm in zip(*ranks_of, strict=True) if factor < 1]
    assert clipped == pytest.approx([target["limit"]] * len(clipped), rel=0.02)
    assert len(clipped) in (1, ranks)
    assert [one.code for one in found.causes] == [ClippingCode.CLIP_ONCE]
    assert found.next_note is not None
    assert found.next_note.code is ClippingCode.CLIP_AFTER_LAST


@pytest.mark.parametrize(
    "target",
    [
        {},
        {"limit": 1e3},
        {"factor": 0.5},
        {"factor": 2.0},
        {"factor": 0.0},
        {"last": 0.5},
        {"limit": 1.0, "only": 1},
        {"factor": 0.5, "ranks": 1, "at_end": 1.0},
        {"limit": 1.0, "ranks": 1},
    ],
    ids=[
        "alike",
        "not cut",
        "another factor",
        "counts twice",
        "cleared",
        "last counts less",
        "one weight",
        "another factor of one process",
        "nothing tells the limit",
    ],
)
def test_other_factors_are_no_clipping(
    target: dict[str, float], tmp_path: Path, comparison: Comparison
) -> None:
    ranks = int(target.get("ranks", 2))
    sides = trained(tmp_path / "target", **target), trained(tmp_path / "reference", ranks=ranks)  # type: ignore[arg-type]
    assert findings(*sides, comparison) == []


def test_both_clip_in_between(tmp_path: Path, comparison: Comparison) -> None:
    sides = trained(tmp_path / "target", limit=1.0), trained(tmp_path / "reference", limit=2.0)
    assert findings(*sides, comparison) == []


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"each": True, "at_end": 1.0}, ClippingCode.CLIPPED_EACH),
        ({"each": True, "at_end": 1.0, "parts": 4}, ClippingCode.CLIPPED_EACH),
        ({"each": False, "at_end": 1.0}, ClippingCode.CLIPPED_BETWEEN),
    ],
    ids=["after each of 3", "after each of 4", "after the first of 3"],
)
def test_clipped_after_every_microbatch(
    given: dict[str, Any], code: ClippingCode, tmp_path: Path, comparison: Comparison
) -> None:
    plain = {"ranks": 1, "parts": 3, **given}
    target = trained(tmp_path / "target", limit=1.0, **plain)
    reference = trained(tmp_path / "reference", ranks=1, parts=plain["parts"], at_end=1.0)
    (found,) = findings(target, reference, comparison)
    assert found.headline.code is code
    assert found.headline.number("limit") == pytest.approx(1.0, rel=1e-3)
