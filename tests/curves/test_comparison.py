"""Two curves and their repeats: which case of the guide they are, by which criteria, and what to do next."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.curves.simulating import Truth, simulate
from trueup.curves.aligning import align
from trueup.curves.comparison import CurveComparison, Options, compare_curves, decimals
from trueup.curves.conditions import ASSUMABLE
from trueup.curves.curve import Curve
from trueup.curves.many import compare_many
from trueup.curves.standard import Met, below
from trueup.errors import NothingCompared
from trueup.types.arrays import Floats
from trueup.types.codes import CriterionCode, CurvesCode

ASSUMED = Options(assumed=frozenset(ASSUMABLE))
QUIET = Truth(num_steps=3000, sigma=0.004, coefficient=0.8, spike_rate=0.0)
Run = tuple[Curve, list[Curve]]


def runs(seed: int = 1, **truth: object) -> Run:
    """A target and two references."""
    return simulate(replace(QUIET, **truth), seed)  # type: ignore[arg-type]


def changed(curve: Curve, **columns: object) -> Curve:
    """The curve with other columns."""
    return replace(curve, frame=curve.frame.with_columns(**columns))


def moved(curve: Curve, by: np.ndarray | float) -> Curve:
    """The curve with its loss moved."""
    return changed(curve, loss=pl.Series(curve.frame["loss"].to_numpy() + by))


def told(comparison: CurveComparison) -> dict[str, Met]:
    """How each criterion came out."""
    return {one.key: one.status for one in comparison.evidence.criteria}


def test_runs_of_the_same_program_are_accepted() -> None:
    found = compare_curves(*runs(), ASSUMED)
    assert (found.judgement.case, found.to_json()["exit_code"]) == ("aligned", 0)
    assert set(told(found).values()) <= {Met.MET, Met.WARNING}


def test_curves_that_are_equal_are_said_to_be() -> None:
    target, _ = runs()
    found = compare_curves(target, [target], ASSUMED)
    assert found.judgement.headline.code is CurvesCode.IDENTICAL


def test_what_is_not_proved_leaves_it_undecided() -> None:
    found = compare_curves(*runs())
    assert found.to_json()["exit_code"] == 2
    assert found.judgement.headline.code is CurvesCode.NOT_PROVED
    proofs = ("weights", "settings", "randomness")
    assert found.judgement.headline.place("criteria") == proofs


def test_a_gap_of_the_first_loss_is_the_forward_pass() -> None:
    target, references = runs()
    found = compare_curves(moved(target, 0.2 * np.exp(-np.arange(3000) / 5)), references, ASSUMED)
    assert (found.judgement.case, told(found)["first_loss"]) == ("first_step_gap", Met.NOT_MET)
    assert found.commands[-1].line == "trueup diagnose target reference -o diagnosis"


def test_a_loss_that_parts_and_rises_is_diffusion() -> None:
    after = np.maximum(np.arange(3000) - 1800, 0)
    target, references = runs()
    found = compare_curves(moved(target, 0.002 * after), references, ASSUMED)
    assert found.judgement.case == "loss_diffusion"
    assert found.judgement.step is not None
    assert abs(found.judgement.step - 1801) < 40
    at = found.judgement.step - 1  # logs count from 1, trueup from 0
    lines = [one.line for one in found.commands]
    found_steps = re.fullmatch(
        rf"trueup capture -o target-step-{at} --preset diagnose --steps (\d+)-{at + 1} -- python train.py",
        lines[0],
    )
    assert found_steps is not None
    assert int(found_steps[1]) <= min(at - 1, 1799)  # from where it may have begun
    assert lines[2].startswith(f"trueup capture -o target-without-{at} --skip-batch {at} --")


def test_a_gap_that_opens_slowly_is_a_late_difference() -> None:
    target, references = runs()
    drift = 0.08 * np.maximum(np.arange(3000) - 1000, 0) / 2000
    found = compare_curves(moved(target, drift), references, ASSUMED)
    assert (found.judgement.case, found.to_json()["exit_code"]) == ("late_difference", 1)
    assert found.judgement.advice[0].code is CurvesCode.CHECK_OPTIMIZER


def test_a_late_gap_below_one_percent_goes_to_downstream_tasks() -> None:
    target, references = runs(sigma=0.001)
    drift = 0.02 * np.maximum(np.arange(3000) - 1000, 0) / 2000
    found = compare_curves(moved(target, drift), references, ASSUMED)
    assert found.judgement.outcome.value == "agree"
    assert CurvesCode.LATE_BELOW_1_PERCENT in [remark.code for remark in found.judgement.remarks]


def test_the_guides_steady_tenth_is_told() -> None:
    target, references = runs()
    onto = 0.1 * -np.expm1(-np.arange(3000) / 30)
    found = compare_curves(moved(target, onto), references, ASSUMED)
    assert found.judgement.case == "steady_offset"
    assert found.judgement.headline.code is CurvesCode.OFFSET
    assert found.judgement.headline.number("mean") == pytest.approx(0.1, abs=0.01)


def test_a_steady_offset_between_the_repeats_is_within_reason() -> None:
    """The guide's last example: the target lies between two runs of the reference that are apart
    themselves."""
    target, references = runs()
    onto = -np.expm1(-np.arange(3000) / 30)
    apart = [moved(references[0], -0.06 * onto), moved(references[1], 0.08 * onto)]
    found = compare_curves(moved(target, 0.05 * onto), apart, ASSUMED)
    assert found.judgement.outcome.value == "agree"
    alone = compare_curves(moved(target, 0.05 * onto), references, ASSUMED)
    assert alone.evidence.centre is not None
    assert not alone.evidence.centre.is_centred


@pytest.mark.parametrize(
    ("size", "first", "last", "num"), [(0.3, 0.3, 0.5, 3000), (-0.12, 0.35, 0.7, 5000), (0.4, 0.0, 0.2, 2000)]
)
def test_a_difference_that_goes_again_is_neither_steady_nor_a_divergence(
    size: float, first: float, last: float, num: int
) -> None:
    """In the middle of a run, or at its beginning: the runs agree after it, which is said with its steps."""
    target, references = runs(num_steps=num)
    at = np.arange(num)
    begin, end = max(30, int(first * num)), int(last * num)
    there = (at >= begin) & (at < end)
    found = compare_curves(moved(target, size * there), references, ASSUMED)
    said = found.judgement.headline
    assert (found.judgement.outcome.value, found.judgement.case) == ("differ", "passing_difference")
    assert said.code is CurvesCode.PASSES
    assert said.number("first") == pytest.approx(begin, abs=0.03 * num)
    assert said.number("last") == pytest.approx(end, abs=0.03 * num)
    assert said.number("largest") == pytest.approx(size, rel=0.1)
    stays = size * there + 0.5 * size * (at >= end)
    for other in (stays, size * (at >= begin)):
        assert (
            compare_curves(moved(target, other), references, ASSUMED).judgement.case != "passing_difference"
        )


def test_a_short_difference_within_the_standard_is_remarked() -> None:
    target, references = runs()
    bump = 0.3 * np.exp(-(((np.arange(3000) - 1500) / 30) ** 2))
    found = compare_curves(moved(target, bump), references, ASSUMED)
    assert (found.judgement.outcome.value, found.judgement.case) == ("agree", "aligned")
    assert CurvesCode.PASSES in [one.code for one in found.judgement.remarks]
    assert found.judgement.headline.code is CurvesCode.WITHIN_STANDARD
    quiet = compare_curves(target, references, ASSUMED).judgement
    assert CurvesCode.PASSES not in [one.code for one in quiet.remarks]


def test_scatter_to_both_sides_is_fluctuation() -> None:
    target, references = runs(sigma=0.0005)
    swing = 0.2 * np.random.default_rng(0).standard_normal(3000) * np.minimum(1, np.arange(3000) / 100)
    found = compare_curves(moved(target, swing), references, ASSUMED)
    assert (found.judgement.case, told(found)["mean_loss"]) == ("fluctuation", Met.NOT_MET)
    assert "--learning-rate 0" in found.commands[0].line


def test_a_loss_that_becomes_nan() -> None:
    target, references = runs()
    loss = target.frame["loss"].to_numpy().copy()
    loss[2000:] = np.nan
    found = compare_curves(changed(target, loss=pl.Series(loss)), references, ASSUMED)
    assert (found.judgement.case, found.judgement.step) == ("not_finite", 2001)
    assert "--task overflow_check" in found.commands[0].line
    assert compare_curves(target, references, ASSUMED).judgement.case == "aligned"


def test_learning_rates_that_part_are_named_first() -> None:
    target, references = runs()
    rate = np.full(3000, 1e-4)
    rate[1500:] *= 3
    drift = 0.2 * np.maximum(np.arange(3000) - 1500, 0) / 1500
    found = compare_curves(changed(moved(target, drift), learning_rate=pl.Series(rate)), references, ASSUMED)
    assert (found.judgement.case, found.judgement.step) == ("learning_rates_differ", 1501)


def test_with_the_learning_rate_at_zero_every_step_counts() -> None:
    flat = 10 + 0.05 * np.random.default_rng(0).standard_normal(1200)
    other = flat + 5e-4 * np.random.default_rng(1).standard_normal(1200)
    target, references = runs(num_steps=1200)
    still = [
        changed(curve, loss=pl.Series(loss), learning_rate=pl.lit(0.0))
        for curve, loss in zip((target, *references), (other, flat, flat + 1e-5), strict=True)
    ]
    found = compare_curves(still[0], still[1:], ASSUMED)
    assert (found.judgement.case, found.evidence.onset, found.evidence.late) == ("aligned", None, None)
    assert found.evidence.frozen is not None
    bad = still[0].frame["loss"].to_numpy().copy()
    bad[700] += 0.5
    worse = compare_curves(changed(still[0], loss=pl.Series(bad)), still[1:], ASSUMED)
    assert (worse.judgement.case, worse.judgement.step) == ("first_step_gap", 701)
    assert "--only-batch 700 --learning-rate 0" in worse.commands[0].line
    few = compare_curves(still[0], still[1:], replace(ASSUMED, last=60))
    assert (few.judgement.outcome.value, told(few)["steps"]) == ("agree", Met.WARNING)


def test_the_gradient_norm_warns_and_does_not_reject() -> None:
    target, references = runs()
    norm = target.frame["grad_norm"] * 2
    found = compare_curves(changed(target, grad_norm=norm), references, ASSUMED)
    assert told(found)["global_norm"] is Met.WARNING
    assert found.judgement.outcome.value == "agree"
    criteria = [one.place("criterion") for one in found.judgement.remarks if one.code is CurvesCode.WARNED]
    assert "global_norm" in criteria


def test_thresholds_relax_to_the_references_own_fluctuation() -> None:
    target, references = runs(sigma=0.1)
    numbers = {one.key: one for one in compare_curves(target, references, ASSUMED).evidence.criteria}
    one = numbers["mean_loss"]
    assert one.status is Met.MET
    assert one.origin.code is CriterionCode.RELAXED
    strict = {c.key: c for c in compare_curves(target, references[:1], ASSUMED).evidence.criteria}
    assert strict["mean_loss"].status is Met.NOT_MET
    assert strict["mean_loss"].threshold == below(0.01, 0.01)
    assert strict["repeats"].status is Met.WARNING


def test_without_a_loss_nothing_is_accepted() -> None:
    target, references = runs()
    sides = [replace(one, frame=one.frame.drop("loss")) for one in (target, *references)]
    found = compare_curves(sides[0], sides[1:], ASSUMED)
    assert found.to_json()["exit_code"] == 2
    assert told(found)["mean_loss"] is told(found)["first_loss"] is Met.UNDECIDED
    assert found.judgement.headline.code is CurvesCode.NOT_PROVED
    assert found.judgement.headline.place("criteria") == ("first_loss", "mean_loss")


def test_repeats_far_apart_are_no_measure_to_accept_by() -> None:
    """One of the references is a failed run: half as far from it proves nothing."""
    target, (reference, repeat) = runs()
    level = float(reference.frame["loss"].mean())  # type: ignore[arg-type]
    ramp = level * np.minimum(np.arange(3000) / 300, 1)
    found = compare_curves(moved(target, 0.1 * ramp), [reference, moved(repeat, 0.2 * ramp)], ASSUMED)
    assert told(found)["mean_loss"] is Met.UNDECIDED
    assert found.to_json()["exit_code"] == 2


def test_repeats_that_are_the_same_file_tell_nothing() -> None:
    target, references = runs()
    found = compare_curves(target, [references[0], replace(references[0], name="again")], ASSUMED)
    assert told(found)["repeats"] is Met.WARNING


@pytest.mark.parametrize(("num", "status"), [(400, Met.UNDECIDED), (1500, Met.MET), (5000, Met.MET)])
def test_too_few_steps_decide_nothing(num: int, status: Met) -> None:
    found = compare_curves(*runs(num_steps=num), ASSUMED)
    assert told(found)["steps"] is status
    assert found.to_json()["exit_code"] == (0 if status is Met.MET else 2)


def test_a_rough_reference_is_warned_of() -> None:
    target, references = runs(data_sigma=0.5)
    assert told(compare_curves(target, references, ASSUMED))["smooth"] is Met.WARNING


@pytest.mark.parametrize("offset", [-3, -1, 0, 1, 5, 1000])
def test_offsets_between_logs_are_found(offset: int) -> None:
    target, references = runs(num_steps=1200)
    shifted = changed(target, step=pl.col("step") + offset)
    found = align(shifted, references[0])
    assert (found.offset, found.basis) == (offset, "found")
    assert compare_curves(shifted, references, ASSUMED).judgement.outcome.value == "agree"


def test_an_offset_the_curves_do_not_tell_is_assumed_and_said() -> None:
    smooth = [changed(c, loss=10 - pl.col("step") * 1e-3) for c in runs(num_steps=1200)[1]]
    zero = changed(smooth[0], step=pl.col("step") - 1)
    assert (align(zero, smooth[1]).offset, align(zero, smooth[1]).basis) == (-1, "assumed")
    notes = compare_curves(zero, smooth[1:], ASSUMED).notes
    assert [note.parts[0].place("basis") for note in notes if note.code is CurvesCode.ALIGNED] == ["assumed"]
    assert align(zero, smooth[1], offset=4).basis == "given"


def test_runs_over_other_data_are_asked_about() -> None:
    target, other = runs(seed=1)[0], runs(seed=2)[1]
    notes = compare_curves(target, other, ASSUMED).notes
    assert "unrelated" in [n.parts[0].place("basis") for n in notes if n.code is CurvesCode.ALIGNED]


def test_a_log_of_means_is_compared_with_means() -> None:
    target, references = runs(num_steps=3000)
    loss = references[0].frame["loss"].to_numpy().reshape(-1, 10).mean(axis=1)
    coarse = replace(
        references[0],
        frame=pl.DataFrame({"step": np.arange(10, 3001, 10), "loss": loss}),
        loss_is_mean=True,
    )
    found = compare_curves(target, [coarse, references[1]], ASSUMED)
    assert len(found.paired.steps) == 300
    assert found.evidence.centre is not None
    assert found.evidence.centre.is_centred
    apart = found.paired.target.columns["loss"] - target.frame["loss"].to_numpy().reshape(-1, 10).mean(axis=1)
    assert np.abs(apart).max() < 1e-12
    assert CurvesCode.COARSE in [note.code for note in found.notes]


def test_only_some_steps() -> None:
    found = compare_curves(*runs(), Options(first=100, last=1599))
    assert (found.paired.steps[0], found.paired.steps[-1]) == (100, 1599)
    assert "first_loss" not in told(found)
    with pytest.raises(NothingCompared, match="leaves nothing"):
        compare_curves(*runs(), Options(first=9000))


def test_nothing_in_common_is_an_error() -> None:
    target, references = runs(num_steps=100)
    with pytest.raises(NothingCompared, match="no step in common"):
        compare_curves(target, references, Options(offset=5000))
    with pytest.raises(NothingCompared, match="no reference"):
        compare_curves(target, [])
    only = [
        replace(c, frame=c.frame.select("step", n))
        for c, n in ((target, "loss"), (references[0], "grad_norm"))
    ]
    with pytest.raises(NothingCompared, match="neither a loss nor a gradient norm"):
        compare_curves(only[0], only[1:])


def test_decimals_of_a_log_are_seen() -> None:
    values = np.random.default_rng(0).uniform(1, 11, 100)
    assert decimals(np.round(values, 3)) == 3
    assert decimals(values) is None
    assert decimals(np.round(values[:5], 3)) is None


def test_many_targets_are_judged_alike_and_hold_less(tmp_path: Path) -> None:
    target, references = runs(num_steps=1200)
    names = []
    for number, curve in enumerate([*references, *[moved(target, 0.001 * n) for n in range(10)]]):
        names.append(str(tmp_path / f"{number}.jsonl"))
        Path(names[-1]).write_text(curve.frame.with_columns(tokens=pl.col("step") * 8.0).write_ndjson())
    found = list(compare_many(names[2:], names[:2], options=ASSUMED))
    alone = list(compare_many(names[2:3], names[:2], options=ASSUMED))
    assert [one.target.name for one in found] == names[2:]
    assert found[0].to_json()["statistics"] == alone[0].to_json()["statistics"]
    assert "tokens" in alone[0].target.frame.columns
    assert "tokens" not in found[0].target.frame.columns
    assert found[9].evidence.centre is not None
    assert found[9].evidence.centre.mean == pytest.approx(found[0].evidence.centre.mean + 0.009)  # type: ignore[union-attr]


RAMP = {
    "line": lambda u: np.minimum(u, 1),
    "exponential": lambda u: -np.expm1(-3 * u),
    "logistic": lambda u: 1 / (1 + np.exp(-10 * (u - 0.5))) * (u > 0),
    "root": lambda u: np.minimum(np.sqrt(u), 1),
}


@pytest.mark.parametrize("shape", RAMP)
@pytest.mark.parametrize(("steps", "sigma"), [(600, 0.002), (1200, 0.01), (1800, 0.002)])
def test_the_guides_late_offset_is_named_with_its_size(shape: str, steps: int, sigma: float) -> None:
    target, references = runs(num_steps=5000, sigma=sigma)
    ramp = 0.1 * RAMP[shape](np.maximum(np.arange(5000) - 1800, 0) / steps)
    found = compare_curves(moved(target, ramp), references, ASSUMED)
    assert found.judgement.case == "late_difference"
    assert found.judgement.headline.code is CurvesCode.LATE
    assert found.judgement.headline.number("gap") == pytest.approx(0.1, abs=0.005)
    assert found.judgement.step is not None
    assert found.judgement.step < 1800 + steps


def test_a_steady_offset_beyond_the_standard_is_no_fluctuation() -> None:
    level = np.where(np.arange(2000) < 200, 11 - np.arange(2000) / 20, 1.0)
    level = level + 0.02 * np.random.default_rng(1).standard_normal(2000)
    target, references = runs(num_steps=2000)
    steady = level + 0.018 + 1e-4 * np.random.default_rng(0).standard_normal(2000)
    found = compare_curves(
        changed(target, loss=pl.Series(steady)), [changed(references[0], loss=pl.Series(level))], ASSUMED
    )
    assert found.judgement.case == "steady_offset"
    assert found.evidence.late is not None
    assert found.evidence.late.trend == "steady"


@pytest.mark.parametrize("steps", [1, 40, 150])
def test_a_spike_that_recovers_is_a_finding(steps: int) -> None:
    at = np.arange(3000)
    target, references = runs()
    spiked = moved(target, 2.5 * ((at >= 885) & (at < 885 + steps)))
    found = compare_curves(spiked, references, ASSUMED)
    assert found.judgement.case == "spike" if steps < 150 else found.to_json()["exit_code"] == 1
    assert found.to_json()["exit_code"] != 0
    assert CurvesCode.LEAVES_BAND not in [one.code for one in found.judgement.reasons]
    if steps < 150:
        assert found.judgement.headline.number("first") == 886
        assert "--skip-batch 885" in found.commands[-1].line
    both = [moved(one, 2.5 * (at == 885)) for one in references]
    assert compare_curves(moved(target, 2.5 * (at == 885)), both, ASSUMED).judgement.case == "aligned"


def test_a_nan_is_the_headline_and_the_rest_is_of_the_steps_before() -> None:
    target, references = runs()
    loss = target.frame["loss"].to_numpy().copy()
    loss[2000:] = np.nan
    found = compare_curves(changed(target, loss=pl.Series(loss)), references, ASSUMED)
    assert found.judgement.headline.code is CurvesCode.NOT_FINITE
    codes = [one.code for one in found.judgement.reasons]
    assert CurvesCode.FINITE_MEAN in codes
    assert CurvesCode.FAILED_BY_LOST in codes
    assert not {CurvesCode.ONSET, CurvesCode.LEAVES_BAND} & set(codes)


@pytest.mark.parametrize(
    ("column", "value", "from_step", "what"),
    [
        ("loss", np.nan, 1400, ("loss", "NaN")),
        ("loss", np.inf, 1400, ("loss", "infinite")),
        ("grad_norm", np.nan, 700, ("gradient norm", "NaN")),
        ("loss", np.nan, 0, ("loss", "NaN")),
        ("loss", np.inf, 0, ("loss", "infinite")),
    ],
)
def test_what_is_not_finite_is_named(
    column: str, value: float, from_step: int, what: tuple[str, str]
) -> None:
    """Also from the very first step on; infinity is no spike, and does not hide how steps are numbered."""
    target, references = runs(num_steps=2000)
    values = target.frame[column].to_numpy().copy()
    values[from_step:] = value
    found = compare_curves(changed(target, **{column: pl.Series(values)}), references, ASSUMED)
    headline = found.judgement.headline
    assert headline.code is CurvesCode.NOT_FINITE
    assert (headline.facts["column"], headline.facts["what"]) == what
    assert headline.number("step") == target.frame["step"][from_step]
    assert CurvesCode.SPIKES_TARGET not in [one.code for one in found.judgement.remarks]
    assert from_step == 0 or found.alignments[0].basis == "found"


@pytest.mark.parametrize(("first", "last"), [(611, 611), (90, 96), (1500, 1998)])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_finite_again_is_not_said_to_stay(first: int, last: int, value: float) -> None:
    """One step that overflowed, whose update was left out; its twin stays broken from there on."""
    target, references = runs(num_steps=2000)
    loss = target.frame["loss"].to_numpy().copy()
    loss[first : last + 1] = value
    steps = target.frame["step"]
    headline = compare_curves(changed(target, loss=pl.Series(loss)), references, ASSUMED).judgement.headline
    assert headline.code is CurvesCode.NOT_FINITE
    assert (headline.facts["step"], headline.facts["again"]) == (steps[first], steps[last + 1])
    loss[first:] = value
    headline = compare_curves(changed(target, loss=pl.Series(loss)), references, ASSUMED).judgement.headline
    assert headline.facts.get("again") is None


def test_a_loss_that_was_not_logged_at_first_is_not_nan() -> None:
    target, references = runs(num_steps=2000)
    late = changed(target, loss=pl.Series([None] * 100 + target.frame["loss"].to_list()[100:]))
    found = compare_curves(late, references, ASSUMED)
    assert found.judgement.headline.code is not CurvesCode.NOT_FINITE


@pytest.mark.parametrize("length", [1, 15])
@pytest.mark.parametrize("at", [700, 1333])
def test_sizes_of_a_jump_are_each_side_s_own(at: int, length: int) -> None:
    """What rises within some steps is no outlier of what was before it."""
    target, references = runs(num_steps=2400)
    steps = np.arange(2400)
    found = compare_curves(
        moved(target, 0.9 * -np.expm1(-np.clip(steps - at + 1, 0, None) / length)), references, ASSUMED
    )
    headline = found.judgement.headline
    assert headline.code is CurvesCode.JUMP
    assert abs(headline.number("before")) < 0.002
    assert headline.number("after") == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize("at", [700, 1333])
def test_a_loss_that_rises_and_falls_on_beside_the_other_has_no_plateau(at: int) -> None:
    target, references = runs(num_steps=2400)
    rise = 0.9 * -np.expm1(-np.clip(np.arange(2400) - at + 1, 0, None) / 40)
    found = compare_curves(moved(target, rise), references, ASSUMED)
    assert found.judgement.case in ("loss_diffusion", "late_difference")
    assert found.evidence.target_health.plateau_from is None


def test_a_gap_from_early_on_is_not_called_late() -> None:
    """A loss that hardly falls from step 41 on: the gap is 165 % and was there nearly from the start."""
    target, references = runs(num_steps=2400)
    at = np.arange(2400)
    noise = 0.02 * np.random.default_rng(2).standard_normal(2400)
    loss = target.frame["loss"].to_numpy()
    slow = np.where(at < 40, loss, loss[39] - 0.0002 * (at - 40) + noise)
    found = compare_curves(changed(target, loss=pl.Series(slow)), references, ASSUMED)
    assert found.judgement.outcome.value == "differ"
    assert found.judgement.headline.code is not CurvesCode.LATE
    ramp = moved(target, 0.1 * np.clip((at - 900) / 800, 0, 1))
    assert compare_curves(ramp, references, ASSUMED).judgement.headline.code is CurvesCode.LATE


@pytest.mark.parametrize("period", [150.0, 377.0])
def test_a_difference_that_swings_around_zero_has_no_onset(period: float) -> None:
    """Within 1 % of the loss on the mean, and centred: it did not begin to grow anywhere."""
    target, references = runs(num_steps=2400)
    swing = 0.05 * np.sin(2 * np.pi * np.arange(2400) / period)
    found = compare_curves(moved(target, swing), references, ASSUMED)
    assert found.judgement.case == "aligned"
    grows = moved(target, swing + 0.2 * np.clip((np.arange(2400) - 1200) / 600, 0, 1))
    assert compare_curves(grows, references, ASSUMED).judgement.case == "late_difference"


@pytest.mark.parametrize(("num", "gap"), [(2, 0.3), (3, -0.2), (5, 0.9)])
def test_two_steps_tell_the_update_from_the_forward_pass(num: int, gap: float) -> None:
    target, references = runs(num_steps=2000)
    first = target.frame["loss"].to_numpy()[0] - references[0].frame["loss"].to_numpy()[0]
    moves = np.where(np.arange(2000) > 0, gap, -first)
    steps = Options(last=int(target.frame["step"][num - 1]), assumed=frozenset(ASSUMABLE))
    found = compare_curves(moved(target, moves), references, steps)
    assert (found.judgement.case, found.judgement.outcome.value) == ("second_step_gap", "differ")
    assert found.judgement.headline.number("step") == target.frame["step"][1]
    forward = compare_curves(moved(target, 0.5), references, steps)
    assert forward.judgement.case == "first_step_gap"
    same = compare_curves(target, references, steps)
    assert same.judgement.headline.parts[0].code is CurvesCode.WITHIN_STANDARD, "too few to fluctuate"


def test_the_tallest_of_a_wide_scatter_is_no_spike() -> None:
    """Every step is off by a tenth of the loss: once in some thousand one is off by a third of it."""
    target, references = runs(num_steps=2400)
    level = np.full(2400, 3.0)
    scatter = 0.25 * np.random.default_rng(4).standard_normal(2400)
    scatter[0] = 0.0
    quiet = [changed(one, loss=pl.Series(level)) for one in references]
    found = compare_curves(changed(target, loss=pl.Series(level + scatter)), quiet, ASSUMED)
    assert np.abs(scatter).max() > 0.2 * 3.0
    assert found.evidence.excursions is None
    tall = scatter.copy()
    tall[1200] = 2.5
    found = compare_curves(changed(target, loss=pl.Series(level + tall)), quiet, ASSUMED)
    assert found.evidence.excursions is not None
    assert found.evidence.excursions.steps == (1201,)


def test_a_loss_that_stays_up_is_a_case_of_its_own() -> None:
    at = np.arange(3000)
    target, references = runs()
    loss = target.frame["loss"].to_numpy()
    noise = 0.02 * np.random.default_rng(0).standard_normal(3000)
    never = changed(target, loss=pl.Series(np.where(at < 3, loss, 10 + noise)))
    found = compare_curves(never, references, ASSUMED)
    assert found.judgement.case == "does_not_converge"
    stuck = changed(target, loss=pl.Series(np.where(at < 600, loss, loss[590:600].mean() + noise)))
    found = compare_curves(stuck, references, ASSUMED)
    assert found.judgement.case == "plateau_too_high"
    assert found.judgement.step is not None
    assert abs(found.judgement.step - 600) < 100
    wavers = loss[0] - 0.6 * np.exp(-(((at - 60) / 40) ** 2)) + noise
    found = compare_curves(
        changed(target, loss=pl.Series(np.where(at < 3, loss, wavers))), references, ASSUMED
    )
    assert found.judgement.case == "does_not_converge", "it falls a little, and rises again"
    slower = changed(target, loss=pl.Series(2 + 8 * (1 + at / 100) ** -0.35))
    assert compare_curves(slower, references, ASSUMED).evidence.target_health.plateau_from is None


@pytest.mark.parametrize("at", [500, 1234, 2000])
@pytest.mark.parametrize(
    "blow",
    [lambda u: 0.01 * u, lambda u: 1e-4 * u**2, lambda u: 3 * -np.expm1(-u / 30), lambda u: 2.0 * (u > 0)],
)
def test_a_blow_up_is_named_within_five_steps(at: int, blow: Callable[[Floats], Floats]) -> None:
    target, references = runs()
    steps = np.maximum(np.arange(1, 3001) - at, 0)
    found = compare_curves(moved(target, np.minimum(blow(steps), 6)), references, ASSUMED)
    assert found.judgement.case == "loss_diffusion"
    assert found.judgement.step is not None
    assert abs(found.judgement.step - at) <= 5
    left = found.evidence.envelope.first_exceedance  # type: ignore[union-attr]
    assert left is not None
    assert found.judgement.step <= left


def test_determinism_off_is_named_where_the_learning_rate_is_zero() -> None:
    flat = 10 + 0.05 * np.random.default_rng(0).standard_normal(1200)
    target, references = runs(num_steps=1200)
    scattered = [flat + 0.2 * np.random.default_rng(seed).standard_normal(1200) for seed in (1, 2, 3)]
    still = [
        changed(curve, loss=pl.Series(loss), learning_rate=pl.lit(0.0))
        for curve, loss in zip((target, *references), scattered, strict=True)
    ]
    headline = compare_curves(still[0], still[1:], ASSUMED).judgement.headline
    assert headline.code is CurvesCode.FROZEN_DIFFERS
    assert [part.code for part in headline.parts] == [CurvesCode.REPEATS_DIFFER]
    steady = [changed(one, loss=pl.Series(flat)) for one in still[1:]]
    assert compare_curves(still[0], steady, ASSUMED).judgement.headline.parts == ()
