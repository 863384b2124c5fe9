"""What is said of how logs are numbered, printed and repeated, of conditions and of what to do next, checked
from the arrays that logs were made of."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.curves.test_each_reason import CENTRED, NOTHING, STILL, failing, seen
from trueup.curves.aligning import align
from trueup.curves.commands import Command, commands
from trueup.curves.comparison import Options, _notes, compare_curves
from trueup.curves.conditions import conditions
from trueup.curves.curve import Curve
from trueup.curves.judgement import CurveJudgement, judge
from trueup.curves.local_norms import compare_local_norms
from trueup.curves.merging import merge
from trueup.curves.pairing import pair
from trueup.curves.reading import read_curve
from trueup.curves.standard import ADVISORY, Criterion, Met, criteria
from trueup.curves.statistics.health import rates
from trueup.curves.statistics.late import Late
from trueup.curves.statistics.onset import Onset
from trueup.curves.statistics.spikes import spikes
from trueup.types.codes import CriterionCode as Criteria
from trueup.types.codes import CurvesCode as Curves
from trueup.types.reason import Reason, reason
from trueup.wording import text

RANDOM = np.random.default_rng(46)


def curve(loss: Any, *, first: int = 1, name: str = "a.log", **more: Any) -> Curve:
    values = {"step": np.arange(first, first + len(loss)), "loss": loss, **more}
    return Curve(name=name, path=Path(name), frame=pl.DataFrame(values), format="made", files=())


def numbers(said: Reason) -> list[float]:
    return [float(one) for one in re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", text(said))]


def test_how_steps_are_paired() -> None:
    """One run over one data set, its log numbered otherwise; and runs that have nothing in common."""
    data = RANDOM.normal(3, 0.3, 120)
    for offset in (-3, -1, 0, 1, 2, 8):
        own = curve(data + RANDOM.normal(0, 0.01, 120), first=10 + offset)
        said = align(own, curve(data + RANDOM.normal(0, 0.01, 120), first=10)).reason
        assert said.code is (Curves.STEPS_SHIFTED if offset else Curves.STEPS_ALIKE)
        assert said.facts["offset"] == offset
        changes = np.diff(data)
        correlation, runner_up = numbers(said)[-2:]
        assert correlation == pytest.approx(1, abs=0.05)
        lags = [
            np.corrcoef(changes[max(0, k) : 119 + min(0, k)], changes[max(0, -k) : 119 + min(0, -k)])[0, 1]
            for k in range(-16, 17)
            if k
        ]
        assert min(lags) - 0.1 <= runner_up <= max(lags) + 0.1
        if offset:
            assert ("larger" in text(said)) is (offset > 0)
            assert numbers(said)[0] == abs(offset)
    given = align(curve(data), curve(data), offset=-2).reason
    assert (given.code, given.facts["basis"]) == (Curves.STEPS_SHIFTED, "given")
    other = align(curve(data), curve(RANDOM.normal(3, 0.3, 120))).reason
    assert other.facts["basis"] == "unrelated"
    alone = align(curve(data[:10]), curve(data[:10])).reason
    assert (alone.facts["basis"], alone.code) == ("assumed", Curves.STEPS_ALIKE)


def test_a_negative_runner_up_is_not_printed_as_zero() -> None:
    """Losses that go up and down in turn: at any odd offset their changes are opposed."""
    losses = 3 + 0.3 * (-1.0) ** np.arange(60) * (1 + 0.5 * np.sin(np.arange(60)))
    found = align(curve(losses), curve(losses))
    others = found.runner_up
    if found.basis == "found" and others is not None:
        assert f"{others:.2f}" in text(found.reason)


def test_logs_that_were_written_again() -> None:
    """Each part of a log goes back to a step: how many steps it trains again, and how far they are apart."""
    for _ in range(40):
        parts, at = [], 1
        for _ in range(int(RANDOM.integers(1, 5))):
            num = int(RANDOM.integers(5, 15))
            parts.append((at, RANDOM.normal(2, 0.1, num)))
            back = int(RANDOM.choice([0, 2, 3, 5, 9, 20]))  # 0: it goes on, as after a checkpoint
            at = max(1, at + num - back)
        frames = [
            pl.DataFrame({"step": np.arange(first, first + len(loss)), "loss": loss}) for first, loss in parts
        ]
        frame, restarts = merge([pl.concat(frames)])
        expected, held, last = [], dict[int, float](), 0
        for first, loss in parts:
            apart = [
                abs(held[step] - loss[step - first])
                for step in range(first, first + len(loss))
                if step in held
            ]
            if first < last:
                expected.append([first, len(apart), max(apart)])
            elif expected and apart:  # it goes on with the steps that a restart trains again
                expected[-1] = [expected[-1][0], expected[-1][1] + len(apart), max(expected[-1][2], *apart)]
            held |= {first + i: value for i, value in enumerate(loss)}
            last = first + len(loss) - 1
        made = replace(curve([1.0]), frame=frame, restarts=restarts)
        paired = pair(made, [made], [align(made, made)])
        said = [one for one in _notes(made, [], [], paired) if one.code is Curves.RESTARTED]
        facts = [[one.facts[name] for name in ("step", "num", "max_loss_diff")] for one in said]
        assert len(facts) == len(expected)
        for own, other in zip(facts, expected, strict=True):
            assert own == pytest.approx(other), parts
        kept = dict(zip(frame["step"].to_list(), frame["loss"].to_list(), strict=True))
        assert kept == held  # the later lines


def test_decimals_and_notes_of_a_log(tmp_path: Path) -> None:
    for places in range(6):
        for losses in (RANDOM.uniform(1, 5, 60), np.full(60, 2.5), np.zeros(60)):
            printed = np.array([float(f"{loss:.{places}f}") for loss in losses])
            made = curve(printed)
            paired = pair(made, [made], [align(made, made, offset=0)])
            found = [one for one in _notes(made, [], [], paired) if one.code is Curves.FEW_DECIMALS]
            varies = len(set(losses.tolist())) > 1
            assert len(found) == (varies and places <= 3)
            for one in found:
                assert one.facts["places"] == places
                assert np.abs(printed - losses).max() <= float(one.facts["unseen"])  # type: ignore[arg-type]
    (tmp_path / "a.csv").write_text("loss\n3.0\n2.5\n2.25\n")
    (tmp_path / "b.csv").write_text("step,loss\n5,3.0\n6,2.5\n7,2.25\n")
    for name, counted in (("a.csv", True), ("b.csv", False)):
        made = read_curve(str(tmp_path / name))
        paired = pair(made, [made], [align(made, made, offset=0)])
        notes = [one for one in _notes(made, [], [], paired) if one.code is Curves.OF_CURVE]
        expected = reason(Curves.OF_CURVE, reason(Curves.COUNTED_LINES, unit="row"), curve=made.name)
        assert (expected in notes) is counted
        assert made.frame["step"].to_list() == ([1, 2, 3] if counted else [5, 6, 7])


def lines(target: Curve, references: list[Curve], **more: Any) -> dict[str, Criterion]:
    paired = pair(target, references, [align(target, one, offset=0) for one in references])
    return {one.key: one for one in criteria(paired, target, references, **more)}


def test_notes_of_the_standard() -> None:
    loss = RANDOM.uniform(1, 2, 30)
    for num, frozen in ((30, False), (30, True), (1000, False), (1000, True), (5000, False)):
        long = RANDOM.uniform(1, 2, num)
        found = lines(curve(long), [curve(long + 0.001)], frozen=frozen)["steps"]
        note = None if found.note is None else found.note.code
        few = Criteria.EACH_STEP if frozen else Criteria.TOO_FEW
        assert note is (few if num < 1000 else Criteria.FEWER_THAN_DEFAULT if num < 5000 else None)
        assert found.value.facts["steps"] == num
    repeats = [
        ([loss, loss.copy()], True),
        ([loss, loss + 1e-9], False),
        ([loss, np.append(loss[:-1], 9.0)], False),
        ([np.full(30, np.nan), np.full(30, np.nan)], True),
    ]
    for (a, b), same in repeats:
        found = lines(curve(loss), [curve(a), curve(b, name="b.log")])["repeats"]
        assert (found.note is not None and found.note.code is Criteria.SAME_REPEATS) is same
        assert (found.status is Met.MET) is not same
    nothing = {name: pl.Series([None] * 30, dtype=pl.Float64) for name in ("loss", "grad_norm")}
    lacking = [
        replace(
            curve(loss), frame=curve(loss, grad_norm=loss).frame.with_columns(nothing["loss"].alias("loss"))
        )
        for _ in range(2)
    ]
    found = lines(curve(loss, grad_norm=loss), lacking)["repeats"]
    assert found.note is None, "two logs without a loss do not hold the same losses"
    later = curve(loss, first=2, name="b.log")
    assert lines(curve(loss), [curve(loss), later])["repeats"].note is None, "the same losses at other steps"
    for own, other in ((None, loss), (loss, None), (loss, loss)):
        sides = [
            replace(curve(loss, grad_norm=loss), frame=curve(loss, grad_norm=loss).frame.drop("loss"))
            if of is None
            else curve(of, grad_norm=loss)
            for of in (own, other)
        ]
        found = lines(sides[0], [sides[1]])
        for key in ("first_loss", "mean_loss"):
            code = found[key].note and found[key].note.code  # type: ignore[union-attr]
            assert (code is Criteria.NO_LOSS) is (own is None or other is None)
    for spread in (0.02, 0.05, 0.2, 0.5):
        base = np.full(30, 2.0)
        one = lines(curve(base + 0.9 * spread), [curve(base), curve(base + spread)])["mean_loss"]
        wide = one.note is not None and one.note.code is Criteria.WIDE_REPEATS
        assert wide is (spread > 0.05 * 2)
        if wide and one.note is not None:
            assert (one.note.facts["spread"], one.note.facts["rel"]) == pytest.approx((spread, spread / 2))
            assert one.status is Met.UNDECIDED
    for factor in (1.0, 1.0999, 1.101, 2.0):
        found = lines(curve(loss, grad_norm=loss * factor), [curve(loss, grad_norm=loss)])["global_norm"]
        assert (found.note == reason(Criteria.INDICATOR)) is (factor > 1.1)
        assert found.status is (Met.WARNING if factor > 1.1 else Met.MET)
        assert found.decisive is False
    assert ADVISORY.code is Criteria.ADVISORY
    told = {one.key: one for one in conditions(None, {"cluster": "two", "dataset": "default"})}
    assert [one.name.code for one in told.values()] == [Criteria.CONDITION] * 6
    assert {key: one.state for key, one in told.items()} == {
        **dict.fromkeys(told, "not told"),
        "cluster": "changed",
        "dataset": "kept",
    }


def test_spikes_and_rates() -> None:
    for _ in range(20):
        sides = [np.zeros(60), np.zeros(60)]
        where = [sorted(RANDOM.choice(np.arange(0, 60, 6), 3, replace=False).tolist()) for _ in range(2)]
        for side, at in zip(sides, where, strict=True):
            side[at] = 20.0
        found = spikes(sides[0], sides[1], np.arange(1, 61))
        said = judge(seen(spikes=found)).remarks
        both = [at + 1 for at in where[0] if at in where[1]]
        told = [one for one in said if one.code is Curves.SPIKES_BOTH]
        assert [one.facts["steps"] for one in told] == ([tuple(map(str, both))] if both else [])
        assert [one.facts["num"] for one in told] == ([len(both)] if both else [])
        assert all(one.facts["column"] == "loss" for one in told)
        reference = np.linspace(1e-4, 1e-3, 60)
        target = reference * np.where(RANDOM.random(60) < 0.1, RANDOM.choice([0.999, 1.01, 1.5]), 1.0)
        measured = rates(target, reference, np.arange(1, 61))
        apart = np.abs(target / reference - 1)
        logged = [one for one in judge(seen(rates=measured)).remarks if one.code is Curves.LOGGED_RATES]
        assert bool(logged) is bool((apart > 0.002).any())
        for one in logged:
            assert one.facts["step"] == np.flatnonzero(apart > 0.002)[0] + 1
            assert one.facts["relative"] == pytest.approx(apart.max())


def condition(key: str) -> Criterion:
    return replace(failing(key), note=reason(Criteria.CHECK_CONFIGS))


def test_what_is_not_said_of_losses_that_agree() -> None:
    """Learning rates, or a condition, that differ while the losses do not: nothing diverges."""
    apart = rates(np.array([1.0, 2.0]), np.array([1.0, 1.0]), np.array([1, 2]))
    for failed in ((), ("settings",), ("weights", "randomness"), ("mean_loss",), ("settings", "mean_loss")):
        for rate in (None, apart):
            found = judge(seen(criteria=tuple(map(condition, failed)), rates=rate))
            headline = found.headline
            differ = "mean_loss" in failed
            assert (headline.code is Curves.LEARNING_RATES) is (differ and rate is not None)
            assert (headline.code is Curves.CONDITIONS) is (bool(failed) and not differ)
            if headline.code is Curves.CONDITIONS:
                assert headline.facts["criteria"] == failed
                assert headline.facts.keys() == {"criteria"}
            if differ and rate is None:
                assert headline.code is Curves.FLUCTUATES
                advice = [one.code for one in found.advice]
                assert advice == [Curves.REPEAT_REFERENCE, Curves.FREEZE_WEIGHTS]
            assert (Curves.LOGGED_RATES in [one.code for one in found.remarks]) is (rate is not None)


def test_a_loss_that_the_target_lacks() -> None:
    """NaN of the target where the reference has none, though the reference has as many elsewhere; and losses
    that were not logged."""
    base = np.full(60, 2.0) + RANDOM.normal(0, 0.001, 60)
    for own, other in (((7,), (20,)), ((7, 9), (20,)), ((), (20,)), ((), ())):
        sides = []
        for lost in (own, other):
            loss = base.copy()
            loss[list(lost)] = np.nan
            sides.append(curve(loss))
        found = compare_curves(sides[0], [sides[1]], Options()).judgement
        assert found.headline.has(Curves.NOT_FINITE) is bool(own), text(found.headline)
        assert not found.headline.has(Curves.FLUCTUATES)
    for gone in (slice(0, 3), slice(30, 33), slice(0, 0)):
        held = base.tolist()
        held[gone] = [None] * len(held[gone])
        lacks, whole = curve(pl.Series(held, dtype=pl.Float64), grad_norm=base), curve(base, grad_norm=base)
        for side, (own, other) in {"target": (lacks, whole), "reference": (whole, lacks)}.items():
            found = compare_curves(own, [other], Options()).judgement
            assert not found.headline.has(Curves.FIRST_LOSS)
            assert not found.headline.has(Curves.FLUCTUATES)
            if found.headline.has(Curves.LOSSES_MISSING):
                assert found.headline == reason(Curves.LOSSES_MISSING, side=side)
                assert gone.stop
            assert gone.start or not gone.stop or found.headline.has(Curves.LOSSES_MISSING)


def test_a_first_loss_that_differs_is_not_hidden_by_losses_that_are_missing_later() -> None:
    base = np.full(60, 2.0) + RANDOM.normal(0, 0.001, 60)
    held = (base + 0.5 * (np.arange(60) == 0)).tolist()
    held[30:33] = [None] * 3
    target = curve(pl.Series(held, dtype=pl.Float64), grad_norm=base)
    found = compare_curves(target, [curve(base, grad_norm=base)], Options()).judgement
    assert found.headline.has(Curves.FIRST_LOSS) or found.headline.has(Curves.NOT_FINITE)


def test_rates_that_differ_after_the_losses_did() -> None:
    """Losses that part at a step before the rates do are not parted by them."""
    apart = rates(np.where(np.arange(100) >= 60, 2.0, 1.0), np.ones(100), np.arange(100))
    for begin, blamed in ((30, False), (70, True)):
        onset = Onset(
            index=begin,
            step=begin,
            shape="jump",
            before=0.0,
            after=0.5,
            per_step=0.0,
            statistic=100.0,
            p_value=0.0,
            earliest=begin,
            latest=begin,
        )
        found = judge(seen(criteria=(failing("mean_loss"),), rates=apart, onset=onset))
        assert (found.headline.code is Curves.LEARNING_RATES) is blamed


def test_local_norms_that_differ() -> None:
    for own, other in (((1.0, 2.0), (1.0, 1.0)), ((1.0, 1.05), (1.0, 1.0)), ((1.0, 1.0), (0.0, 1.0))):
        sides = []
        for values in (own, other):
            norms = pl.DataFrame(
                {"step": [1, 1], "index": [0, 1], "name": ["a", "b"], "local_norm": list(values)}
            )
            sides.append(replace(curve(np.full(60, 2.0)), local_norms=norms))
        found = compare_local_norms(sides[0], sides[1], 1, 0, first=True)
        said = judge(seen(local_norms=found)).headline
        apart = [abs(a - b) / b if b else math.inf for a, b in zip(own, other, strict=True)]
        assert (said.code is Curves.LOCAL_NORM) is any(one > 0.1 for one in apart)
        if said.code is Curves.LOCAL_NORM:
            at = int(np.argmax(apart))
            square = abs(own[at] ** 2 - other[at] ** 2) / other[at] ** 2 if other[at] else math.inf
            facts = [said.facts[name] for name in ("name", "step", "rel", "rel_square", "num", "total")]
            assert facts == ["ab"[at], 1, apart[at], square, sum(one > 0.1 for one in apart), 2]
            assert "inf" not in text(said)


CASES = {
    "not_finite": [Curves.NAME_FIRST_OVERFLOW],
    "loss_diffusion": [Curves.CAPTURE_AROUND, Curves.DIAGNOSE_STEPS, Curves.WITHOUT_BATCH],
    "spike": [Curves.CAPTURE_AROUND, Curves.DIAGNOSE_STEPS, Curves.WITHOUT_BATCH],
    "first_step_gap": [Curves.ONE_BATCH, Curves.CAPTURE_FIRST_STEPS, Curves.DIAGNOSE_STEPS],
    "steady_offset": [Curves.CAPTURE_FIRST_STEPS, Curves.DIAGNOSE_STEPS],
    "fluctuation": [Curves.FROZEN_RUN, Curves.CAPTURE_FIRST_STEPS, Curves.DIAGNOSE_STEPS],
    "aligned": [Curves.ONE_BATCH],
}


def judged(case: str, step: int | None) -> CurveJudgement:
    return replace(judge(NOTHING), case=case, step=step)


def options_of(one: Command) -> dict[str, str]:
    words = one.line.split(" -- ")[0].split()
    return {word: words[at + 1] for at, word in enumerate(words[:-1]) if word.startswith("-")}


@pytest.mark.parametrize("first", [0, 1])
def test_what_a_command_is_for(first: int) -> None:
    """What each option does is what its purpose says, of the batch that the log's step trains on."""
    target = curve(np.ones(60), first=first)
    for case, codes in CASES.items():
        for step in (first, first + 1, 40):
            found = commands(judged(case, step), target)
            assert [one.purpose.code for one in found] == codes, (case, step)
            batch = step - first
            for one in found:
                options = options_of(one)
                if one.purpose.code is Curves.ONE_BATCH:
                    assert (options["--only-batch"], options["--learning-rate"]) == (str(batch), "0")
                    assert one.purpose.facts == {"step": step}
                elif one.purpose.code is Curves.FROZEN_RUN:
                    assert options["--learning-rate"] == "0"
                elif one.purpose.code is Curves.CAPTURE_AROUND:
                    low, high = map(int, options["--steps"].split("-"))
                    assert low <= batch <= high <= batch + 1
                    assert one.purpose.facts == {"step": step}
                elif one.purpose.code is Curves.WITHOUT_BATCH:
                    assert options["--skip-batch"] == str(batch)
                elif one.purpose.code is Curves.NAME_FIRST_OVERFLOW:
                    assert options["--task"] == "overflow_check"
                elif one.purpose.code is Curves.CAPTURE_FIRST_STEPS:
                    assert options["--preset"] == "diagnose"
                    assert "--steps" not in options
                else:
                    assert one.line.startswith("trueup diagnose ")
    undecided = judge(seen(criteria=(replace(failing("weights"), status=Met.UNDECIDED),)))
    (proof,) = commands(undecided, target)
    assert proof.purpose.code is Curves.PROVE_CONDITIONS
    assert "--preset diagnose --deterministic" in proof.line
    assert commands(undecided, target, proved=True) == []


def test_determinism_is_turned_on_where_it_is_off() -> None:
    """Of a run at learning rate 0 whose losses differ: where traces show that something was not fixed, or the
    reference's repeats differ as much."""
    beyond = replace(STILL, num_beyond=9)
    for again, on in ((None, False), (STILL, False), (replace(STILL, num_beyond=8), True)):
        found = judge(seen(frozen=beyond, repeats_frozen=again))
        assert (Curves.TURN_DETERMINISM_ON in [one.code for one in found.advice]) is on


def test_a_late_gap_is_left_to_downstream_tasks_where_it_is_small() -> None:
    fields = {"first_step": 80, "standard_error": 1e-4, "p_value": 1e-9, "trend_p_value": 1.0}
    for relative in (0.002, 0.0099, 0.0101, 0.05):
        gap = 2 * relative
        made = late(gap=gap, relative_gap=relative, **fields)
        off = replace(CENTRED, mean=gap, p_value=0.9)
        found = judge(seen(late=made, centre=off, limit_abs=0.001, limit_rel=0.001))
        small = relative < 0.01
        assert found.case == "late_difference"
        assert (Curves.DOWNSTREAM in [one.code for one in found.advice]) is small
        assert (Curves.LATE_BELOW_1_PERCENT in [one.code for one in found.remarks]) is small


def late(**facts: Any) -> Late:
    values: dict[str, Any] = dict.fromkeys(Late.__dataclass_fields__, 0.0)
    return Late(**{**values, **facts})
