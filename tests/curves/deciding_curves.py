"""Cases whose measured quantity is a number at will, for every entry of ``curves/thresholds.py``."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.curves.simulating import autoregressive
from tests.deciding import decides
from trueup.curves.aligning import Alignment, _correlation, _is_found, _is_only_peak
from trueup.curves.comparison import _rises, decimals
from trueup.curves.curve import Curve
from trueup.curves.judgement import (
    CurveEvidence,
    _diverged,
    _is_vague,
    _of_plateau,
    _of_training,
    _to_one_side,
)
from trueup.curves.local_norms import compare_local_norms
from trueup.curves.pairing import CurveSide, PairedCurves, References
from trueup.curves.standard import (
    CurveLosses,
    first_loss,
    global_norm,
    mean_loss,
    observed_steps,
    repeats,
    smooth,
)
from trueup.curves.statistics.bends import _is_seen
from trueup.curves.statistics.centred import Centre, _runs, centre
from trueup.curves.statistics.departing import _far, _fits, _gone, departure
from trueup.curves.statistics.envelope import Band, band_spread, window_of
from trueup.curves.statistics.excursions import Excursion, Excursions, excursions
from trueup.curves.statistics.factor import factor
from trueup.curves.statistics.frozen import _outlying
from trueup.curves.statistics.growing import _is_bend
from trueup.curves.statistics.health import Health, overflows, plateaus, rates
from trueup.curves.statistics.late import Late, _slope, late
from trueup.curves.statistics.noise import (
    Autoregression,
    _coefficient,
    come_back,
    memory,
    outliers,
    robust_scale,
)
from trueup.curves.statistics.onset import (
    Onset,
    _is_before,
    _is_settled,
    _kolmogorov,
    _scale,
    _shape,
    onset,
    quiet_until,
)
from trueup.curves.statistics.passing import passing
from trueup.curves.statistics.spikes import Spikes, heights, spikes
from trueup.curves.statistics.trend import Trended
from trueup.curves.thresholds import INTERVAL_LEVEL
from trueup.types.arrays import Floats

# -- the accuracy standard ------------------------------------------


def losses(target: float, reference: float, apart: float | None = None) -> CurveLosses:
    one, other = np.array([target]), np.array([reference])
    return CurveLosses(target=one, reference=other, repeats=other[None], apart=apart)


@decides("curves.first_abs")
def first_abs(loss: float) -> object:
    return first_loss(losses(0.1 + loss, 0.1)).status


@decides("curves.first_rel")
def first_rel(share: float) -> object:
    return first_loss(losses(100 * (1 + share), 100)).status


@decides("curves.mean_abs")
def mean_abs(loss: float) -> object:
    return mean_loss(losses(0.1 + loss, 0.1)).status


@decides("curves.mean_rel")
def mean_rel(share: float) -> object:
    return mean_loss(losses(100 * (1 + share), 100)).status


@decides("curves.allowance")
def allowance(times: float) -> object:
    return mean_loss(losses(1 + 0.02 * times, 1.0, apart=0.02)).status


@decides("curves.widest")
def widest(share: float) -> object:
    return mean_loss(losses(1.03, 1.0, apart=share)).status


def paired(column: str, target: Floats, reference: Floats) -> PairedCurves:
    steps = np.arange(len(target))
    there = References(steps=steps, sides=(CurveSide(columns={column: reference}),))
    return PairedCurves(steps=steps, target=CurveSide(columns={column: target}), references=there, notes=())


def curve(steps: int = 2, seconds: float = 0.0, norms: float | None = None) -> Curve:
    """A log of so many steps and seconds, and of one weight's local norm."""
    numbers = np.arange(steps)
    frame = pl.DataFrame({"step": numbers, "step_seconds": np.full(steps, seconds / steps)})
    local = {"step": [0], "index": [0], "name": ["a"], "local_norm": [norms]}
    return Curve(
        name="run",
        path=Path("run"),
        frame=frame,
        format="csv",
        files=(),
        local_norms=None if norms is None else pl.DataFrame(local),
    )


@decides("curves.norm_rel")
def norm_rel(share: float) -> object:
    (found,) = global_norm(paired("grad_norm", np.full(4, 1 + share), np.ones(4)))
    return found.status


def observed(steps: int, hours: float = 0.0) -> tuple[object, object]:
    made = paired("loss", np.ones(steps), np.ones(steps))
    found = observed_steps(made, curve(steps, 3600 * hours))
    return found.status, found.note is None


@decides("curves.fewest_steps")
def fewest_steps(steps: float) -> object:
    return observed(int(steps))


@decides("curves.default_steps")
def default_steps(steps: float) -> object:
    return observed(int(steps))


@decides("curves.default_hours")
def default_hours(hours: float) -> object:
    return observed(2000, hours + 0.01)


@decides("curves.fewest_repeats")
def fewest_repeats(runs: float) -> object:
    return repeats([curve()] * int(runs)).status


@decides("curves.rough")
def rough(share: float) -> object:
    step = share * math.sqrt(2) / 1.4826
    loss = (1 - step) ** -np.arange(20.0)
    return smooth(paired("loss", loss, loss)).status


@decides("curves.norms_apart")
def norms_apart(relative: float) -> object:
    found = compare_local_norms(curve(norms=1 + relative), curve(norms=1.0), 0, 0)
    assert found is not None
    return found.num_beyond


def norms(*values: float) -> Curve:
    """A log of some weights' local norms without names."""
    local = {"step": 0, "index": list(range(len(values))), "name": None, "local_norm": list(values)}
    schema = {"step": pl.Int64, "index": pl.Int64, "name": pl.String, "local_norm": pl.Float64}
    return replace(curve(), local_norms=pl.DataFrame(local, schema=schema))


@decides("curves.norms_weighty")
def norms_weighty(share: float) -> object:
    found = compare_local_norms(norms(1.0, 2 * share), norms(1.0, share), 0, 0, first=True)
    assert found is not None
    return found.finding is None


@decides("curves.norms_alike")
def norms_alike(relative: float) -> object:
    order = (1.0, 4.0, 16.0, 64.0)
    found = compare_local_norms(norms(*order), norms(*(one / (1 + relative) for one in order[::-1])), 0, 0)
    assert found is not None
    return found.paired_by


# -- noise ------------------------------------------

EIGHTS = np.where(np.arange(128) // 16 % 2, -1.0, 1.0)


@decides("curves.spike_sigmas")
def spike_sigmas(height: float) -> object:
    tall = np.where(np.arange(100) == 50, height, 0.0)
    return spikes(tall, np.zeros(100), np.arange(100)).target_only


@decides("curves.spike_window", beside=(0, 1))
def spike_window(steps: float) -> object:
    """A step stands above those before it only where one of them tells how far they spread."""
    values = np.zeros(int(steps) + 1)
    values[0], values[-1] = 1.0, 9.0
    return heights(values)[-1] < 1000


@decides("curves.spike_behind")
def spike_behind(steps: float) -> object:
    return heights(np.append((-1.0) ** np.arange(int(steps)), 100.0))[-1] > 6


@decides("curves.spike_back")
def spike_back(share: float) -> object:
    values = 0.01 * (-1.0) ** np.arange(200) + np.where(np.arange(200) > 100, 10 * share, 0.0)
    values[100] = 10.0
    return bool(come_back(values)[100])


@decides("curves.spike_beside", beside=(0, 1))
def spike_beside(steps: float) -> object:
    sides = [np.where(np.arange(100) == at, 9.0, 0.0) for at in (50, 50 + int(steps))]
    return spikes(*sides, np.arange(100)).both


@decides("curves.normal_mad")
def normal_mad(times: float) -> object:
    return times <= robust_scale(EIGHTS)


def after_outlier(sigmas: float, steps: int) -> bool:
    """Whether the last of some steps after an outlier, which stand out so far, is one too."""
    values = EIGHTS.copy()
    values[2], values[3 : 3 + steps] = 100.0, sigmas * 1.4826
    return bool(outliers(values)[2 + steps])


@decides("curves.tail_sigmas")
def tail_sigmas(sigmas: float) -> object:
    return after_outlier(sigmas, 1)


@decides("curves.tail_steps", beside=(0, 1))
def tail_steps(steps: float) -> object:
    return after_outlier(3.0, int(steps))


def neighbours(correlation: float) -> Floats:
    """Slow noise and as much independent noise as gives neighbours this correlation."""
    slow = autoregressive(2000, 0.9, 1.0, np.random.default_rng(1))
    fast = np.random.default_rng(2).standard_normal(2000)

    def lag(times: float) -> float:
        x = slow + times * fast
        x = x - x.mean()
        return float(x[1:] @ x[:-1]) / float(x @ x)

    low, high = 0.0, 1e3
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if lag(middle) > correlation else (low, middle)
    found: Floats = slow + low * fast
    return found - found.mean()


@decides("curves.alike")
def alike(correlation: float) -> object:
    x = neighbours(correlation * 2000 / 1999)  # what _coefficient divides by one pair less
    return _coefficient(x, np.ones(2000, bool), 2000) > correlation + 0.1


@decides("curves.memory_fewest")
def memory_fewest(steps: float) -> object:
    values = np.random.default_rng(0).standard_normal(int(steps))
    return math.isnan(memory(values, np.ones(int(steps), bool)).long_run_variance)


# -- what a difference is ------------------------------------------


@decides("curves.centred_level")
def centred_level(chance: float) -> object:
    found = Centre(
        mean=1.0,
        standard_error=1.0,
        low=0.0,
        high=0.0,
        p_value=chance,
        autocorrelation=0.0,
        num_steps=100,
        num_outliers=0,
        num_runs=0,
        expected_runs=0.0,
        runs_p_value=1.0,
    )
    return found.is_centred


@decides("curves.centred_fewest")
def centred_fewest(steps: float) -> object:
    return math.isnan(centre(np.linspace(-1, 1, int(steps))).standard_error)


@decides("curves.runs_memory")
def runs_memory(correlation: float) -> object:
    return _runs(neighbours(correlation))[1] > 500


@decides("curves.runs_fewest")
def runs_fewest(blocks: float) -> object:
    return _runs((-1.0) ** np.arange(int(blocks)))[0]


@decides("curves.late_share")
def late_share(share: float) -> object:
    found = late(np.zeros(1000), np.ones(1000), np.arange(1000))
    return found.first_step <= 1000 - 1000 * share


@decides("curves.late_level")
def late_level(chance: float) -> object:
    found = Late(
        first_step=0,
        gap=1.0,
        standard_error=1.0,
        relative_gap=1.0,
        p_value=0.0,
        per_1000_steps=1.0,
        trend_p_value=chance,
        num_steps=1000,
    )
    return found.trend


@decides("curves.late_fewest")
def late_fewest(steps: float) -> object:
    numbers = np.arange(int(steps))
    return _slope(numbers.astype(float), numbers, np.ones(int(steps), bool))[1] < 1


def change(index: int = 500, shape: str = "jump", chance: float = 0.0) -> Onset:
    return Onset(
        index=index,
        step=index,
        earliest=index,
        latest=index,
        shape=shape,
        before=0.0,
        after=1.0,
        per_step=0.0,
        statistic=9.0,
        p_value=chance,
    )


@decides("curves.onset_level")
def onset_level(chance: float) -> object:
    return change(chance=chance).is_sure


@decides("curves.onset_edge", margin=0.2)
def onset_edge(share: float) -> object:
    at = round(1000 * share)
    found = onset((np.arange(1000) >= at).astype(float), np.arange(1000))
    assert found is not None
    return found.index == at


@decides("curves.onset_fewest")
def onset_fewest(steps: float) -> object:
    return onset(np.random.default_rng(0).standard_normal(int(steps)), np.arange(int(steps))) is None


@decides("curves.onset_taken")
def onset_taken(steps: float) -> object:
    return math.sqrt((1 + steps / 30) * 31) <= _scale(
        Autoregression(coefficient=0.0, long_run_variance=1.0), 31
    )


@decides("curves.onset_nothing")
def onset_nothing(statistic: float) -> object:
    return _kolmogorov(statistic) == 1.0


HEALTHY = Health(not_finite=(), num_not_finite=0, overflow_steps=(), num_overflow_steps=0, plateau_from=None)


def evidence(found: Onset, at: tuple[int, ...] = ()) -> CurveEvidence:
    return CurveEvidence(
        criteria=(),
        centre=None,
        onset=found,
        late=None,
        envelope=None,
        spikes=Spikes(both=(), target_only=at, reference_only=(), largest=None),
        norm_spikes=None,
        rates=None,
        frozen=None,
        target_health=HEALTHY,
        reference_health=HEALTHY,
        limit_abs=0.01,
        limit_rel=0.01,
        level=1.0,
        num_steps=1000,
        rises=False,
        mean_size=1.0,
        learned=1.0,
        excursions=None,
        passing=None,
        repeats_frozen=None,
        local_norms=None,
    )


@decides("curves.passing_left")
def passing_left(left: float) -> object:
    smoothed = np.full(1000, left)
    smoothed[300:500] = 1.0
    room = Band(
        half_width=np.full(1000, 0.9),
        origin="standard",
        window=20,
        smoothed=smoothed * (1 - 1e-9 * (smoothed < 1)),
    )
    return passing(room, np.arange(1000)) is None


@decides("curves.early")
def early(share: float) -> object:
    return (
        _of_training(evidence(change(round(1000 * share))), late_gap=False, gap=False, systematic=False)
        is None
    )


@decides("curves.spike_at_onset", beside=(0, 1))
def spike_at_onset(steps: float) -> object:
    found = change(shape="slope")
    return _diverged(evidence(found, (found.step + int(steps),)), found)


@decides("curves.band_sigmas")
def band_sigmas(sigmas: float) -> object:
    found = band_spread(np.array([[1.0] * 9, [-1.0] * 9]), np.zeros(9))
    assert found is not None
    return sigmas * math.sqrt(3) <= found[4]


@decides("curves.band_steps", beside=(0, 1))
def band_steps(steps: float) -> object:
    return steps <= window_of(100)


@decides("curves.band_share")
def band_share(share: float) -> object:
    return share * 100_000 <= window_of(100_000)


@decides("curves.outlying")
def outlying(times: float) -> object:
    return _outlying(np.append(np.ones(9), times)).any()


@decides("curves.outlying_least")
def outlying_least(loss: float) -> object:
    return _outlying(np.append(np.zeros(9), loss)).any()


@decides("curves.interval_level")
def interval_level(chance: float) -> object:
    """Models that are as likely as the level, and have an error beyond all others, decide the interval."""
    found = Trended(
        probability=0.0,
        weights=np.array([1 - chance, chance]),
        centres=np.zeros(2),
        errors=np.array([1e-9, 1e9]),
        freedom=np.full(2, 1e9),
    )
    return found.interval(INTERVAL_LEVEL)[1] > 1.0


@decides("curves.trend_sure")
def trend_sure(chance: float) -> object:
    one = np.ones(1)
    return Trended(probability=chance, weights=one, centres=one, errors=one, freedom=one).is_sure


def last_part(gap: float = 1.0, moved: float = 0.0, relative: float = 1.0) -> Late:
    return Late(
        first_step=0,
        gap=gap,
        standard_error=0.01,
        relative_gap=relative,
        p_value=0.0,
        per_1000_steps=moved,
        trend_p_value=0.0,
        num_steps=1000,
    )


@decides("curves.late_moves")
def late_moves(share: float) -> object:
    return last_part(moved=share).trend


@decides("curves.systematic")
def systematic(share: float) -> object:
    found = centre(np.where(np.arange(1000) % 2, share + 1, share - 1))
    return _to_one_side(replace(evidence(change()), centre=found))


@decides("curves.excursion_height")
def excursion_height(share: float) -> object:
    values = np.where(np.arange(1000) == 500, share, 0.0)
    return excursions(values, np.ones(1000), np.arange(1000), 1)[0] is None


@decides("curves.excursion_again")
def excursion_again(times: float) -> object:
    one = Excursion(first_step=0, last_step=1, height=times)
    return Excursions(largest=one, steps=(0,), num=1, others=1.0).stands_out


@decides("curves.factor_better")
def factor_better(share: float) -> object:
    """What is left is ``share`` of what an offset leaves, and less than the standard allows."""
    loss = 10.0 + 0.01 * np.where(np.arange(64) % 2, 1.0, -1.0)
    target = 2 * loss + 0.01 * share * np.where(np.arange(64) % 4 < 2, 1.0, -1.0)
    by_offset = float(np.abs(target - loss - np.median(target - loss)).mean())
    assert by_offset == pytest.approx(0.01)
    return factor(target, loss) is not None


@decides("curves.factor_fewest")
def factor_fewest(steps: float) -> object:
    loss = np.linspace(10.0, 2.0, 64)[: int(steps)]
    return factor(2 * loss, loss) is not None


@decides("curves.quiet_noise")
def quiet_noise(share: float) -> object:
    sizes = np.where(np.arange(1001) < 300, share, 1.0)
    return quiet_until(np.cumsum(sizes * np.where(np.arange(1001) % 2, 1.0, -1.0)), 800) == 0


@decides("curves.quiet_share")
def quiet_share(share: float) -> object:
    sizes = np.where(np.arange(2001) <= 600, 0.01, 1.0)
    return quiet_until(np.cumsum(sizes * np.where(np.arange(2001) % 2, 1.0, -1.0)), round(600 / share)) > 0


@decides("curves.rise")
def rise(share: float) -> object:
    return _rises(np.where(np.arange(1000) < 500, 1.0, 1 + share), 490)


@decides("curves.departed_sigmas")
def departed_sigmas(sigmas: float) -> object:
    """Single steps at this height, around a mean of zero: no mean over more of them is farther away."""
    noise = np.where(np.arange(14) % 2, 1.0, -1.0)
    height = sigmas * 1.4826
    return _gone(np.append(noise, [height] * 4), 14)[0] == 14


@decides("curves.departed_windows")
def departed_windows(means: float) -> object:
    return _gone(np.append(np.zeros(int(means)), np.ones(40)), int(means))[0] is None


@decides("curves.departed_fewest")
def departed_fewest(steps: float) -> object:
    at = int(steps)
    values = np.append(np.where(np.arange(at) % 2, 1e-3, -1e-3), np.ones(100))
    return departure(values, at) is None


@decides("curves.bend_misfit")
def bend_misfit(errors: float) -> object:
    return _fits(errors)


@decides("curves.bend_seen")
def bend_seen(sigmas: float) -> object:
    return bool(_is_seen(np.array([3.0 * sigmas]), 3.0)[0])


@decides("curves.bend_sigmas")
def bend_sigmas(sigmas: float) -> object:
    noise = np.where(np.arange(100) % 2, 1.0, -1.0)
    return _far(np.append(noise, np.full(400, sigmas * 1.4826)), 100, 1)


@decides("curves.growth_length")
def growth_length(share: float) -> object:
    return _is_bend(share, 1.0)


@decides("curves.onset_told")
def onset_told(share: float) -> object:
    wide = 10**9  # steps are whole numbers
    return _is_vague(replace(change(), earliest=0, latest=round(share * wide)), wide)


@decides("curves.onset_settled")
def onset_settled(share: float) -> object:
    return _is_settled(share)


@decides("curves.onset_away")
def onset_away(share: float) -> object:
    return _is_before(np.repeat([0.0, share, 1.0], 100), 100, 200)


@decides("curves.onset_growth")
def onset_growth(share: float) -> object:
    return replace(change(), before=share, after=1.0).grows


@decides("curves.jump_share")
def jump_share(share: float) -> object:
    return _shape(np.repeat([0.0, share, 1.0], 100), 100)


# -- one curve ------------------------------------------


@decides("curves.scale_drop")
def scale_drop(share: float) -> object:
    return overflows(np.array([1.0, share]), None).any()


def stuck(lost: float, other: float) -> object:
    """Whether a run that loses so much of its loss of 1 is said to stall at once."""
    ends = np.interp(np.arange(1000), [0, 100, 900, 999], [0, 0, 1, 1])
    found, _ = plateaus(1 - lost * ends, 1 - other * ends, np.arange(1000))
    return found is not None and found.step == 0


@decides("curves.progress")
def progress(share: float) -> object:
    return stuck(share, 0.5)


@decides("curves.plateau_share")
def plateau_share(share: float) -> object:
    return stuck(0.02 * share, 0.02)


def plateaued(gap: float, fell: float) -> object:
    health = replace(HEALTHY, plateau_from=1, plateau_level=1.0, fell=fell)
    found = replace(
        evidence(change(shape="slope")), target_health=health, late=last_part(relative=gap), learned=1.0
    )
    case = _of_plateau(found, late_gap=True)
    return None if case is None else case.name


@decides("curves.plateau_high")
def plateau_high(share: float) -> object:
    return plateaued(share, 0.5)


@decides("curves.converged")
def converged(share: float) -> object:
    return plateaued(1.0, share)


@decides("curves.plateau_fewest")
def plateau_fewest(steps: float) -> object:
    numbers = np.arange(int(steps))
    return plateaus(np.ones(int(steps)), 1.9 - numbers / 200, numbers)[0] is None


def first_rate(target: float, reference: float) -> int | None:
    """The first step of two at which learning rates differ, the largest of which are 1."""
    found = rates(np.array([1.0, target]), np.array([1.0, reference]), np.arange(2))
    assert found is not None
    return found.first_different


@decides("curves.rates_apart")
def rates_apart(relative: float) -> object:
    return first_rate(0.5 * (1 + relative), 0.5)


@decides("curves.rates_small")
def rates_small(rate: float) -> object:
    return first_rate(2e-3 * rate, 0.0)


# -- how steps are numbered ------------------------------------------


def correlated(values: Floats) -> bool:
    part = np.arange(len(values)), values
    return _correlation(part, part, 0) is not None


@decides("curves.align_fewest")
def align_fewest(changes: float) -> object:
    return correlated(np.random.default_rng(0).standard_normal(int(changes) + 1))


@decides("curves.changes_least")
def changes_least(relative: float) -> object:
    return correlated(1 - relative * (np.arange(65) % 2))


@decides("curves.align_errors", margin=0.01)
def align_errors(errors: float) -> object:
    return _is_found(errors / 100, -1.0, 10_000)


@decides("curves.align_apart")
def align_apart(correlation: float) -> object:
    return _is_found(0.9, 0.9 - correlation, 10_000)


@decides("curves.align_apart_errors", margin=0.01)
def align_apart_errors(errors: float) -> object:
    return _is_found(0.9, 0.9 - 0.1 * errors, 100)


@decides("curves.align_alone")
def align_alone(correlation: float) -> object:
    return _is_only_peak([correlation, 0.1])


@decides("curves.align_others")
def align_others(correlation: float) -> object:
    return _is_only_peak([0.95, correlation])


@decides("curves.unrelated")
def unrelated(correlation: float) -> object:
    found = Alignment(offset=0, basis="assumed", correlation=correlation, runner_up=None)
    return found.reason


@decides("curves.decimals_fewest")
def decimals_fewest(number: float) -> object:
    return decimals(np.arange(int(number)) % 2 + 1.0)


@decides("curves.decimals_exact")
def decimals_exact(apart: float) -> object:
    return decimals(np.arange(20) % 2 + apart)


@decides("curves.decimals_exact_rel")
def decimals_exact_rel(relative: float) -> object:
    return decimals(np.arange(20) % 2 + 1e7 + 1e-7 + 1e7 * relative)
