"""Cases whose measured quantity is a number at will, for every entry of ``diagnosing/thresholds.py``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from tests.comparing.rules.judging import step_of
from tests.comparing.traces import Recorder
from tests.deciding import decides
from tests.diagnosing.deciding_kinds import unit
from trueup.diagnosing.batches import _mapped, _packing, rows_found, shift_holds, value_relation
from trueup.diagnosing.checks.master_start import adam_direction, is_at
from trueup.diagnosing.ledger import Clipping, Summing, _best, _proportion, _value_limit, clipping, way_of
from trueup.diagnosing.loss_form import loss_form
from trueup.diagnosing.noise_fold import _same_beginning
from trueup.diagnosing.optimizer_fit import (
    FittedConstant,
    UpdateFit,
    fit_coupled_moment,
    fit_eps,
    fit_steady_update,
    fit_update,
    roundoff_of,
)
from trueup.diagnosing.pipeline import against_agreement, far_later
from trueup.diagnosing.replay.charge import is_multiple
from trueup.diagnosing.replay.judge import allowed_bias, allowed_size, least_scale
from trueup.diagnosing.replay.lone import lone_score
from trueup.diagnosing.replay.noise import SiteNoise
from trueup.diagnosing.stages.between_steps import is_taken_back_by_one
from trueup.diagnosing.stages.clipping import _averaged, _clipping_difference, _factor_difference
from trueup.diagnosing.stages.context import clarity, needs_no_replay
from trueup.diagnosing.stages.decay_order import _all_hold
from trueup.diagnosing.stages.from_origin import few_indices
from trueup.diagnosing.stages.gaps import ConstantGap, _constant_differs, _drop_contradicted
from trueup.diagnosing.stages.handed_back import stale_elements
from trueup.diagnosing.stages.handover import is_other_start, is_rounded_start
from trueup.diagnosing.stages.loss_factors import is_normalised
from trueup.diagnosing.stages.optimizer import _zero, near_updates
from trueup.diagnosing.stages.reduction import _differs, _have_same_factor, _is_rounded
from trueup.diagnosing.stages.weight_change import change_of
from trueup.diagnosing.thresholds import START_NEAR
from trueup.diagnosing.update_rule import (
    OptimizerStep,
    Update,
    _best_fit,
    _beta,
    _corrected,
    _moment_constants,
    precision_of,
)
from trueup.diagnosing.whose import axis_of_factor
from trueup.errors import ConfigError
from trueup.numerics.dtypes import DTYPES
from trueup.store import StepView
from trueup.store.view import ACCUMULATED, CLIPPED
from trueup.types.arrays import Floats
from trueup.types.codes import BatchCode
from trueup.types.finding import Basis, Origin, Stage
from trueup.types.layout import Layout

G = unit(4096, seed=1)
P = unit(4096, seed=2, beside=(G,))
N = unit(4096, seed=3, beside=(G, P))


def exact(value: float) -> FittedConstant:
    return FittedConstant(value=value, error=0.0)


# -- what an optimizer did ------------------------------------------


@decides("diagnosing.few_indices")
def few_of_a_dimension(share: float) -> object:
    other = np.zeros((1000, 2))
    other[: round(1000 * share)] = 1.0
    return few_indices(other, np.zeros((1000, 2)))


@decides("diagnosing.parallel")
def parallel(square: float) -> object:
    before = math.sqrt(1 - square) * G + math.sqrt(square) * P
    fit = fit_update(-G, G, before)
    assert fit is not None
    return math.isinf(fit.pull.error)


@decides("diagnosing.apart_errors", beside=(0, 1))
def apart_errors(errors: float) -> object:
    return FittedConstant(value=0.01 * errors, error=0.01).apart(exact(0.0)) > 1


@decides("diagnosing.apart_at_least")
def apart_at_least(relative: float) -> object:
    return exact(1 + relative).apart(exact(1.0)) > 1


@decides("diagnosing.coupled_rest")
def coupled_rest(share: float) -> object:
    return fit_coupled_moment(0.1 * (G + 0.5 * P + 1.118 * share * N), G, P, None) is None


@decides("diagnosing.coupled_share")
def coupled_share(share: float) -> object:
    return fit_coupled_moment(0.1 * (G + share * P), G, P, None) is None


@decides("diagnosing.coupled_roundings")
def coupled_roundings(times: float) -> object:
    coarse = 2.0**-8
    return fit_coupled_moment(0.1 * (G + times * coarse * P), G, P, None, roundoff=coarse) is None


@decides("diagnosing.beta_known")
def beta_known(share: float) -> object:
    return _beta(FittedConstant(value=0.8, error=0.2 * share), 0.9) == 0.9


@decides("diagnosing.moment_rest")
def moment_rest(share: float) -> object:
    m0 = unit(4096, seed=4, beside=(G, P, N))
    first = 0.9 * m0 + 0.1 * G
    first = first + share * np.linalg.norm(first) * P
    step = OptimizerStep(before=P, moved=G, gradient=G, first_before=m0, moment_dtype="float32")
    return _moment_constants(step, first, np.ones(4096), 2.0)[1]


def eps_of(count: int, *, like_first: int = 0) -> FittedConstant | None:
    """eps of an update by 0.1: 1e-3 in the first elements, in which it matters most, else 2e-3."""
    of_first = np.arange(count) < like_first
    bottom = np.where(of_first, 1e-3, 1.0)
    top = np.ones(count)
    moved = -0.1 * top / (bottom + np.where(of_first, 1e-3, 2e-3))
    return fit_eps(moved, top, bottom, np.zeros(count), 0.1, 0.0, 0.0)


@decides("diagnosing.fit_roundoff")
def fit_roundoff(roundoff: float) -> object:
    found = eps_of(100)
    assert found is not None
    return roundoff * (1.0 + 1.002) <= found.error


@decides("diagnosing.unknown_roundoff")
def unknown_roundoff(roundoff: float) -> object:
    return roundoff <= roundoff_of(None)


@decides("diagnosing.eps_fewest")
def eps_fewest(elements: float) -> object:
    return eps_of(int(elements)) is None


@decides("diagnosing.eps_share")
def eps_share(share: float) -> object:
    found = eps_of(100_000, like_first=round(50_000 * share))
    assert found is not None
    return found.value < 1.5e-3


@decides("diagnosing.eps_apart")
def eps_apart(relative: float) -> object:
    return _constant_differs("eps", exact(1.0 - relative), exact(1.0))


@decides("diagnosing.gap_errors", beside=(0, 1))
def gap_errors(errors: float) -> object:
    return _constant_differs("eps", FittedConstant(value=1.0, error=0.05), exact(1 - 0.05 * errors))


@decides("diagnosing.decay_apart")
def decay_apart(relative: float) -> object:
    return _constant_differs("weight_decay", exact(100.0), exact(100.0 * (1 - relative)))


@decides("diagnosing.decay_order_near")
def decay_order_near(share: float) -> object:
    return _all_hold([(1e-3, 1e-3), (1e-3, (1 - share) * 1e-3), (0.0, 0.0)], 1e-3)


@decides("diagnosing.decay_least")
def decay_least(decay: float) -> object:
    return _constant_differs("weight_decay", exact(decay * 1.005), exact(0.0))


@decides("diagnosing.decay_zero")
def decay_zero(decay: float) -> object:
    return _zero(f"{decay:.6g}", stated=False)


@decides("diagnosing.imprecise_fit")
def imprecise_fit(residual: float) -> object:
    update = Update(fqn="w", moved=True, dtype=None, after_dtype=None, state_dtypes={}, count=None)
    gaps = {"lr": ConstantGap(key="lr", target="1", reference="2", declared=False)}
    _drop_contradicted(gaps, replace(update, residual=residual), update)
    return len(gaps)


@decides("diagnosing.update_rest")
def update_rest(residual: float) -> object:
    top, bottom, before = np.ones(64), np.linspace(1, 2, 64) * 5e-5, np.zeros(64)
    plain, other = (-top / (bottom + eps) for eps in (1e-8, 1e-6))
    full = fit_steady_update(other, top, bottom, 1e-8, before, 0.0)
    assert full is not None
    moved = plain + residual / full.residual * (other - plain)
    best = _best_fit(moved, {True: (top, bottom)}, 1e-8, before, 0.0, None)
    assert best is not None
    return best[1].residual < 0.9 * residual


@decides("diagnosing.correction_apart")
def correction_apart(apart: float) -> object:
    def fit(rate: float) -> UpdateFit:
        return UpdateFit(rate=exact(rate), pull=exact(0.0), residual=0.0)

    return _corrected({True: fit(0.1), False: fit(0.1 * math.exp(apart))}, 0.1)


@contextmanager
def viewed(out: Recorder) -> Iterator[StepView]:
    """A recorded step with its values."""
    with TemporaryDirectory() as folder:
        trace = out.write(Path(folder) / "run", values=True)
        yield StepView(trace, trace.read(0, 0))


def of_gradient(out: Recorder, call: int, slot: str, array: Floats) -> None:
    out.record(call, "param_grad", slot, array.astype(np.float32))


@decides("diagnosing.precision_fewest")
def precision_fewest(numbers: float) -> object:
    out = Recorder()
    out.record(out.call("parameter", "w"), "param", "value", np.ones(int(numbers), np.float32))
    with viewed(out) as step:
        return precision_of(step, 0)


def near(apart: Floats, roundoff: float, update: float) -> bool:
    before = np.ones(10_000)
    return near_updates(before + update + apart, before + update, before, roundoff)


@decides("diagnosing.update_roundings", beside=(0, 1))
def update_roundings(roundings: float) -> object:
    return near(np.full(10_000, 0.999 * 2 * roundings * 2.0**-8), 2.0**-8, 0.0)


@decides("diagnosing.start_errors", beside=(0, 1))
def start_errors(errors: float) -> object:
    return is_at(FittedConstant(value=1.0, error=float(START_NEAR) / errors), 1)


@decides("diagnosing.start_near")
def start_near(near: float) -> object:
    return is_at(FittedConstant(value=1.0 - near, error=0.0), 1)


@decides("diagnosing.start_apart", beside=(0, 1))
def start_apart_of_copies(most: float) -> object:
    """Weights that a master began two roundoffs from, less or more."""
    return is_other_start({"w": 0.999 * float(most)}, {"w": 0.0}, "w", "w")


@decides("diagnosing.start_above_eps", beside=(0, 1))
def start_above_eps(times: float) -> object:
    """One root just above and just below that many times eps."""
    root = np.array([0.9995e-6 * float(times)])
    return bool(adam_direction(root, root**2, 1e-6)[1].any())


@decides("diagnosing.start_copied", beside=(0, 1))
def start_of_a_copy(most: float) -> object:
    return is_rounded_start(0.999 * float(most), 1.0)


@decides("diagnosing.start_rounded", beside=(0, 1))
def start_that_rounds_to_a_copy(least: float) -> object:
    return is_rounded_start(0.0, 1.001 * float(least))


@decides("diagnosing.update_apart")
def update_apart(relative: float) -> object:
    return near(np.full(10_000, relative), 0.0, 1.0)


@decides("diagnosing.move_taken_back")
def move_taken_back(left: float) -> object:
    return is_taken_back_by_one(1.0, left)


@decides("diagnosing.move_whole")
def move_whole(off: float) -> object:
    return is_taken_back_by_one(1.0 + off, 0.0)


@decides("diagnosing.update_share", margin=0.0005)
def update_share(share: float) -> object:
    return near(np.where(np.arange(10_000) < round(10_000 * share), 0.0, 1.0), 0.0, 1.0)


# -- losses ------------------------------------------


@decides("diagnosing.loss_form_residual")
def loss_form_residual(share: float) -> object:
    """The gradient of a cross-entropy, and as much noise of that length."""
    generator = np.random.default_rng(0)
    logits, labels = generator.normal(size=(64, 16)), generator.integers(0, 16, 64)
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    gradient = (p - np.eye(16)[labels]) / 64
    noise = generator.normal(size=gradient.shape)
    noise *= share * np.linalg.norm(gradient) / np.linalg.norm(noise)
    return (
        loss_form(logits, labels, gradient + noise, np.ones(64, bool), roundoff=DTYPES["float32"].eps) is None
    )


def left_by(terms: np.ndarray, values: np.ndarray) -> np.ndarray:
    """What least squares over the terms leaves."""
    return values - terms.T @ np.linalg.lstsq(terms.T, values, rcond=None)[0]


@decides("diagnosing.loss_form_better")
def loss_form_better(share: float) -> object:
    """The gradient of logits over a temperature, and noise that is so much of what the other form leaves."""
    generator = np.random.default_rng(0)
    logits, labels = 0.1 * generator.normal(size=(64, 16)), generator.integers(0, 16, 64)
    one_hot = np.eye(16)[labels]
    sums = [np.exp(logits / temperature).sum(axis=1, keepdims=True) for temperature in (0.5, 1.0)]
    divided = (np.exp(logits / 0.5) / sums[0] - one_hot).ravel()
    p = np.exp(logits) / sums[1]
    terms = [one.ravel() for one in (p - one_hot, one_hot - 1 / 16, np.log(sums[1]) * p)]
    noise = left_by(np.stack([*terms, divided]), generator.normal(size=divided.shape))
    other = left_by(np.stack(terms), divided)
    noise *= share / np.sqrt(1 - share**2) * np.linalg.norm(other) / np.linalg.norm(noise)
    gradient = (divided + noise).reshape(logits.shape)
    found = loss_form(logits, labels, gradient, np.ones(64, bool), roundoff=DTYPES["float32"].eps)
    return found is not None and found.temperature == 1.0


# -- replays ------------------------------------------


@decides("diagnosing.noise_factor")
def noise_factor(times: float) -> object:
    return times * 1e-3 <= allowed_size(1e-6, SiteNoise(rel_l2=1e-3, bias_z=0.0))


@decides("diagnosing.bound_share")
def bound_share(share: float) -> object:
    return share * 1e-3 <= allowed_size(1e-3, SiteNoise(rel_l2=0.0, bias_z=0.0))


@decides("diagnosing.bias_z")
def bias_z(z: float) -> object:
    return z <= allowed_bias(None)


@decides("diagnosing.bias_noise_factor")
def bias_noise_factor(times: float) -> object:
    return times * 5 <= allowed_bias(SiteNoise(rel_l2=0.0, bias_z=5.0))


@decides("diagnosing.bias_roundoffs")
def bias_roundoffs(roundoffs: float) -> object:
    eps = DTYPES["bfloat16"].eps
    return roundoffs * eps <= least_scale(eps)


@decides("diagnosing.bias_float32", beside=(0, 1))
def bias_float32(roundoffs: float) -> object:
    eps = DTYPES["float64"].eps
    return roundoffs * eps <= least_scale(eps)


@decides("diagnosing.lone_score", margin=0.1)
def of_lone(score: float) -> object:
    return score <= lone_score(peers=100)


ORIGIN = Origin(
    stage=Stage.FORWARD,
    module="a",
    site="a",
    phase="forward",
    slot="output.0",
    step=1,
    rank=0,
    microbatch=0,
    order=0,
    score=1.0,
    rel_l2=None,
    tolerance=None,
    basis=Basis.BOUND,
    target_record=None,
    reference_record=None,
)


@decides("diagnosing.trace_bias_z", margin=0.2)
def trace_bias_z(z: float) -> object:
    return clarity(replace(ORIGIN, bias_z=z)) > 0.5


@decides("diagnosing.far_beyond")
def far_beyond(score: float) -> object:
    return needs_no_replay(replace(ORIGIN, from_equals=True, score=score))


@decides("diagnosing.far_later")
def of_later(score: float) -> object:
    return len(far_later([replace(ORIGIN, score=score)], 0))


@decides("diagnosing.sent_back_apart")
def sent_back(share: float) -> object:
    """A gradient whose factor is 1.5, but for a share of what that changes."""
    return is_multiple(1.5, float(np.hypot(0.5, 0.5 * share)), 1.5)


@decides("diagnosing.against_agreement")
def of_replay(score: float) -> object:
    return len(against_agreement([replace(ORIGIN, score=score)]))


def most(basis: Basis, rank: float, **more: bool) -> bool:
    """Whether a place without any doubt ranks as high as that."""
    return rank - 0.004 <= clarity(replace(ORIGIN, basis=basis, score=math.inf, **more))


@decides("diagnosing.most_by_replay")
def most_by_replay(rank: float) -> object:
    return most(Basis.REPLAY, rank)


@decides("diagnosing.most_by_inputs")
def most_by_inputs(rank: float) -> object:
    return most(Basis.BOUND, rank, from_equals=True)


@decides("diagnosing.most_by_noise")
def most_by_noise(rank: float) -> object:
    return most(Basis.NOISE, rank)


@decides("diagnosing.most_by_bound")
def most_by_bound(rank: float) -> object:
    return most(Basis.BOUND, rank)


@decides("diagnosing.other_weights")
def other_weights(relative: float) -> object:
    sides = [Recorder(), Recorder()]
    for made in sides:
        made.record(made.call("parameter", "w"), "param", "value", np.ones(1))
    with TemporaryDirectory() as folder:
        rows = step_of(Path(folder), *sides)[0].rows
    try:
        _same_beginning(rows, np.array([relative]))
    except ConfigError:
        return True
    return False


# -- sums and clipping of gradients ------------------------------------------


def summing(residual: float, *, way: str = "own", factor: float = 1.0, over: int = 0) -> Summing:
    axes = tuple(f"axis{at}" for at in range(over))
    return Summing(fqn="w", way=way, factor=factor, residual=residual, over=axes)


@decides("diagnosing.sum_holds")
def sum_holds(residual: float) -> object:
    return _best([summing(9e-4), summing(residual, over=2)]).over


def clipped(aside: float) -> tuple[float, str]:
    """What a clipped gradient, the accumulated one and so much beside it, leaves of a factor; and the way."""
    out = Recorder()
    call = out.call("parameter", "w")
    of_gradient(out, call, "accumulated", G)
    of_gradient(out, call, "clipped", G + aside * N)
    with viewed(out) as step:
        found = clipping(step, loss_scale=None, reported=None)
        assert found is not None
        return _proportion(step, 0, 1)[1], found.way


@decides("diagnosing.sum_unlike", margin=0.05)
def sum_unlike(times: float) -> object:
    return clipped(1e-2 * times * 1e-3 / clipped(1e-2)[0])[1]


@decides("diagnosing.sum_explained")
def sum_explained(residual: float) -> object:
    return _differs(summing(residual, way="ranks"), summing(0.0), CLIPPED)


@decides("diagnosing.sum_changed")
def sum_changed(residual: float) -> object:
    return _differs(summing(residual), summing(0.0009), ACCUMULATED)


@decides("diagnosing.sum_worse", beside=(0, 1))
def sum_worse(times: float) -> object:
    return _differs(summing(0.05 * times), summing(0.05), ACCUMULATED)


@decides("diagnosing.rounded_times", beside=(0, 1))
def rounded_times(times: float) -> object:
    return _is_rounded(summing(1e-4 * times), summing(1e-4))


@decides("diagnosing.rounded_least")
def rounded_least(residual: float) -> object:
    return _is_rounded(summing(residual), summing(0.0))


@decides("diagnosing.factor_known")
def _factor_known(times):
    """Factors as far apart as asked, of sums that leave a hundredth unexplained."""
    own = Summing(fqn="w", way="own", factor=1.0 + times * 0.01, residual=0.0)
    other = Summing(fqn="w", way="own", factor=1.0, residual=0.01)
    return _have_same_factor(own, other, 0.0)


@decides("diagnosing.same_factor")
def same_factor(relative: float) -> object:
    return axis_of_factor(2 * (1 + relative), Layout(mesh={"dp": 2}))


NORM = Clipping(way="norm", norm=2.0, clipped_norm=1.0, factor=0.5, limit=None, reported=None, uneven=())


@decides("diagnosing.clip_exact")
def clip_exact(relative: float) -> object:
    return way_of({"a": 1.0}, 1 + relative)[0], _averaged(
        replace(NORM, factor=2 * (1 + relative)),
        replace(NORM, way="none", factor=1.0),
        Layout(mesh={"dp": 2}),
    )


@decides("diagnosing.clip_near")
def clip_near(relative: float) -> object:
    other = replace(NORM, clipped_norm=1 / (1 + relative), factor=NORM.factor / (1 + relative))
    return _clipping_difference(NORM, other, 1.0)


@decides("diagnosing.same_norm")
def same_norm(relative: float) -> object:
    each = replace(NORM, way="each")
    return _factor_difference(replace(each, norm=2 * (1 + relative)), replace(each, factor=0.1)) is None


@decides("diagnosing.at_top", margin=0.2)
def at_top(relative: float) -> object:
    out = Recorder()
    for name, size in (("a", 1.0), ("b", 1 - relative)):
        call = out.call("parameter", name)
        of_gradient(out, call, "accumulated", np.array([2.0, 0.5]))
        of_gradient(out, call, "clipped", np.array([size, 0.5]))
    with viewed(out) as step:
        return _value_limit(step, [(0, 1), (2, 3)], 1.0)


# -- weights ------------------------------------------

WEIGHT = unit(64, 64, seed=5)
BESIDE = unit(64, 64, seed=6, beside=(WEIGHT,))


def change(target: Floats, reference: Floats = WEIGHT) -> object:
    found = change_of(target, reference, "float32", "float32")
    return None if found is None else found.name


@decides("diagnosing.weight_exact")
def weight_exact(relative: float) -> object:
    return change(WEIGHT * -(1 - relative))


@decides("diagnosing.weight_factor_rest")
def weight_factor_rest(share: float) -> object:
    return change(0.5 * (WEIGHT + share * BESIDE))


@decides("diagnosing.cast_roundings", margin=0.005)
def cast_roundings(roundings: float) -> object:
    signs = np.where(np.arange(4096) % 2, 1, 0).reshape(64, 64)
    coarse = np.exp2(np.round(np.log2(np.abs(WEIGHT))))  # which every dtype holds
    return change(coarse, coarse * (1 - roundings * DTYPES["bfloat16"].eps * signs))


@decides("diagnosing.weight_alike")
def weight_alike(correlation: float) -> object:
    base = WEIGHT - WEIGHT.mean()
    aside = BESIDE - BESIDE.mean()
    base /= np.linalg.norm(base)
    aside -= np.vdot(aside, base) * base
    aside /= np.linalg.norm(aside)
    return change(correlation * base + math.sqrt(1 - correlation**2) * aside, base)


@decides("diagnosing.constant_start")
def constant_start(share: float) -> object:
    """Two weights of other deviations around one number."""
    spread = [(one - one.mean()) / one.std() * share for one in (BESIDE, WEIGHT)]
    return change(1 + spread[0], 1 + spread[1])


@decides("diagnosing.draw_spread")
def draw_spread(relative: float) -> object:
    return change(BESIDE / BESIDE.std() * (1 + relative), WEIGHT / WEIGHT.std())


@decides("diagnosing.draw_errors", beside=(0, 1))
def draw_errors(errors: float) -> object:
    few, other = (WEIGHT[0] / WEIGHT[0].std(), BESIDE[0] / BESIDE[0].std())
    return change(other * (1 + 0.99 * errors / math.sqrt(128)), few)


def stale(elements: int, apart: float) -> object:
    """What is found where so many of 1000 elements are still 0 instead of 1, the others off by ``apart``."""
    kept = np.arange(1000) < elements
    return stale_elements(np.where(kept, 0.0, 1 + apart), np.ones(1000), np.zeros(1000)) is None


@decides("diagnosing.stale_share")
def stale_share(share: float) -> object:
    return stale(round(1000 * share), 0.5)


@decides("diagnosing.stale_fewest")
def stale_fewest(elements: float) -> object:
    return stale(round(elements), 0.0)


@decides("diagnosing.stale_change")
def stale_change(relative: float) -> object:
    return stale(100, relative)


# -- batches ------------------------------------------


@decides("diagnosing.batch_share")
def batch_share(share: float) -> object:
    target = np.arange(1000).reshape(1, -1)
    return shift_holds(np.where(np.arange(1000) < round(1000 * share), target, -1), target, 0)


@decides("diagnosing.stream_fewest")
def stream_fewest(tokens: float) -> object:
    row = np.arange(int(tokens)).reshape(1, -1)
    return _packing(row + 1, row) is None


@decides("diagnosing.scaled_roundings", margin=0.05)
def scaled_roundings(roundings: float) -> object:
    """Pixels, twice as large and one less, of which one is off by so many roundings of the largest, 2."""
    pixels = np.linspace(0.0, 1.0, 64)
    target = 2 * pixels - 1
    target[32] += roundings * 2.0**-23
    found = value_relation(target, pixels, 2.0**-24)
    return found is None or found.code is not BatchCode.SCALED


@decides("diagnosing.samples_fewest")
def samples_fewest(samples: float) -> object:
    pixels, noise = np.random.default_rng(5).standard_normal((2, int(samples), 64))
    return value_relation(pixels + 0.1 * noise, pixels, 2.0**-24) is None


@decides("diagnosing.row_chance")
def row_chance(rows: float) -> object:
    target = np.arange(200).reshape(100, 2)
    earlier = np.tile(target[:1], (round(rows * 200**2), 1))
    return bool(rows_found(target, target[1:], {"step 0": earlier}))


@decides("diagnosing.mapped_most", beside=(0, 1))
def mapped_most(pairs: float) -> object:
    reference = np.tile(np.arange(100), (2, 1))
    return _mapped(np.where(reference < pairs, reference + 1000, reference), reference) is None


@decides("diagnosing.mapped_share")
def mapped_share(share: float) -> object:
    reference = np.where(np.arange(1000) < round(1000 * share), 1, 2).reshape(1, -1)
    return _mapped(np.where(reference == 1, 3, 2), reference) is None


@decides("diagnosing.normalised")
def normalised(apart: float) -> object:
    """Numbers of mean 0, whose deviation is so far from 1."""
    numbers = np.random.default_rng(6).standard_normal(64)
    return not is_normalised((1 + apart) * (numbers - numbers.mean()) / numbers.std())
