"""What is said of how two runs clip, checked of any two ways from the gradients before and after alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.diagnosing.made_steps import (
    Array,
    codes_of,
    context_of,
    drawn,
    facts_of,
    gradients,
    passed,
    run,
    said_by,
    step,
)
from trueup.diagnosing.stages.protocol import StageOutcome, StageStatus
from trueup.diagnosing.stages.reduction import ReductionStage
from trueup.merging.sides import as_wholes
from trueup.store.view import ACCUMULATED, CLIPPED, LOCAL, UPDATED, WEIGHT
from trueup.types.codes import ClippingCode as Clip
from trueup.types.codes import StagesCode as Stages
from trueup.types.finding import Stage
from trueup.types.reason import Reason
from trueup.wording import text

NAMES = ("a.w", "b.w", "c.w", "d.w", "e.w")
W = drawn(0)


@dataclass(frozen=True)
class Way:
    """What a program does to all its gradients."""

    name: str
    number: float = 1.0
    size: float = 1.0
    """of the gradients before"""
    reports: bool = False

    def before(self) -> dict[str, Array]:
        return {name: drawn(10 + at) * np.float32(self.size) for at, name in enumerate(NAMES)}

    def after(self) -> dict[str, Array]:
        held = self.before()
        whole = norm_of(held)
        if self.name == "norm":
            return {n: g * np.float32(min(1.0, self.number / whole)) for n, g in held.items()}
        if self.name == "value":
            return {n: np.clip(g, -self.number, self.number).astype(np.float32) for n, g in held.items()}
        if self.name == "one":
            return {n: g * np.float32(self.number if n == "c.w" else 1.0) for n, g in held.items()}
        return {n: g * np.float32(self.number) for n, g in held.items()}

    def trace(self, folder: Path) -> Any:
        before, after = self.before(), self.after()
        parts = {n: {WEIGHT: W, LOCAL: before[n], ACCUMULATED: before[n], CLIPPED: after[n]} for n in NAMES}
        return run(folder, step(parts), lines=[{"grad_norm": norm_of(before)}] if self.reports else [{}])


def norm_of(of: dict[str, Array]) -> float:
    return math.sqrt(sum(float(np.vdot(one, one)) for one in of.values()))


def factor_of(way: Way) -> float | None:
    """The factor that all gradients have; None where they have none."""
    before, after = way.before(), way.after()
    factors = np.concatenate([(after[n] / before[n]).ravel() for n in NAMES])
    return float(np.median(factors)) if np.ptp(factors) < 1e-5 else None


def true_of_run(said: Reason, way: Way) -> bool:
    """Whether what is said of one run is true of it."""
    facts, before, after, factor = said.facts, norm_of(way.before()), norm_of(way.after()), factor_of(way)
    near = lambda one, two: math.isclose(one, two, rel_tol=1e-3)  # noqa: E731
    if said.code is Clip.NOT_CLIPPED:
        return near(facts["norm"], before) and all(
            np.array_equal(way.before()[n], way.after()[n]) for n in NAMES
        )
    if said.code is Clip.TO_NORM:
        return near(facts["norm"], before) and near(facts["clipped"], after) and 0 < after < before
    if said.code is Clip.MULTIPLIED:
        return factor is not None and near(facts["factor"], factor) and not 0 < factor <= 1
    if said.code is Clip.AT_VALUE:
        largest = max(float(np.abs(one).max()) for one in way.after().values())
        return near(facts["limit"], largest) and factor is None
    if said.code is Clip.SCALED_UNCUT:
        return factor is not None and near(facts["scaled"], after)
    assert said.code is Clip.BY_PARAMETER
    return factor is None


def check(said: Reason, own: Way, other: Way) -> None:
    facts = said.facts
    sides = {"target": own, "reference": other}
    if said.code is Clip.BOTH:
        assert all(true_of_run(part, way) for part, way in zip(said.parts, sides.values(), strict=True)), (
            text(said)
        )
    elif said.code is Clip.NORM_DIFFERS:
        for side, way in sides.items():
            assert facts[side] == pytest.approx(norm_of(way.after()), rel=1e-3)
            assert 0 < (factor_of(way) or 0.0) < 1, text(said)
        assert abs(facts["target"] / facts["reference"] - 1) > 1e-3
    elif said.code in (Clip.TARGET_ONLY, Clip.REFERENCE_ONLY):
        cut, uncut = (own, other) if said.code is Clip.TARGET_ONLY else (other, own)
        assert (factor_of(uncut), 0 < (factor_of(cut) or 0.0) < 1) == (1.0, True), text(said)
        assert norm_of(uncut.after()) > norm_of(cut.after()) or uncut.size < cut.size
        for side, way in sides.items():
            assert facts[side] == pytest.approx(norm_of(way.after()), rel=1e-3)
    elif said.code is Clip.METHOD_DIFFERS:
        assert own.name != other.name
        for way, there in ((own, other), (other, own)):  # nothing that is below a value is cut at it
            if there.name == "value" and factor_of(way) == 1:
                assert max(float(np.abs(one).max()) for one in way.before().values()) > there.number
    elif said.code is Clip.MULTIPLIED_DIFFERS:
        for side, way in sides.items():
            assert facts[side] == pytest.approx(factor_of(way), rel=1e-3)
        assert any(not 0 < facts[side] <= 1 for side in sides)
    elif said.code is Clip.VALUES_DIFFER:
        assert (facts["target"], facts["reference"]) == (
            pytest.approx(own.number),
            pytest.approx(other.number),
        )
    elif said.code in (Stages.BOTH_ALIKE,):
        assert same_clipping(own, other), text(said)
    elif said.code is Stages.SCALED:
        after = [way.after()["c.w"] / way.before()["c.w"] for way in (own, other)]
        common = [abs(factor_of(way) or 1.0) for way in (own, other)]  # clipping's own is told beside it
        assert facts["factor"] == pytest.approx(
            np.median(after[0] / after[1]) * common[1] / common[0], rel=1e-3
        )
        assert "relative to the reference" in text(said)
    elif said.code is Clip.SCALED_BEFORE:
        pytest.fail(f"{text(said)}: of no program here")


def same_clipping(own: Way, other: Way) -> bool:
    """Whether one limit (of the norm, of elements, or none) makes of both what became of them."""
    if own.name == other.name and own.number == other.number:
        return True
    return all(np.array_equal(w.before()[n], w.after()[n]) for w in (own, other) for n in NAMES) or (
        own.size != other.size
        and any(
            factor_of(w) == 1 and norm_of(w.after()) <= norm_of(v.after()) * 1.001
            for w, v in ((own, other), (other, own))
        )
    )


SMALL = 0.25
WAYS = (
    Way("times", 1.0),
    Way("times", 1.0, SMALL),
    Way("norm", 5.0),
    Way("norm", 5.0, SMALL),
    Way("norm", 3.0, reports=True),
    Way("value", 0.5),
    Way("value", 1.0),
    Way("times", 2.0),
    Way("times", -1.0),
    Way("times", 0.0),
    Way("times", 0.5, 4.0),
    Way("one", 0.5),
)


def findings_of(own: Any, other: Any) -> StageOutcome:
    return ReductionStage().check(
        context_of(own, other, earlier=[passed(Stage.BACKWARD, StageStatus.CONSEQUENCE)])
    )


def test_two_ways_to_clip(tmp_path: Path) -> None:
    """Some pairs of ways, each in one of the two orders."""
    traces = [way.trace(tmp_path / f"{at}") for at, way in enumerate(WAYS)]
    seen: set[Any] = set()
    for one, two in product(range(len(WAYS)), repeat=2):
        if (one * 5 + two * 3) % 5 and (one, two) != (0, 2):  # the reference alone clips to a norm
            continue
        outcome = findings_of(traces[one], traces[two])
        said = [outcome.conclusion, *outcome.evidence, *said_by(outcome.findings)]
        for sentence in said:
            check(sentence, WAYS[one], WAYS[two])
        after = [way.after() for way in (WAYS[one], WAYS[two])]
        if WAYS[one].size == WAYS[two].size and any(
            not np.array_equal(after[0][n], after[1][n]) for n in NAMES
        ):
            assert bool(outcome.findings), (WAYS[one], WAYS[two])
        seen |= codes_of(said)
    told = {
        Clip.NOT_CLIPPED,
        Clip.TO_NORM,
        Clip.AT_VALUE,
        Clip.BOTH,
        Clip.MULTIPLIED,
        Clip.NOT_CALLED_CAUSE,
        Clip.LIMIT_CAUSE,
        Clip.NORM_CAUSE,
    }
    told |= {
        Clip.COMPARE_CODE,
        Clip.VALUES_DIFFER,
        Clip.VALUE_CAUSE,
        Clip.METHOD_DIFFERS,
        Clip.MULTIPLIED_DIFFERS,
    }
    assert seen >= told | {Stages.BOTH_ALIKE}, told - seen


def by_rank(*factors: float, **manifest: Any) -> Any:
    """Ranks of one weight, each with a factor of its own."""
    made = [step({n: gradients(at, factor) for at, n in enumerate(NAMES)}) for factor in factors]
    return [made], manifest


@pytest.mark.parametrize(
    ("target", "reference", "code"),
    [
        ((0.5, 0.5), (1.0, 1.0), Clip.SCALED_BY_RANKS),
        ((2.0, 2.0), (1.0, 1.0), Clip.SCALED_BY_RANKS),
        ((0.4, 0.4), (1.0, 1.0), Clip.TARGET_ONLY),
        ((1.0, 1.0), (1.0, 1.0), None),
    ],
)
def test_factors_of_as_many_ranks(tmp_path: Path, target: Any, reference: Any, code: Clip | None) -> None:
    traces = [run(tmp_path / name, *by_rank(*of)[0]) for name, of in (("t", target), ("r", reference))]
    findings = findings_of(*traces).findings
    assert [one.headline.code for one in findings] == ([] if code is None else [code])
    if code is Clip.SCALED_BY_RANKS:
        facts = findings[0].headline.facts
        assert (facts["factor"], facts["size"]) == (pytest.approx(target[0]), 2)
        assert math.isclose(facts["factor"], 2) or math.isclose(facts["factor"], 1 / 2)


def copies(*changed: dict[str, float]) -> Any:
    """Ranks that hold one model; the gradients that their optimizers get, times a factor here and there."""
    made = []
    for of in changed:
        parts = {}
        for at, name in enumerate(("a.w", "b.w", "c.w")):
            given = gradients(at)[CLIPPED] * np.float32(of.get(name, 1.0))
            parts[name] = {**gradients(at), CLIPPED: given, UPDATED: W - given}
        made.append(step({**parts, "frozen.w": {WEIGHT: W}}, loss=2.0))
    return made


LAYOUT = {
    "version": 1,
    "mesh": {"dp": 4},
    "parameters": [{"name": "*", "dp": "invariant"}],
    "tensors": [],
    "batch": ["dp"],
}
COPIES: list[list[dict[str, float]]] = [
    [{}, {"a.w": 1.5}, {}, {}],
    [{}, {"a.w": 1.5}, {}, {"b.w": 1.5}],
    [{}, {"a.w": 1.5}, {"a.w": 1.5}, {}],
    [{}, {}, {}, {}],
]


@pytest.mark.parametrize("changed", COPIES, ids=["one", "two of two", "two of one", "none"])
def test_copies_of_gradients(tmp_path: Path, changed: list[dict[str, float]]) -> None:
    target = run(tmp_path / "t", copies(*changed), layout=LAYOUT)
    reference = run(tmp_path / "r", copies({})[0])
    sides = as_wholes(target, reference)
    said = said_by(ReductionStage().check(context_of(sides.target, sides.reference)).findings)
    apart = {name for of in changed for name in of}
    facts = facts_of(said, Clip.COPY_DIFFERS)
    assert (facts is not None) is bool(apart)
    if facts is None:
        return
    held = [of.get(str(facts["parameter"]), 1.0) for of in changed]
    named = {held[int(rank)] for rank in facts["ranks"]}
    assert len(named) == 1
    assert named.isdisjoint({one for rank, one in enumerate(held) if str(rank) not in facts["ranks"]})
    assert Clip.AMONG_RANKS in {
        one.code
        for f in ReductionStage().check(context_of(sides.target, sides.reference)).findings
        for one in f.counter_evidence
    }
    assert facts_of(said, Stages.NUM_GRADIENTS) == {
        "num": len(apart),
        "total": 3,
    }  # one weight has no gradient
    lone = facts_of(said, Clip.ON_RANKS)
    if lone is not None:
        assert set(lone["ranks"]) == {str(rank) for rank, of in enumerate(changed) if of}
    reduced = facts_of(said, Stages.NOT_REDUCED)
    assert reduced is None or reduced["axes"] == ("dp",)
