"""Cases whose measured quantity is a number at will, for every entry of ``comparing/thresholds.py``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.comparing.rules.judging import step_of
from tests.comparing.rules.test_summed_rows import status_of
from tests.comparing.traces import Recorder
from tests.deciding import decides
from trueup.comparing.arbiter import _judge
from trueup.comparing.average_fit import Averaged, AverageFit, AverageForm, decays_differ, fit_of, rounding_of
from trueup.comparing.averages import taken_up
from trueup.comparing.buffers import BufferGaps, WrittenBuffer, without_unfelt
from trueup.comparing.coarse_activations import _num_telling
from trueup.comparing.coarse_grids import rounded_on_one_side
from trueup.comparing.coarse_norms import NormCall, are_off_together, rounds_inside
from trueup.comparing.coarse_results import is_rounding
from trueup.comparing.coarse_sums import added_up, is_sum_of
from trueup.comparing.common_form import _copied, _settle, _settle_sums, _whole
from trueup.comparing.comparable import refuse_different_models
from trueup.comparing.counted_rows import counted
from trueup.comparing.device_products import device_products
from trueup.comparing.first import Preceding
from trueup.comparing.grounds import _norms
from trueup.comparing.history import History, cancelled_part, inherited, update_spread
from trueup.comparing.judgement import AMPLIFIED, DIFFERENT, ORIGIN, WITHIN, Judgement
from trueup.comparing.layouts import _nearest
from trueup.comparing.loss_scale import is_taken_out
from trueup.comparing.losses.cross_entropy import reproduced
from trueup.comparing.losses.divergence import class_rows
from trueup.comparing.losses.exact import allowed_error, is_beyond_float32
from trueup.comparing.masters import allowed_gap, multiple_of
from trueup.comparing.metrics import SKETCH, VALUES, Metrics, measure, sum_roundoff
from trueup.comparing.noise import StepNoise
from trueup.comparing.optimizer_settings import setting_gaps
from trueup.comparing.origins import likelihood
from trueup.comparing.other_arguments import is_one_number
from trueup.comparing.record_row import JudgedRow
from trueup.comparing.row_order import _elsewhere
from trueup.comparing.rules import (
    StepContext,
    clipped,
    common_factor,
    common_factor_origin,
    finer_dtype,
    judge_step,
)
from trueup.comparing.rules.lone_rounding import least_rounding
from trueup.comparing.rules.reduced_later import are_apart
from trueup.comparing.scalars import compare_scalars, later_loss
from trueup.comparing.thresholds import CANCELLED_PART, COUNTED_SHARE, FLOAT32, MASKED_BELOW
from trueup.comparing.tolerance import (
    _running_roundoff,
    factor_of,
    multiplied_after_backward,
    rounding_bound,
)
from trueup.comparing.verdict import confidence, may_be_noise
from trueup.errors import NothingCompared
from trueup.matching.bridge import Bridge
from trueup.matching.layouts import CommonForm
from trueup.numerics.dtypes import DTYPES, rounded_to
from trueup.types.arrays import Floats
from trueup.types.codes import RecordCode
from trueup.weights.plan import Permute

Make = Callable[[Recorder, bool], None]
"""records one side; whether it is the target"""
ONE = np.ones(1, np.float32)


def step(make: Make, noise: StepNoise | None = None) -> tuple[StepContext, Metrics]:
    """A step of two runs."""
    sides = [Recorder(), Recorder()]
    for recorder, target in zip(sides, (True, False), strict=True):
        make(recorder, target)
    with TemporaryDirectory() as folder:
        return step_of(Path(folder), *sides, noise=noise)


def record(
    phase: str,
    slot: str,
    array: NDArray[Any] = ONE,
    *,
    noise: StepNoise | None = None,
    before: Make | None = None,
) -> tuple[StepContext, Metrics]:
    """A step whose last record, of a parameter, differs."""

    def make(out: Recorder, target: bool) -> None:
        if before is not None:
            before(out, target)
        out.record(out.call("parameter", "a.weight"), phase, slot, array * (1 + 1e-3 * target))

    return step(make, noise)


def differs(made: tuple[StepContext, Metrics], *errors: float) -> bool:
    """Whether the last record exceeds its tolerance; the last ones differ by ``errors`` of their norms."""
    context, metrics = made
    metrics.difference[-len(errors) :] = np.array(errors) * metrics.norm[-len(errors) :]
    return bool(judge_step(context, metrics).status[-1] == DIFFERENT)


# -- rounding bound ------------------------------------------


@decides("comparing.factor_param")
def factor_param(factor: float) -> object:
    return differs(record("param", "value"), factor * FLOAT32)


@decides("comparing.factor_optimizer")
def factor_optimizer(factor: float) -> object:
    return differs(record("optimizer", "param"), factor * FLOAT32)


@decides("comparing.factor_forward")
def factor_forward(factor: float) -> object:
    return differs(record("forward", "output.0"), factor * FLOAT32 * math.sqrt(1 + 1 / 256))


@decides("comparing.factor_loss")
def factor_loss(factor: float) -> object:
    return differs(record("loss", "value"), factor * FLOAT32 * math.sqrt(1 + 1 / 256))


@decides("comparing.factor_backward")
def factor_backward(factor: float) -> object:
    return differs(record("backward", "input.0"), factor * FLOAT32 * math.sqrt(1 + 1 / 256))


@decides("comparing.factor_collective")
def factor_collective(factor: float) -> object:
    return differs(record("collective", "output.0"), factor * FLOAT32 * math.sqrt(1 + 1 / 256))


@decides("comparing.factor_param_grad")
def factor_param_grad(factor: float) -> object:
    return differs(record("param_grad", "accumulated"), factor * FLOAT32 * math.sqrt(1 + 1 / 64))


@decides("comparing.same_norm")
def same_norm(off: float) -> object:
    gap = WrittenBuffer(fqn="a.mask", step=0, target=200.0, reference=3.0)
    gaps = BufferGaps(initial={}, written=[gap])
    return without_unfelt(gaps, {(200.0 * (1 + off), 3.0)}).written


@decides("comparing.multiple_apart")
def multiple_apart(off: float) -> object:
    array = np.full(10_000, 0.9)
    array[0] = -1.0
    given = array / 2
    given[0] *= 1 + off  # far too few to move the norm

    def make(out: Recorder, target: bool) -> None:
        call = out.call("parameter", "a.weight")
        out.record(call, "param_grad", "accumulated", array)
        out.record(call, "param_grad", "clipped", given)

    context, _ = step(make)
    return multiplied_after_backward(context.rows)[-1] == 1


@decides("comparing.class_roundings")
def class_roundings(times: float) -> object:
    rows = np.full((1, 4), 0.25)
    rows[0, 0] += times * FLOAT32 * rows.size
    return class_rows(rows, FLOAT32) is None


@decides("comparing.masked_below")
def masked_below(score: float) -> object:
    return is_one_number(2 * MASKED_BELOW, score)


@decides("comparing.across")
def across(times: float) -> object:
    context, _ = record("param", "value")
    rows = replace(context.rows, match=replace(context.rows.match, bridge=Bridge.__new__(Bridge)))
    return times <= factor_of(rows, 1.0)


@decides("comparing.api_calls_per_leaf")
def api_calls_per_leaf(number: float) -> object:
    def before(out: Recorder, target: bool) -> None:
        for at in range(int(number)):
            out.api(None, f"torch.call{at}", (ONE + at) * (1 + 1e-3 * target))

    made = record("forward", "output.0", before=before)
    return differs(made, 3.999 * FLOAT32 * math.sqrt(2 * (1 + 1 / 256)))


@decides("comparing.rows_per_rounding")
def rows_per_rounding(rows: float) -> object:
    def before(out: Recorder, target: bool) -> None:
        out.record(out.call("module", "a", type_="Linear"), "forward", "output.0", np.ones((6400, 1), "f4"))

    made = record("param_grad", "accumulated", before=before)
    return differs(made, 10 * FLOAT32 * math.sqrt(1 + 6400 / rows))


@decides("comparing.length_per_rounding")
def length_per_rounding(length: float) -> object:
    made = record("forward", "output.0", np.ones(25_600, np.float32))
    return differs(made, 4 * FLOAT32 * math.sqrt(1 + 25_600 / length))


@decides("comparing.tf32")
def tf32(roundoff: float) -> object:
    def make(out: Recorder, target: bool) -> None:
        out.record(out.call("module", "fc", type_="Linear"), "forward", "output.0", ONE)
        out.step.kinds[-1] = "float32", (1,), "cuda:0", None

    context, metrics = step(make)
    products = device_products(context.rows, {"allow_tf32": True}, {"allow_tf32": True})
    return 4 * roundoff > rounding_bound(context.rows, metrics, 1.0, products=products).relative[-1]


@decides("comparing.channel_per_rounding")
def channel_per_rounding(terms: float) -> object:
    values = np.where(np.arange(51_200) % 2, 1, -1).astype(np.float32).reshape(4, 2, 80, 80)

    def make(out: Recorder, target: bool) -> None:
        call = out.call("module", "bn", type_="BatchNorm2d")
        out.record(call, "forward", "input.0", values)
        out.record(call, "forward", "output.0", values * np.float32(1 + target * 1e-6))

    return step(make)[0].rounding.unvaried[-1] >= FLOAT32 * math.sqrt(25_600 / terms)


@decides("comparing.in_place")
def in_place(relative: float) -> object:
    def make(out: Recorder, target: bool) -> None:
        call = out.call("module", "m", type_="Linear")
        out.record(call, "forward", "output.0", np.ones((4, 3), np.float32) * (1 + target * relative))

    context, metrics = step(make)
    return bool(_elsewhere(context.rows, metrics)[-1])


@decides("comparing.dtypes_apart", margin=0.05)
def dtypes_apart(share: float) -> object:
    def make(out: Recorder, target: bool) -> None:
        for at in range(100):
            dtype = np.float16 if target and at < round(100 * share) else np.float32
            out.record(out.call("module", f"m{at}", type_="Linear"), "forward", "output.0", ONE.astype(dtype))

    return float(_running_roundoff(step(make)[0].rows)[0][-1])


@decides("comparing.sum_roundings")
def sum_roundings(roundings: float) -> object:
    return roundings * FLOAT32 <= sum_roundoff(np.zeros(1))[0]


@decides("comparing.sum_length")
def sum_length(length: float) -> object:
    return sum_roundoff(np.array([length]))[0] >= 9 * FLOAT32


@decides("comparing.sum_power")
def sum_power(power: float) -> object:
    return (8 + 100**power) * FLOAT32 <= sum_roundoff(np.array([2e6]))[0]


@decides("comparing.resolution", margin=0.5)
def resolution(relative: float) -> object:
    numbers = np.random.default_rng(0).standard_normal(4096)
    aside = np.roll(numbers, 1) - numbers.mean()
    aside *= relative * np.linalg.norm(numbers) / np.linalg.norm(aside)

    def make(out: Recorder, target: bool) -> None:
        out.record(out.call("parameter", "a.weight"), "param", "value", numbers + aside * target)

    return bool(measure(step(make)[0].rows).difference[0] > 0.5 * relative * np.linalg.norm(numbers))


@decides("comparing.statistics_rounding", margin=0.5)
def statistics_rounding(relative: float) -> object:
    numbers = np.random.default_rng(0).standard_normal(4096)

    def make(out: Recorder, target: bool) -> None:
        value = numbers * (1 + relative) if target else numbers
        out.record(out.call("parameter", "a.weight"), "param", "value", value)

    measured = measure(step(make)[0].rows)
    return bool(measured.difference[0] > 0.1 * relative * np.linalg.norm(numbers))  # the largest: 0.06 of it


# -- measured noise ------------------------------------------


def measured(size: float, *, repeat: float = 0.0, bias: float = 1e-9, rows: int = 1) -> StepNoise:
    """A profile that shows the same at every row."""
    same = np.ones(rows)
    return StepNoise(repeat=repeat * same, perturbed=size * same, gain=same, bias=bias * same)


@decides("comparing.noise_times")
def noise_times(times: float) -> object:
    return differs(record("forward", "output.0", noise=measured(1e-3, repeat=1e-3)), times * 1e-3 * 5)


@decides("comparing.noise_small")
def noise_small(errors: float) -> object:
    return differs(record("forward", "output.0", noise=measured(1e-3, repeat=1e-3)), 4e-3 * (1 + errors))


@decides("comparing.lottery")
def lottery(size: float) -> object:
    def before(out: Recorder, target: bool) -> None:
        call = out.call("parameter", "a.weight")
        array = np.ones(25_600, np.float32)
        out.record(call, "forward", "input.0", 1e6 * array)
        out.record(call, "forward", "output.0", array * (1 + 1e-3 * target))

    return differs(step(before, noise=measured(size, rows=2)), 2.0)


def factor(
    apart: float, error: float, noise: StepNoise, *, kind: int = VALUES, shape: tuple[int, int] = (64, 64)
) -> bool:
    """Whether a factor of 1 + ``apart`` in a difference of ``error`` is called common."""
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    context, metrics = record("param_grad", "clipped", array, noise=noise)
    metrics.evidence[:] = kind
    metrics.details["scale"][:] = 1 + apart
    metrics.difference[:] = error * metrics.norm
    judgement = replace(Judgement.undecided(metrics.difference), status=np.full(1, WITHIN))
    return bool(common_factor.RULE.apply(context, metrics, judgement).status[0] == DIFFERENT)


@decides("comparing.far_from_float32")
def far_from_float32(relative: float) -> object:
    return is_beyond_float32(relative)


@decides("comparing.factor_times")
def factor_times(times: float) -> object:
    return factor(times * 0.75e-4, 1e-4, measured(1e-2, bias=1e-4))


@decides("comparing.factor_site")
def factor_site(share: float) -> object:
    return factor(5 * share * 1e-4, 1e-4, measured(1e-2, bias=1e-4))


@decides("comparing.factor_of_sketch")
def factor_of_sketch(share: float) -> object:
    return factor(5 * share * 1e-2, 1e-2, measured(1.0), kind=SKETCH)


@decides("comparing.factor_rounded")
def factor_rounded(apart: float) -> object:
    return factor(apart, 1e-7, measured(1.0))


@decides("comparing.factor_smallest")
def factor_smallest(numel: float) -> object:
    return factor(1e-2, 1e-2, measured(1.0), shape=(int(numel), 1))


def module(*slots: tuple[str, str, float], call: str = "module") -> Make:
    """Records of one module, of some size, that differ."""

    def make(out: Recorder, target: bool) -> None:
        inner = out.call(call, "a", type_="Linear")
        for at, (phase, slot, size) in enumerate(slots):
            array = np.random.default_rng(at).standard_normal(64).astype(np.float32)
            array *= size / np.linalg.norm(array)
            out.record(inner, phase, slot, array * (1 + 1e-3 * target))

    return make


@decides("comparing.factor_telling")
def factor_telling(share: float) -> object:
    context, metrics = step(module(("forward", "input.0", 1.0), ("forward", "output.0", 1.0)))
    judgement = Judgement.undecided(metrics.difference)
    apart = replace(
        judgement.factor,
        bias=np.array([share, 1.0]),
        bound=np.ones(2),
        flagged=np.array([False, True]),
    )
    judged = common_factor_origin.RULE.apply(context, metrics, replace(judgement, factor=apart))
    return judged.attribution.status[1] == ORIGIN


# -- what a step leaves to the next ------------------------------------------


def left(weights: Sequence[float], error: float) -> bool:
    """Whether a forward output that differs by ``error`` is explained by a matrix that does, by
    ``weights[0]``, of which the step before left ``weights[1]``."""

    def make(out: Recorder, target: bool) -> None:
        array = np.eye(8, dtype=np.float32)
        out.record(out.call("parameter", "a.weight"), "param", "value", array * (1 + 1e-3 * target))
        if len(weights) > 1:
            call = out.call("module", "a", type_="Linear")
            out.record(call, "forward", "output.0", np.ones(4, np.float32) * (1 + 1e-3 * target))

    context, metrics = step(make)
    metrics.difference[0] = weights[0] * metrics.norm[0]
    history = History(step=0, parameter={"a.weight": weights[-1] * float(metrics.norm[0])})
    none = np.zeros(len(context.rows))
    extra, _ = inherited(context.rows, metrics, none, context.rounding.scale, history, 1)
    return bool(error * metrics.norm[-1] <= extra[-1])


@decides("comparing.history_gain")
def history_gain(times: float) -> object:
    return left((1e-3, 1e-3), times * 1e-3)


@decides("comparing.known_norm")
def known_norm(times: float) -> object:
    return left((1e-3,), times * 1e-3)


@decides("comparing.update_spread")
def spread(times: float) -> object:
    return times * 1e-4 <= update_spread(1e-8, 1)


@decides("comparing.flip_errors")
def flip_errors(errors: float) -> object:
    return 0.4 + 2 * math.sqrt((1e4 + 100 * errors + 2) / 1e6) <= update_spread(1e-2, 1e6)


@decides("comparing.flips_at_least")
def flips_at_least(flips: float) -> object:
    noise, numel = 4e-9, 1e4
    mean = noise * numel
    allowed = 4 * math.sqrt(noise) + 2 * math.sqrt((mean + 4 * math.sqrt(mean) + flips) / numel)
    return allowed <= update_spread(noise, numel)


@decides("comparing.cancelled_part")
def part_of_a_vector(times: float) -> object:
    return times <= cancelled_part(1.0, 64)


@decides("comparing.cancelled_eps")
def step_of_noise(gradient: float) -> object:
    return cancelled_part(gradient, 1) < CANCELLED_PART


@decides("comparing.flip_chance")
def flip_chance(flips: float) -> object:
    return update_spread(flips, 1) > 1


# -- where an error starts ------------------------------------------


def attributed(make: Make, *errors: float) -> int:
    """The status of the last record."""
    context, metrics = step(make)
    metrics.difference[-len(errors) :] = np.array(errors) * metrics.norm[-len(errors) :]
    return int(judge_step(context, metrics).attribution.status[-1])


FORWARD = module(("forward", "input.0", 1.0), ("forward", "output.0", 1.0))


@decides("comparing.origin_margin")
def origin_margin(times: float) -> object:
    return attributed(FORWARD, 1e-3, times * 2e-3)


@decides("comparing.gain_forward")
def gain_forward(gain: float) -> object:
    return attributed(FORWARD, 1e-3, 3e-3 * gain)


@decides("comparing.gain_loss")
def gain_loss(gain: float) -> object:
    def make(out: Recorder, target: bool) -> None:
        root = out.call("module", "", type_="Net")
        out.record(root, "forward", "output.0", 2 * ONE * (1 + 1e-3 * target))
        out.record(out.call("loss", "loss"), "loss", "value", ONE * (1 + 1e-3 * target))

    return attributed(make, 1e-3, 3e-3 * gain)


@decides("comparing.gain_backward")
def gain_backward(gain: float) -> object:
    slots = ("backward", "output.0", 1.0), ("backward", "input.0", 1.0)
    return attributed(module(*slots), 1e-3, 3e-3 * gain)


@decides("comparing.gain_param_grad")
def gain_param_grad(gain: float) -> object:
    def make(out: Recorder, target: bool) -> None:
        array = np.ones((1, 1), np.float32) * (1 + 1e-3 * target)
        out.record(out.call("module", "a", type_="Linear"), "backward", "output.0", array)
        out.record(out.call("parameter", "a.weight"), "param_grad", "accumulated", 2 * array[0])

    return attributed(make, 1e-3, 3e-3 * gain)


@decides("comparing.gain_collective")
def gain_collective(gain: float) -> object:
    slots = ("collective", "input.0", 1.0), ("collective", "output.0", 1.0)
    return attributed(module(*slots, call="collective"), 1e-3, 3e-3 * gain)


@decides("comparing.extreme")
def extreme(gain: float) -> object:
    make = module(("forward", "input.0", gain / 2), ("forward", "output.0", 1.0))
    return attributed(make, 1e-3, 1.2e-2) == AMPLIFIED


@decides("comparing.inputs_gain")
def inputs_gain(gain: float) -> object:
    def make(out: Recorder, target: bool) -> None:
        root = out.call("module", "a", type_="Linear")
        call = out.call("api", "torch.linear", root)
        out.record(call, "forward", "input.0", ONE * (1 + 1e-3 * target))
        out.record(call, "forward", "output.0", 2 * ONE * (1 + 1e-3 * target))

    return differs(step(make), 3 * FLOAT32, 3 * FLOAT32 * gain)


@decides("comparing.finer")
def finer(roundings: float) -> object:
    def make(out: Recorder, target: bool) -> None:
        for at in range(8):
            dtype = np.float16 if target and at == 0 else np.float32
            out.record(out.call("module", f"m{at}", type_="Linear"), "forward", "output.0", ONE.astype(dtype))

    context, metrics = step(make)
    judgement = Judgement.undecided(metrics.difference)
    status = np.where(np.arange(8) == 7, AMPLIFIED, WITHIN)
    error = np.full(8, roundings * FLOAT32)
    grown = replace(judgement.attribution, status=status, error=error)
    judged = finer_dtype.RULE.apply(
        context, metrics, replace(judgement, status=np.full(8, WITHIN), attribution=grown)
    )
    return judged.attribution.status[0] == ORIGIN


@decides("comparing.lone_least")
def lone_least(relative: float) -> object:
    return relative >= least_rounding(DTYPES["float16"].eps)


@decides("comparing.lone_roundoffs")
def lone_roundoffs(roundings: float) -> object:
    return roundings * DTYPES["bfloat16"].eps >= least_rounding(DTYPES["bfloat16"].eps)


@decides("comparing.clipped_fewest")
def clipped_fewest(gradients: float) -> object:
    def make(out: Recorder, target: bool) -> None:
        for at in range(int(gradients)):
            array = np.random.default_rng(at).standard_normal(64).astype(np.float32)
            call = out.call("parameter", f"m{at}.weight")
            out.record(call, "param_grad", "clipped", array * np.float32(1 + 0.5 * target))
        out.record(out.call("parameter", "z.weight"), "param_grad", "accumulated", ONE * (1 + target))

    context, metrics = step(make)
    num = len(context.rows)
    judgement = Judgement.undecided(metrics.difference)
    judgement = replace(
        judgement,
        status=np.full(num, DIFFERENT),
        tolerance=np.full(num, 1e-4),
        attribution=replace(judgement.attribution, status=np.full(num, ORIGIN)),
    )
    return clipped.RULE.apply(context, metrics, judgement).attribution.status[0] == ORIGIN


@decides("comparing.alike_rows")
def alike_rows(score: float) -> object:
    with TemporaryDirectory() as folder:
        return status_of(Path(folder), error=5e-7, score=score) == WITHIN


@decides("comparing.clear_origin")
def clear_origin(score: float) -> object:
    return likelihood(score, 5, 5) < likelihood(1.0, 0, 0)


# -- a more exact run ------------------------------------------


def less_accurate(size: int, times: float, *, dtype: Any = np.float32, tolerance: float = 0.0) -> int:
    """Which side is, where the target's error is so many times the reference's."""
    context, _ = record("param", "value", np.ones(size, dtype))
    judged = _judge(context.rows, np.array([times]), np.ones(1), np.array([tolerance]))
    return int(judged[0])


@decides("comparing.arbiter_times")
def arbiter_times(times: float) -> object:
    return less_accurate(1000, times)


@decides("comparing.arbiter_times_half")
def arbiter_times_half(times: float) -> object:
    return less_accurate(1000, times, dtype=np.float16)


@decides("comparing.arbiter_times_small")
def arbiter_times_small(times: float) -> object:
    return less_accurate(100, times)


@decides("comparing.arbiter_times_smallest")
def arbiter_times_smallest(times: float) -> object:
    return less_accurate(5, times)


@decides("comparing.arbiter_large")
def arbiter_large(size: float) -> object:
    return less_accurate(int(size), 2.5)


@decides("comparing.arbiter_small", beside=(0, 1))
def arbiter_small(size: float) -> object:
    return less_accurate(int(size), 5.0)


@decides("comparing.arbiter_smallest", beside=(0, 1))
def arbiter_smallest(size: float) -> object:
    return less_accurate(int(size), 9.0)


@decides("comparing.arbiter_slack")
def arbiter_slack(slacks: float) -> object:
    return less_accurate(1000, 2 + 1e-3 / slacks, tolerance=1e-3)


# -- layouts of stored values ------------------------------------------

SYMMETRIC = np.ones((8, 8)) / 8
APART = np.triu(SYMMETRIC, 1) - np.tril(SYMMETRIC, -1)
APART /= np.linalg.norm(APART)
WAYS = CommonForm(label="as it is"), CommonForm(label="transposed", target=((Permute(dims=(1, 0)),),))


def way(error: float, kept: float) -> object:
    """What is chosen for ``SYMMETRIC + error APART``, of which the target has ``kept`` times the last."""
    target, reference = (SYMMETRIC + scale * error * APART for scale in (kept, 1.0))
    chosen = _nearest(WAYS, [(target, reference)])
    return None if chosen is None else chosen.label


@decides("comparing.layout_clear")
def layout_clear(share: float) -> object:
    return way(0.2, (1 - share) / (1 + share))


@decides("comparing.layout_close")
def layout_close(relative: float) -> object:
    reference = np.arange(64.0).reshape(8, 8)
    aside = np.linalg.norm(reference) * np.eye(8) / np.linalg.norm(np.eye(8))
    return _nearest(WAYS[:1], [(reference + relative * aside, reference)]) is None


@decides("comparing.layout_certain")
def layout_certain(relative: float) -> object:
    size = relative / math.sqrt(4 - relative * relative)
    return way(size, -1.0)


# -- one form of two ------------------------------------------


@decides("comparing.whole_count")
def whole_count(apart: float) -> object:
    return bool(np.isnan(_whole(np.array([5 - 5e-6 - apart]), np.array([5.0])))[0])


@decides("comparing.whole_share")
def whole_share(share: float) -> object:
    target, reference = np.array([1e6 + share * 1e7]), np.array([1e6])
    _settle(target, reference, np.array([1e7]), np.ones(1, bool))
    return bool(target[0] == reference[0])


@decides("comparing.sum_of_float64")
def sum_of_float64(relative: float) -> object:
    context, _ = record("param", "value")
    target, reference = (_copied(half) for half in (context.rows.target, context.rows.reference))
    target.statistics["mean"][0] = reference.statistics["mean"][0] * (1 + relative)
    _settle_sums(target, reference, 0)
    return bool(target.statistics["mean"][0] == reference.statistics["mean"][0])


# -- settings and scalars ------------------------------------------


@decides("comparing.rounded_setting")
def rounded_setting(relative: float) -> object:
    return len(list(setting_gaps({"eps": 1e-8}, {"eps": 1e-8 * (1 + relative)})))


@decides("comparing.set_exactly")
def set_exactly(relative: float) -> object:
    lines = [{"step": 0, "learning_rate": 0.1 * times} for times in (1 + relative, 1)]
    (pair,) = compare_scalars(lines[:1], lines[1:], {}, {})
    return pair.beyond


def is_left_later(times: float, *, equal: bool) -> bool:
    """Equal losses, then one of a step that was not captured."""
    target, reference = (
        [{"step": 0, "loss": 2.0}, {"step": 1, "loss": loss}] for loss in (1 + times * 1e-6, 1)
    )
    limits = {0: {"loss": 1e-6, "gradient": 1e-6}}
    return later_loss(compare_scalars(target, reference, limits, {}), limits, equal=equal) is None


@decides("comparing.later_loss")
def later(times: float) -> object:
    return is_left_later(times, equal=False)


@decides("comparing.later_loss_after_equal")
def later_after_equal(times: float) -> object:
    return is_left_later(times, equal=True)


@decides("comparing.handed_apart")
def handed_apart(apart: float) -> object:
    return are_apart(np.array([2.0, 1.0 + apart]), np.ones(2))


@decides("comparing.undone")
def undone(share: float) -> object:
    return is_taken_out(2.0, 1.0 + share, 1.0)


# -- conclusion ------------------------------------------


def word(doubt: float, before: Preceding) -> object:
    """The confidence in a place whose score leaves this doubt."""
    return confidence("values", math.sqrt(1 / doubt - 1), before, 1.0).word


@decides("comparing.noise_grows")
def noise_grows(score: float) -> object:
    return may_be_noise(score)


@decides("comparing.no_doubt")
def no_doubt(doubt: float) -> object:
    return word(doubt, Preceding(equal=0, within=1, exceeding=0))


@decides("comparing.some_doubt")
def some_doubt(doubt: float) -> object:
    return word(doubt, Preceding(equal=0, within=1, exceeding=0))


@decides("comparing.doubt_after_equal")
def doubt_after_equal(times: float) -> object:
    return word(0.02 * times, Preceding(equal=1, within=0, exceeding=0))


def norms(factor: float, rest: float) -> int:
    """How much is said of a factor in a difference of size 1."""
    columns = {"scale": 1 + factor, "reference_shape": "[4,8]", "residual": rest, "rel_l2": 1.0}
    return len(_norms(JudgedRow.from_columns(columns)))


@decides("comparing.factor_of_difference")
def factor_of_difference(share: float) -> object:
    return norms(share, 0.1)


@decides("comparing.rest_of_difference")
def rest_of_difference(share: float) -> object:
    return norms(0.9, share)


def refused(modules: int, shared: int, weights: int = 0, other_shape: int = 0) -> bool:
    """Whether two models are refused that share some of their modules, and the shapes of their weights."""

    def make(out: Recorder, target: bool) -> None:
        for at in range(modules):
            out.record(out.call("module", f"m{at}", type_="Linear"), "forward", "output.0", ONE)
        for at in range(weights):
            size = 2 if target and at < other_shape else 3
            out.record(out.call("parameter", f"w{at}"), "param", "value", np.ones(size, np.float32))

    context, _ = step(make)
    calls = context.rows.match.calls
    paired = np.where(np.arange(modules + weights) < shared + weights, calls.reference_of, -1)
    match = replace(context.rows.match, calls=replace(calls, reference_of=paired))
    try:
        refuse_different_models(replace(context.rows, match=match), Path("t"), Path("r"))
    except NothingCompared:
        return True
    return False


@decides("comparing.model_share", margin=0.05)
def model_share(share: float) -> object:
    return refused(100, round(100 * share))


@decides("comparing.model_shapes", margin=0.02)
def model_shapes(share: float) -> object:
    return refused(4, 4, 100, round(100 * share))


@decides("comparing.model_fewest")
def model_fewest(modules: float) -> object:
    return refused(int(modules), 0)


@decides("comparing.buffer_apart")
def buffer_apart(share: float) -> object:
    """Norms of a running variance after one step."""
    from trueup.comparing.buffers import _written

    return len(
        _written(0, {"buffers": {"bn.running_var": 1.0}}, {"buffers": {"bn.running_var": 1.0 - share}})
    )


@decides("comparing.buffer_apart_of_equal")
def buffer_apart_of_equal(share: float) -> object:
    """Norms of a running variance after one step in which all else is equal."""
    from trueup.comparing.buffers import _written
    from trueup.comparing.thresholds import BUFFER_APART_OF_EQUAL

    sides = ({"buffers": {"bn.running_var": held}} for held in (1.0, 1.0 - share))
    return len(_written(0, *sides, apart=BUFFER_APART_OF_EQUAL))


@decides("comparing.average_roundings", margin=0.01)
def average_roundings(roundings: float) -> object:
    """An average that moves by so many roundoffs, of weights that move further."""
    norm, roundoff = 10.0, DTYPES["float32"].eps
    before = np.full(100, 1.0)
    after = before + roundings * roundoff
    one = Averaged(
        before=before,
        after=after,
        weight=before + 1.0,
        weight_before=before,
        rounding=rounding_of(norm, roundoff),
    )
    found = fit_of([one])
    return None if found is None else found.form


@decides("comparing.average_share", margin=0.01)
def average_share(share: float) -> object:
    """Averages that differ by so many times what a tenth of the weights' difference, 1, makes of them."""
    before, weight = np.zeros(4), np.ones(4)
    return 0.1 * share > taken_up(before, 0.1 * weight, weight)


@decides("comparing.master_update", margin=0.01)
def master_update(share: float) -> object:
    """Masters that differ by such a share of an update of length 1, and by nothing else."""
    return share > allowed_gap(0.0, 0.0, 1.0)


@decides("comparing.master_fit_rest", margin=0.01)
def master_fit_rest(rest: float) -> object:
    """A difference along the weights, with such a share of it across them."""
    weights, across = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    return multiple_of(weights * np.sqrt(1 - rest * rest) + rest * across, weights) is None


@decides("comparing.average_told", margin=0.01)
def average_told(times: float) -> object:
    """Two decays, each known to 1e-5."""
    one, other = (
        AverageFit(form=AverageForm.AFTER, new=new, error=1e-5) for new in (0.1, 0.1 + times * 2e-5)
    )
    return decays_differ(one, other)


@decides("comparing.mean_roundings")
def mean_roundings(roundings: float) -> object:
    """A loss of 64 tokens whose logits, made of float16 numbers, are bit-identical."""

    def make(out: Recorder, target: bool) -> None:
        root = out.call("module", "", type_="Net")
        logits = np.arange(1, 64 * 8 + 1).reshape(64, 8)
        out.record(root, "forward", "output.0", (logits / 512).astype(np.float16))
        out.record(out.call("loss", "loss"), "loss", "value", np.array(1 + 1e-3 * target, np.float32))

    return differs(step(make), roundings * DTYPES["float16"].eps / 8)


@decides("comparing.uncounted", margin=0.1)  # sketches tell to some percent
def uncounted(share: float) -> object:
    """A label of 4096 that differs, and a gradient, of values in half precision, by a share of a row's."""

    def make(out: Recorder, target: bool) -> None:
        root, rng = out.call("module", "", type_="Net"), np.random.default_rng(0)
        sent = rng.standard_normal((4096, 4))
        gap = share / 64 * np.linalg.norm(sent)
        sent[:256] *= 1 + target * gap / np.linalg.norm(sent[:256])
        out.record(root, "forward", "output.0", rng.standard_normal((64, 8)).astype(np.float16))
        loss = out.call("loss", "loss")
        out.record(loss, "loss", "value", np.array(1, np.float32))
        out.record(loss, "loss", "labels", np.arange(4096) + target * (np.arange(4096) == 0))
        out.record(root, "backward", "output.0", sent.astype(np.float32))

    judgement = judge_step(*step(make))
    return RecordCode.UNCOUNTED_LABELS in {why.code for why in judgement.reasons.values()}


@decides("comparing.unfelt", margin=0.1)
def unfelt(times: float) -> object:
    """A tensor inside the model that differs so many times as much as a gradient of a weight may."""

    def make(out: Recorder, target: bool) -> None:
        rng, factor = np.random.default_rng(0), 1.0 + target * make.apart
        root = out.call("module", "", type_="Net")
        inner = out.call("module", "inner", parent=root, type_="Linear")
        out.record(inner, "forward", "input.0", (factor * rng.standard_normal((16, 8))).astype(np.float32))
        out.record(root, "forward", "output.0", rng.standard_normal((16, 8)).astype(np.float32))
        out.record(out.call("loss", "loss"), "loss", "value", np.array(1, np.float32))
        weight = out.call("parameter", "inner.weight")
        grad = rng.standard_normal((8, 8)) * (1 + target * 1e-8)
        out.record(weight, "param_grad", "local", (grad * (1 + target * 2.0**-23)).astype(np.float32))

    make.apart = 0.0
    context, metrics = step(make)
    bound = float(judge_step(context, metrics).tolerance[-1])
    make.apart = times * bound
    judgement = judge_step(*step(make))
    return RecordCode.WITHOUT_EFFECT in {why.code for why in judgement.reasons.values()}


# -- losses ------------------------------------------


@decides("comparing.reproduced")
def loss_reproduced(relative: float) -> object:
    logits, labels = np.eye(8), np.arange(8)
    loss = math.log(math.e + 7) - 1
    return reproduced(loss * (1 + relative), logits, labels, ignore_index=-100) is None


@decides("comparing.loss_times")
def loss_times(times: float) -> object:
    return times * 1e-3 <= allowed_error(1e-3, 1)


@decides("comparing.loss_roundings", beside=(0, 1))
def loss_roundings(roundings: float) -> object:
    return FLOAT32 * (roundings + 10) <= allowed_error(0.0, 100)


# -- norms ------------------------------------------

UNIT = 2.0**-8


def norm_given(rows: int = 64, width: int = 128) -> NormCall:
    """An exact RMS norm in bfloat16, without a weight."""
    random = np.random.default_rng(0)
    x = rounded_to(random.normal(size=(rows, width)), "bfloat16")
    y = rounded_to(x / np.sqrt(np.square(x).mean(1, keepdims=True)), "bfloat16")
    return NormCall(x, y, None, None, "bfloat16", UNIT)


def off_together(given: NormCall, sizes: Floats) -> NormCall:
    """The norm with its rows off by these, in unit roundoffs."""
    exact = given.x / np.sqrt(np.square(given.x).mean(1, keepdims=True))
    return replace(given, y=exact * (1 + sizes[:, None] * UNIT))


@decides("comparing.norm_rows")
def norm_rows(rows: float) -> object:
    random = np.random.default_rng(0)
    x, error = random.normal(size=(2, round(rows), 16))
    return are_off_together(x, error, x, None) is None


@decides("comparing.activation_numbers")
def activation_numbers(numbers: float) -> object:
    """Two functions that give so many numbers different."""
    own = np.arange(4096.0)
    return _num_telling(own, own + (own < round(numbers)), own) > 0


@decides("comparing.norm_same")
def norm_same(share: float) -> object:
    given = norm_given()
    y = given.y.copy()
    changed = round((1 - share) * y.size)
    y.ravel()[:changed] *= 1 + 2 * UNIT
    return rounds_inside(replace(given, y=y), [0.0])


@decides("comparing.norm_others")
def norm_others(share: float) -> object:
    given = norm_given(rows=1000)
    off = rounded_to(off_together(given, np.full(1000, 1.0)).y, "bfloat16")
    changed = round((1 - share) / (1 - float((off == given.y).mean())) * len(off))
    return rounds_inside(replace(given, y=np.concatenate([off[:changed], given.y[changed:]])), [0.0])


@decides("comparing.norm_coherent", margin=0.25)
def norm_coherent(together: float) -> object:
    """Rows of so many elements, all of one size, that are off by one factor."""
    width = round(together)
    x = np.linspace(1, 2, width, endpoint=False) * np.ones((64, 1))
    z = 1 + 1e-4 * np.outer(np.arange(64), np.arange(width))
    return are_off_together(x, z * UNIT, z, None)


@decides("comparing.norm_fits")
def norm_fits(size: float) -> object:
    given = norm_given()
    signs = np.where(np.arange(len(given.x)) % 2, 1.0, -1.0)
    return rounds_inside(off_together(given, size * signs), [0.0])


# -- dtypes ------------------------------------------


@decides("comparing.coarser")
def coarser(size: float) -> object:
    return is_rounding(size * UNIT, 1e-6, UNIT)


def parts_of_a_sum() -> tuple[list[Floats], Floats]:
    """Three gradients in bfloat16 and something that is none of their sum, of its length."""
    parts = [rounded_to(one, "bfloat16") for one in np.random.default_rng(0).normal(size=(3, 512))]
    total, other = np.sum(parts, axis=0), np.random.default_rng(1).normal(size=512)
    other -= total * (total @ other) / (total @ total)
    return parts, other * np.linalg.norm(total) / np.linalg.norm(other)


@decides("comparing.on_grid_by_chance", margin=0.1)
def on_grid_by_chance(share: float) -> object:
    """Of a thousand numbers of the other side, so many are of the coarse dtype."""
    values = np.random.default_rng(0).normal(size=1000).astype(np.float32).astype(np.float64)
    at = round(1000 * share)
    values[:at] = rounded_to(values[:at], "bfloat16")
    return rounded_on_one_side(rounded_to(values, "bfloat16"), values, "bfloat16")


@decides("comparing.sum_exact", margin=0.1)
def sum_exact(size: float) -> object:
    parts, other = parts_of_a_sum()
    return added_up(np.sum(parts, axis=0) + size * FLOAT32 * other, parts)


@decides("comparing.sum_linked")
def sum_linked(size: float) -> object:
    parts, other = parts_of_a_sum()
    return is_sum_of(np.sum(parts, axis=0) + size / np.sqrt(1 - size**2) * other, parts)


def of_one_side(size: float, share: float) -> object:
    """Rows of 64 that both sides have, and one of the target's alone with numbers of this size."""
    reference = np.ones((5, 64))
    reference[4] = 0.0
    target = reference.copy()
    target[4] = size
    return counted(target, reference, ["float32", "float16"], share=share)


@decides("comparing.counted_times")
def counted_times(times: float) -> object:
    return of_one_side(times * DTYPES["float16"].smallest_normal, 0.0)


@decides("comparing.counted_share")
def counted_share(share: float) -> object:
    return of_one_side(share, COUNTED_SHARE)
