"""What is said of a curve and its reference, checked of simulated ones from the arrays alone."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.curves.simulating import Truth, simulate
from tests.diagnosing.made_steps import codes_of
from trueup.curves.comparison import CurveComparison, Options, compare_curves
from trueup.curves.curve import Curve
from trueup.types.arrays import Floats
from trueup.types.codes import CriterionCode
from trueup.types.codes import CurvesCode as Curves
from trueup.types.reason import Reason
from trueup.wording import text

NUM = 1200
CALM = Truth(num_steps=NUM, sigma=0.002, spike_rate=0.0, data_sigma=0.005)


def changed(curve: Curve, **columns: Floats) -> Curve:
    return replace(curve, frame=curve.frame.with_columns(**{n: pl.Series(of) for n, of in columns.items()}))


def lost(of: Floats, where: slice) -> Floats:
    found = of.copy()
    found[where] = math.nan
    return found


STEPS = np.arange(NUM)
CASES: dict[str, Any] = {
    "nothing": lambda loss: loss,
    "offset": lambda loss: loss + 0.2,
    "small offset": lambda loss: loss + 0.001,
    "first": lambda loss: loss + 0.5 * (STEPS == 0),
    "late": lambda loss: loss + 0.3 * (STEPS > 900),
    "grows": lambda loss: loss + 0.5 * np.maximum(0, STEPS - 600) / 600,
    "jump": lambda loss: loss + 1.5 * (STEPS > 500),
    "spike": lambda loss: loss + 2.0 * np.exp(-np.maximum(0, STEPS - 700) / 20) * (STEPS >= 700),
    "stuck": lambda loss: np.where(STEPS > 60, loss[60], loss) + 0.001 * np.sin(STEPS),
    "lost": lambda loss: lost(loss, slice(800, None)),
    "lost for a while": lambda loss: lost(loss, slice(300, 305)),
    "scatter": lambda loss: loss + 0.3 * np.where(STEPS % 2, 1, -1),
    "early": lambda loss: loss + 0.4 * (STEPS > 20),
    "passes": lambda loss: loss + 0.5 * ((STEPS > 400) & (STEPS < 600)),
}


def compared(target: Curve, references: list[Curve]) -> CurveComparison:
    return compare_curves(target, references, Options())


def check_criteria(found: CurveComparison, target: Floats, reference: Floats, num: int) -> None:
    """The numbers of the standard, and what it asks of them."""
    apart = np.abs(target - reference)
    relative, known = apart / np.abs(reference), np.isfinite(apart)
    first = int(np.flatnonzero(np.isfinite(target) | np.isfinite(reference))[0])
    expected = {
        "first_loss": (apart[first], relative[first]),
        "mean_loss": (apart[known].mean(), relative[known].mean()),
    }
    for one in found.evidence.criteria:
        if one.key in expected:
            assert one.value.code is CriterionCode.ABS_AND_REL
            assert (one.value.facts["abs"], one.value.facts["rel"]) == pytest.approx(
                expected[one.key], nan_ok=True
            )
            assert one.threshold.code is CriterionCode.BELOW_EITHER
            numbers = dict(one.numbers)
            below = [
                expected[one.key][at] < float(numbers[n] or 0)
                for at, n in enumerate(("threshold_abs", "threshold_rel"))
            ]
            lost = one.note is not None and one.note.code is CriterionCode.LOST_LOSSES
            assert (one.status.value == "met") is (any(below) and not lost), one
        elif one.key == "steps":
            assert one.value.facts["steps"] == NUM
            assert one.note is not None
            assert one.note.code is CriterionCode.FEWER_THAN_DEFAULT
            assert int(one.note.facts["default"]) > NUM
        elif one.key == "repeats":
            assert one.value.facts == {"num": num}
            assert (one.note is not None and one.note.code is CriterionCode.NO_REPEATS) is (num < 2)
        elif one.key == "smooth" and np.isfinite(reference).all():
            rough = float(np.median(np.abs(np.diff(reference)) / reference[1:])) * 1.4826 / math.sqrt(2)
            assert one.value.facts["rel"] == pytest.approx(rough)
            assert (one.note is not None and one.note.code is CriterionCode.ROUGH) is (
                rough > one.threshold.facts["rel"]
            )


def everything(found: CurveComparison) -> list[Reason]:
    j = found.judgement
    said = [j.headline, *j.reasons, *j.remarks, *j.advice, *found.notes]
    for one in found.evidence.criteria:
        said += [one.value, one.threshold, *([one.note] if one.note else []), one.origin]
    return said


def at(facts: Any, name: str) -> int:
    """The index of a step; logs count from 1."""
    return int(facts[name]) - 1


def check(said: Reason, target: Floats, reference: Floats) -> None:
    """``target``, ``reference``: the losses, by index as by step."""
    facts, apart = said.facts, target - reference
    known = np.isfinite(apart)
    fifth = NUM // 5
    if said.code is Curves.MEAN:
        assert facts["mean"] == pytest.approx(
            apart[known].mean(), abs=3 * facts["standard_error"] + 0.02 * np.ptp(apart[known])
        )
        assert facts["low"] <= facts["mean"] <= facts["high"]
    elif said.code is Curves.FINITE_MEAN:
        assert facts["num"] == pytest.approx(known.sum(), abs=NUM // 50)
        assert not known.all()
    elif said.code is Curves.LATE_GAP:
        assert facts["gap"] == pytest.approx(np.nanmean(apart[-fifth:]), rel=0.1, abs=0.02)
    elif said.code is Curves.FIRST_LOSS:
        assert abs(apart[0]) >= 0.005
        assert abs(apart[0] / reference[0]) >= 0.005
    elif said.code is Curves.SECOND_LOSS and facts["first_agrees"]:
        assert abs(apart[0]) < 0.005 or abs(apart[0] / reference[0]) < 0.005
    elif said.code is Curves.NOT_FINITE:
        assert not np.isfinite(target[at(facts, "step")])
        assert np.isfinite(target[: at(facts, "step")]).all()
        again = facts.get("again")
        assert again is None or np.isfinite(target[at(facts, "again")])
        assert again is not None or not np.isfinite(target[-1])
    elif said.code is Curves.NOT_FINITE_STEPS:
        assert facts["num"] == (~np.isfinite(target if facts["side"] == "target" else reference)).sum()
    elif said.code in (Curves.CENTRED, Curves.WITHIN_STANDARD, Curves.WITHIN_REPEATS):
        assert facts.get("finite") == (None if known.all() else known.sum())
        assert abs(apart[known].mean()) < 0.05
    elif said.code is Curves.IDENTICAL:
        assert np.array_equal(target, reference)
    elif said.code is Curves.OFFSET:
        assert np.sign(facts["mean"]) == np.sign(np.median(apart))
    elif said.code in (Curves.LATE, Curves.EARLY_GAP, Curves.JUMP, Curves.GROWS):
        assert np.isfinite(target).all()
        after = apart[at(facts, "step") :]
        assert abs(after.mean()) > 3 * abs(apart[: max(1, at(facts, "step") - 10)].mean())
    elif said.code is Curves.SPIKE:
        assert apart[at(facts, "first") : at(facts, "last") + 1].max() == pytest.approx(
            facts["height"], rel=0.3
        )
        assert abs(apart[at(facts, "last") + 1 :].mean()) < 0.1 * facts["height"]
    elif said.code in (Curves.NO_CONVERGENCE, Curves.PLATEAU_HIGH):
        assert facts["level"] == pytest.approx(target[at(facts, "step") :].mean(), rel=0.05)
        assert facts["reference"] == pytest.approx(reference[-fifth:].mean(), rel=0.05)
    elif said.code is Curves.PLATEAU:
        own, other = (target, reference) if facts["side"] == "target" else (reference, target)
        rest = slice(at(facts, "step"), None)
        fell = [of[rest][:50].mean() - of[rest][-50:].mean() for of in (own, other)]
        assert fell[0] < fell[1]
    elif said.code is Curves.PASSES:
        inside = apart[at(facts, "first") : at(facts, "last") + 1]
        assert abs(inside.mean()) > 5 * abs(apart[at(facts, "last") + 20 :].mean())
    elif said.code is Curves.SYSTEMATIC:
        assert np.sign(facts["mean"]) == np.sign(apart[known].mean())
    elif said.code is Curves.LATE_BELOW_1_PERCENT:
        assert float(re.findall(r"([\d.]+) %", text(said))[0]) <= 1.0
    elif said.code is CriterionCode.LOST_LOSSES:
        assert facts["num"] == (~np.isfinite(target) & np.isfinite(reference)).sum()
    elif said.code is CriterionCode.BOTH_LOSSES:
        assert (facts["target"], facts["reference"]) == (
            pytest.approx(target[0]),
            pytest.approx(reference[0]),
        )


SIMULATED = simulate(CALM, 2)


@pytest.mark.parametrize("side", ["target", "reference"])
def test_two_curves(side: str) -> None:
    curve, references = SIMULATED
    seen: set[Any] = set()
    for name, change in CASES.items():
        if side == "reference" and name in ("spike", "passes", "scatter", "small offset", "early"):
            continue
        pair = [curve, references[0]]
        own = 0 if side == "target" else 1
        pair[own] = changed(pair[own], loss=change(np.asarray(pair[own].frame["loss"])))
        rest = [] if name in ("first", "scatter") or side == "reference" else references[1:]
        found = compared(pair[0], [pair[1], *rest])
        said = everything(found)
        losses = [np.asarray(one.frame["loss"]) for one in (pair[0], pair[1])]
        check_criteria(found, *losses, 1 + len(rest))
        for one in said:
            check(one, *losses)
        seen |= codes_of(said)
    if side == "target":
        assert seen >= {
            CriterionCode.STEPS,
            CriterionCode.ENOUGH_STEPS,
            CriterionCode.COUNT,
            CriterionCode.AT_LEAST,
        }
        assert seen >= {
            CriterionCode.AT_MOST,
            CriterionCode.RELATIVE,
            Curves.PLATEAU_HIGH,
            Curves.GROWS,
            Curves.SPIKE,
        }
        assert seen >= {
            Curves.SYSTEMATIC,
            Curves.PLATEAU,
            Curves.CENTRED,
            Curves.OFFSET,
            Curves.COMPARE_LOCAL_NORMS,
        }
        assert seen >= {Curves.LOOK_AT_BATCHES, Curves.LEAVE_BATCH_OUT, Curves.LOOK_FOR_OVERFLOW}
        assert seen >= {Curves.COMPARE_FIRST_FORWARD, Curves.DIAGNOSE_FIRST_STEP, Curves.CHECK_PRECISION}
        assert seen >= {Curves.OVERFLOW_CHECK, CriterionCode.LOST_LOSSES}
        assert seen >= {
            Curves.MEAN,
            Curves.NOT_FINITE,
            Curves.NOT_FINITE_STEPS,
            Curves.FINITE_MEAN,
            Curves.FIRST_LOSS,
            Curves.LATE_GAP,
        }


@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize("beyond", [0, 3])
def test_learning_rate_0(norms: bool, beyond: int) -> None:
    _curve, references = SIMULATED
    loss = np.asarray(references[0].frame["loss"]).copy()
    loss[:beyond] += 0.5
    rate = np.zeros(NUM)
    pair = []
    for of in (loss, np.asarray(references[0].frame["loss"])):
        made = changed(references[0], loss=of, learning_rate=rate)
        if not norms and "grad_norm" in made.frame.columns:
            made = replace(made, frame=made.frame.drop("grad_norm"))
        pair.append(made)
    found = compared(pair[0], [pair[1]])
    said = found.judgement.headline
    if said.has(Curves.FROZEN_AGREES):
        assert not beyond
        assert ("backward" in text(said)) is norms
        assert found.judgement.advice[0].code is Curves.LONG_TEST
    if said.has(Curves.FROZEN_DIFFERS):
        assert {one.code for one in found.judgement.advice} >= {Curves.FORWARD_ONLY, Curves.RUN_ONE_BATCH}
        assert said.facts["num"] == beyond
