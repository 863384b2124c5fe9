"""Cases whose measured quantity is a number at will, for every entry of ``kinds/thresholds.py``."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tests.deciding import decides
from tests.diagnosing.cases import case, known, normal, pair, summary_only
from trueup.diagnosing.evidence import Evidence, Known, ParameterStep, Surroundings
from trueup.diagnosing.evidence.facts import LossFacts, RunFacts, SlotPair
from trueup.diagnosing.kinds import (
    attention,
    bit_flip,
    by_index,
    constants,
    criterion,
    dtype_or_rounding,
    fitting,
    grids,
    loss_divisor,
    missing_or_extra_term,
    non_determinism,
    norms,
    overflow_underflow,
    permutations,
    quantised,
    randomness,
    rotary,
    shifted_by_one,
    thresholds,
    transposed_or_permuted,
    updates,
    wrong_mask,
    wrong_optimizer_setting,
    wrong_scale,
    wrong_sign,
)
from trueup.diagnosing.kinds.attended import Attention
from trueup.diagnosing.kinds.attention import on_unit_circle
from trueup.diagnosing.kinds.solved import Solved
from trueup.diagnosing.loss_form import LossForm
from trueup.diagnosing.optimizer_fit import FittedConstant
from trueup.numerics.dtypes import DTYPES
from trueup.types.codes.kinds import KindReason, PlacesCode
from trueup.types.finding import KindCode, Stage

Floats = NDArray[np.float64]


def unit(*shape: int, seed: int, beside: tuple[Floats, ...] = ()) -> Floats:
    """A random direction of length 1, at right angles to others."""
    x = np.random.default_rng(seed).standard_normal(shape)
    for other in beside:
        other = other / np.linalg.norm(other)
        x -= np.vdot(other, x) * other
    return np.asarray(x / np.linalg.norm(x))


R = unit(64, 64, seed=1)
N = unit(64, 64, seed=2, beside=(R,))


def arrays(target: Floats, reference: Floats, **given: Any) -> Evidence:
    """Evidence about two float64 arrays."""
    return case(np.asarray(target, np.float64), np.asarray(reference, np.float64), **given)


def off_by(share: float) -> float:
    """The length of what is added at right angles so that it is this share of the whole; the rest has 1."""
    return share / math.sqrt(1 - share * share)


def first(count: float, size: int) -> NDArray[np.bool_]:
    """A share of ``size`` places, the first ones."""
    return np.arange(size) < round(count * size)


# -- shares, chance ------------------------------------------


@decides("kinds.full_share")
def full_share(share: float) -> object:
    return fitting.rank_of(share)


@decides("kinds.most_share")
def most_share(share: float) -> object:
    return fitting.rank_of(share)


@decides("kinds.some_share")
def some_share(share: float) -> object:
    return fitting.rank_of(share)


LEVELS = np.array([0.3, 1.7, 0.9, 2.2, 0.6, 1.1])


def law(levels: NDArray[Any], factors: NDArray[Any]) -> object:
    """What is concluded of the factors of rows, in float32."""
    run = RunFacts(row_inputs={0: {"input.1": levels}})
    evidence = case(torch.tensor(1.0), torch.tensor(1.2), phase="loss", slot="value", reference_run=run)
    near = thresholds.CLOSE_ROUNDINGS * DTYPES["float32"].eps
    return by_index._power_of_input(evidence, by_index._Factors(values=factors), near)


@decides("kinds.law_rows")
def law_rows(num: float) -> object:
    return law(LEVELS[: int(num)], 0.5 * LEVELS[: int(num)])


@decides("kinds.law_power", beside=(0, 1))
def law_power(power: float) -> object:
    return law(LEVELS, 0.5 * LEVELS**power)


@decides("kinds.law_roundings")
def law_roundings(off: float) -> object:
    factors = 0.5 * LEVELS
    factors[0] *= np.exp(off * DTYPES["float32"].eps)
    return law(LEVELS, factors) == {}


@decides("kinds.negated_share")
def negated_share(share: float) -> object:
    return wrong_sign._negated(arrays(-R + 2 * off_by(1 - share) * N, R)) is None


@decides("kinds.rounded_share")
def rounded_share(share: float) -> object:
    evidence = arrays(R + 0.5 * N, R, tolerance=1.0)
    vectors = evidence.vectors
    assert vectors is not None
    return fitting.explained(evidence, vectors, share * vectors.difference) == 1.0


def hidden(z: float) -> float:
    """The share of an effect below a coarse rounding that is ``z`` standard errors from none."""
    evidence = arrays(R + 1e-3 * N, R)
    vectors = replace(evidence.vectors, rounding=2.0**-9)  # type: ignore[type-var]
    return fitting.explained(evidence, vectors, 1e-3, z=z)  # type: ignore[arg-type]


@decides("kinds.hidden_share")
def hidden_share(share: float) -> object:
    return hidden(8.0) >= share


@decides("kinds.certain_z")
def certain_z(z: float) -> object:
    return hidden(z) == 1.0


@decides("kinds.significant_z")
def significant_z(z: float) -> object:
    return hidden(z) > 0


@decides("kinds.few_numbers")
def few_numbers(numbers: float) -> object:
    x = R.ravel()[: int(numbers)]
    return fitting.rank_of(1.0, arrays(2 * x, x).vectors)


@decides("kinds.min_numbers")
def min_numbers(numbers: float) -> object:
    x = R.ravel()[: int(numbers)]
    return wrong_sign._negated(arrays(-x, x)) is None


@decides("kinds.factor_rows", beside=(0, 1))
def factor_rows(rows: float) -> object:
    """A factor of 2, but of a row that is small."""
    r = normal(int(rows), 32)
    r[3] *= 0.01
    t = 2 * r
    t[3] = r[3]
    return fitting.holds_everywhere(arrays(t, r), np.asarray(r, np.float64).ravel(), 1.0)


@decides("kinds.many_numbers")
def many_numbers(numbers: float) -> object:
    return flipped(int(numbers), 1, 28) is None


@decides("kinds.chance_z")
def chance_z(z: float) -> object:
    kept, apart = 100_000, round(100 * z)  # 20,000 + apart against 20,000 - apart: sqrt(40,000) = 200
    x = np.ones(kept + 40_000)
    t, r = x.copy(), x.copy()
    t[: 20_000 + apart] = 0
    r[20_000 + apart : 40_000] = 0
    return randomness._dropout(arrays(t, r)) is None


@decides("diagnosing.solved_z")
def solved_z(z: float) -> object:
    return wrong_optimizer_setting._differ(
        FittedConstant(value=1 + 0.01 * z, error=0.01), FittedConstant(value=1.0, error=0.0)
    )


@decides("kinds.row_eps_z")
def row_eps_z(z: float) -> object:
    left, width, rows = 1e-3, 64, 32
    each = 2 * z * left / math.sqrt(width)
    each = each / (1 - each)  # of the rows' eps, half of them above, half below
    direction = np.stack([8 * unit(width, seed=row) for row in range(rows)])
    aside = np.stack([unit(width, seed=100 + row, beside=(direction[row],)) for row in range(rows)])
    c = 1 / np.sqrt(1 + each * np.where(np.arange(rows) % 2, 1, -1))
    y = c[:, None] * (direction + 8 * off_by(left) * aside)
    held = norms._Rows(x=direction, y=y, weight=np.ones(width), bias=np.zeros(width))
    fit = norms._eps(held, norms._Form())
    return fit is None or fit.of_all is None


@decides("kinds.recipe_fits")
def recipe_fits(roundoffs: float) -> object:
    return quantised.fits(roundoffs * 2.0**-8)


@decides("kinds.recipe_others")
def recipe_others(times: float) -> object:
    return quantised.is_as_near(times * 2.0**-9, 2.0**-9)


@decides("kinds.form_leaves")
def form_leaves(times: float) -> object:
    return norms.leaves_no_more(times * 1e-3, 1e-3)


@decides("kinds.exact_share")
def exact_share(share: float) -> object:
    return len(norms.that_give_most({norms._Form(): (1e-5, 1e-6, share)}))


@decides("kinds.exact_tie")
def exact_tie(less: float) -> object:
    other = norms._Form(eps=norms.NormForm.EPS_OUTSIDE)
    return len(norms.that_give_most({norms._Form(): (1e-5, 1e-6, 1.0), other: (1e-5, 1e-6, 1 - less)}))


@decides("kinds.chance_number")
def chance_number(chance: float) -> object:
    repeated = round(10_000 * chance / 2)
    return transposed_or_permuted.tells_numbers_apart(np.maximum(np.arange(1.0, 10_001.0), 1.0 + repeated))


# -- roundings ------------------------------------------


@decides("kinds.close_roundings", beside=(0, 1))
def close_roundings(roundings: float) -> object:
    return bool(fitting.close(np.array([1 + roundings * 2.0**-20]), np.ones(1), 2.0**-20).all())


@decides("kinds.roundings_apart", margin=0.05)
def roundings_apart(roundings: float) -> object:
    t = normal(64, 64).bfloat16()
    r = t.float() / (1 + roundings * DTYPES["bfloat16"].eps)
    found = dtype_or_rounding._dtypes(case(t, r))
    assert found is not None
    return found.rank


@decides("kinds.summed_roundings", margin=0.1)
def summed_roundings(roundings: float) -> object:
    x = normal(64, 64)
    return missing_or_extra_term.by_elimination(case((x.double() * (1 + roundings * 2.0**-24)).float(), x))


@decides("kinds.far_roundings", margin=0.01)
def far_roundings(roundings: float) -> object:
    return wrong_scale._statistics_scaled(arrays(R * (1 + roundings * 1e-7), R, kept="statistics")) is None


@decides("kinds.float32_roundoff")
def float32_roundoff(roundoff: float) -> object:
    return wrong_scale._statistics_scaled(arrays(R * (1 + 64 * roundoff), R, kept="statistics")) is None


@decides("kinds.finest_roundoff")
def finest_roundoff(roundoff: float) -> object:
    whole = torch.arange(16)
    return fitting.roundoff_of(case(whole, whole + 1)) >= roundoff


@decides("kinds.coarse_roundoff")
def coarse_roundoff(roundoff: float) -> object:
    evidence = arrays(R + roundoff * N, R)
    vectors = replace(evidence.vectors, rounding=roundoff)  # type: ignore[type-var]
    return fitting.explained(evidence, vectors, roundoff, z=100.0) > 0.5  # type: ignore[arg-type]


@decides("kinds.least_of_roundoff")
def least_of_roundoff(roundings: float) -> object:
    return grids.dtype_of_error(roundings * grids.ROUNDOFF["tf32"])


@decides("kinds.most_of_roundoff")
def most_of_roundoff(roundings: float) -> object:
    return grids.dtype_of_error(roundings * grids.ROUNDOFF["bfloat16"])


@decides("kinds.most_of_roundoff_float32")
def most_of_roundoff_float32(roundings: float) -> object:
    return grids.dtype_of_error(roundings * grids.ROUNDOFF["float32"])


@decides("kinds.bias_of_error")
def bias_of_error(share: float) -> object:
    error = share * R + math.sqrt(1 - share * share) * N
    return dtype_or_rounding._size(arrays(R + 0.004 * error, R)) is None


def spread(touched: NDArray[np.bool_], within: NDArray[np.bool_]) -> bool:
    """Whether errors at these places, of the size of a rounding at those, are like rounding."""
    r = np.ones(len(touched))
    vectors = arrays(r + touched * np.where(within, 1e-3, 1e-1), r).vectors
    assert vectors is not None
    return dtype_or_rounding._spread_like_rounding(vectors, 2.0**-9)


@decides("kinds.touched_share")
def touched_share(share: float) -> object:
    return spread(first(share, 10_000), np.ones(10_000, bool))


@decides("kinds.within_share")
def within_share(share: float) -> object:
    return spread(np.ones(10_000, bool), first(share, 10_000))


@decides("kinds.grid_share")
def grid_share(share: float) -> object:
    t = normal(10_000).bfloat16().double()
    r = torch.where(torch.from_numpy(first(share, 10_000)), t, t * (1 + 1e-5))
    return dtype_or_rounding._grid(case(t, r)) is None


# -- factors ------------------------------------------


def angles_of(theta: float) -> Floats:
    """Angles of position 1."""
    return np.asarray(theta ** -(np.arange(8) / 8))


@decides("kinds.near_one")
def near_one(apart: float) -> object:
    return rotary._other_theta(arrays(R, N), 1e4 * (1 + apart), 1e4) is None


def term(factor: float, target: Floats, bias: Floats) -> object:
    """What is found where a multiple of a tensor nearby was left out."""
    around = Surroundings(inputs=(pair("input.0", np.asarray(bias)),))
    return missing_or_extra_term._term(arrays(target, target + factor * bias, surroundings=around))


@decides("kinds.factor_near_one")
def factor_near_one(apart: float) -> object:
    return term(1 + apart, R, N).rank  # type: ignore[attr-defined]


@decides("kinds.single_near_one")
def single_near_one(apart: float) -> object:
    return term(1 + apart, np.array(3.0), np.array(0.7)) is None


@decides("kinds.factor_errors", margin=0.01)
def factor_errors(errors: float) -> object:
    return wrong_scale.known_factors(arrays(R, N), 2 * (1 + errors * 1e-3 / 2), 1e-3)


@decides("kinds.factor_at_least")
def factor_at_least(apart: float) -> object:
    return wrong_scale.known_factors(arrays(R, N), 2 * (1 + apart), 0.0)


@decides("kinds.factor_at_most")
def factor_at_most(apart: float) -> object:
    return wrong_scale.known_factors(arrays(R, N), 2 * (1 + apart), 1.0)


@decides("kinds.least_surprise")
@decides("kinds.most_surprise")
def surprise(steepest: float) -> object:
    return loss_divisor._sends_back(
        LossFacts(value=1.0, counted=2, positions=4, rows=1, steepest=steepest), 1.0
    )


def forms(target: float, reference: float, temperature: float = 1.0) -> object:
    """What is solved of two losses whose labels are smoothed, and that have a z-loss, by so much, of
    logits over a temperature."""
    runs = [
        RunFacts(
            losses={
                0: LossFacts(
                    value=1.0,
                    counted=2,
                    positions=2,
                    rows=1,
                    steepest=None,
                    form=LossForm(
                        divisor=2.0,
                        smoothing=s,
                        smoothing_error=0.0,
                        z_loss=z,
                        z_loss_error=0.0,
                        temperature=t,
                    ),
                )
            }
        )
        for s, z, t in ((target, reference, temperature), (0.0, 0.0, 1.0))
    ]
    about = arrays(R, N).origin
    evidence = Evidence(
        replace(about, stage=Stage.LOSS, phase="loss", slot="value"),
        SlotPair(slot="value"),
        target_run=lambda: runs[0],
        reference_run=lambda: runs[1],
    )
    return criterion.criterion_fault(evidence) is None


@decides("kinds.temperature_apart")
def temperature_apart(apart: float) -> object:
    return forms(0.0, 0.0, 1.0 + apart)


def sent(target: NDArray[np.float64], reference: NDArray[np.float64]) -> Solved | None:
    """What is solved of two losses that send these gradients back."""
    runs = [RunFacts(sent_back={0: one}) for one in (target, reference)]
    about = arrays(R, N).origin
    evidence = Evidence(
        replace(about, stage=Stage.LOSS, phase="loss", slot="value"),
        SlotPair(slot="value"),
        target_run=lambda: runs[0],
        reference_run=lambda: runs[1],
    )
    return criterion._other_positions(evidence)


@decides("kinds.sent_least")
def sent_least(size: float) -> object:
    reference = np.ones((4, 3))
    target = reference.copy()
    target[1], reference[1] = size, 0.0
    return sent(target, reference) is None


@decides("kinds.smoothing_apart")
def smoothing_apart(smoothing: float) -> object:
    return forms(smoothing, 0.0)


@decides("kinds.z_loss_apart")
def z_loss_apart(coefficient: float) -> object:
    return forms(0.0, coefficient)


@decides("kinds.usual_factors", beside=(0, 1))
def usual_factors(number: float) -> object:
    return wrong_scale.known_factors(arrays(R, N), number, 0.0)


@decides("kinds.alike_cosine", margin=0.003)
def alike_cosine(cosine: float) -> object:
    return missing_or_extra_term._alike(R.ravel(), (cosine * R + math.sqrt(1 - cosine * cosine) * N).ravel())


@decides("kinds.repeated_rows")
def repeated_rows(rows: float) -> object:
    x, bias = unit(int(rows), 16, seed=5), unit(16, seed=6)
    return missing_or_extra_term._broadcast(arrays(x + bias, x)) is None


@decides("kinds.unrelated")
def unrelated(apart: float) -> object:
    return missing_or_extra_term.by_elimination(arrays(R + apart * N, R)) is None


# -- functions computed again ------------------------------------------


@decides("kinds.reproduced")
def reproduced(residual: float) -> object:
    x = unit(2, 4, 8, seed=7)
    return rotary._rotation(x, x * (1 + residual), "halves") is None


@decides("kinds.rotated_length")
def rotated_length(length: float) -> object:
    size = np.full((10, 3, 2), (60 - length) / 59)
    size[0, 0, 0] = length
    x = np.concatenate((size, np.zeros_like(size)), axis=-1)
    y = x.copy()
    y[0, 0, 0] *= 10
    return rotary._rotation(x, y, "halves") is None


@decides("kinds.smallest_angle")
def smallest_angle(angle: float) -> object:
    return rotary._theta(np.array([1.0, angle]), np.zeros(2)) is None


@decides("kinds.theta_curve")
def theta_curve(bend: float) -> object:
    return rotary._theta(np.exp([0.0, bend, -bend / 2, 0.0]), np.zeros(4)) is None


@decides("kinds.table_error")
def table_error(error: float) -> object:
    table = np.cos(np.outer(np.arange(3), angles_of(1e4)))
    table[0] = 1 - error
    return rotary._theta_of_table(table, 0.0) is None


@decides("kinds.activation_residual")
def activation_residual(residual: float) -> object:
    x = R.ravel() * 100
    return constants._which(x, x / (1 + np.exp(-x)) * (1 + residual), 0.0)


@decides("kinds.smallest_probability")
def smallest_probability(probability: float) -> object:
    rows = [np.array([p, (1 - p) / 2, (1 - p) / 2]) for p in (probability, probability ** (1 / 1.2))]
    t, r = (np.tile(row, (8, 1)) for row in rows)
    return next(constants._softmax(arrays(t, r), t, r), None) is None


@decides("kinds.dropout_scale")
def dropout_scale(apart: float) -> object:
    x = np.abs(R.ravel()) + 1
    return constants._drops(x, x / 0.9 * (1 + apart), 0.1)


@decides("kinds.nearly", margin=0.005)
def nearly(share: float) -> object:
    x = np.ones(1000)
    return constants._drops(x, np.where(first(share, 1000), 1.0, 1.5), 0.0)


@decides("kinds.applied_roundings", margin=0.1)
def applied_roundings(roundings: float) -> object:
    """The reference applies silu, the target does not; one result is off by so many roundings."""
    plain = torch.linspace(-1.0, 1.0, 65)
    applied = torch.nn.functional.silu(plain.double())
    applied[0] += roundings * 2.0**-24
    return missing_or_extra_term._activation_of_one_side(case(plain, applied.float())) is None


@decides("kinds.drawn_values")
def drawn_values(elements: float) -> object:
    t, r = np.ones(int(elements)), np.ones(int(elements))
    t[:8], r[8:16] = 0, 0
    return randomness._dropout(arrays(t, r)) is None


def loss_apart(deviations: float) -> object:
    """A loss that differs from the reference's by so many standard deviations of its rounding."""
    logits = (3 * normal(48, 50, seed=3)).bfloat16()
    labels = torch.randint(0, 50, (48,), generator=torch.Generator().manual_seed(4))
    expected = torch.nn.functional.cross_entropy(logits.double(), labels)
    around = Surroundings(inputs=(pair("input.0", logits), pair("input.1", labels)))
    evidence = case(expected, expected, surroundings=around)
    held = criterion._reproduced(evidence, float(expected))
    assert held is not None
    apart = deviations * held[0].spread(DTYPES["bfloat16"].eps)
    return criterion.criterion_fault(case(expected + apart, expected, surroundings=around)) is None


@decides("kinds.least_of_spread")
def least_of_spread(deviations: float) -> object:
    return loss_apart(deviations)


@decides("kinds.most_of_spread")
def most_of_spread(deviations: float) -> object:
    return loss_apart(deviations)


# -- attention ------------------------------------------

Q, K, V = (8 * unit(24, 32, seed=seed) for seed in (11, 12, 13))


def attended(base: Attention, change: Attention, leaves: float) -> Solved | None:
    """What is found where a change leaves this share of the difference open."""
    r, changed = base.of(Q, K, V), change.of(Q, K, V)
    difference = changed - r
    aside = unit(*r.shape, seed=14, beside=(difference,)) * np.linalg.norm(difference)
    return attention._explained(
        arrays(r, r), (Q, K, V), attention.Hints(), changed + off_by(leaves) * aside, r
    )


PLAIN = Attention(head=16, scale=0.25)


@decides("kinds.change_leaves")
def change_leaves(share: float) -> object:
    return attended(PLAIN, replace(PLAIN, last=1), share) is None


@decides("kinds.change_explains")
def change_explains(share: float) -> object:
    found = attended(PLAIN, replace(PLAIN, last=1), share)
    assert found is not None
    return found.found.rank


@decides("kinds.angles_leave")
def angles_leave(share: float) -> object:
    base = replace(PLAIN, pairing="halves", theta=3e4)
    found = attended(base, replace(base, angles="bfloat16"), share)
    return found is not None and found.kind is KindCode.DTYPE_OR_ROUNDING


@decides("kinds.softmax_leaves")
def softmax_leaves(share: float) -> object:
    return attended(PLAIN, replace(PLAIN, dtype="bfloat16"), share) is None


@decides("kinds.unit_circle")
def unit_circle(apart: float) -> object:
    return on_unit_circle(np.full((4, 3), math.sqrt(1 + apart)), np.zeros((4, 3)))


# -- updates ------------------------------------------

G = unit(64, 64, seed=3, beside=(R, N))
UPDATE = {"phase": "optimizer", "slot": "param"}


def updated(before: Any, target: Any, reference: Any, **more: Any) -> Evidence:
    """Evidence about a parameter after its update."""
    facts = ParameterStep(
        fqn="weight", before=pair("value", before), updated=(pair("param", target, reference),), **more
    )
    return case(target, reference, parameter=facts, **UPDATE)


@decides("kinds.solved_residual")
def solved_residual(residual: float) -> object:
    after = R - 0.01 * (G + off_by(residual) * N)
    evidence = updated(R, after, after, gradients=((0, pair("accumulated", G)),))
    return updates.solve(evidence, "target") is None


@decides("kinds.settings_equal")
def settings_equal(apart: float) -> object:
    return wrong_optimizer_setting._equal(1.0, 1.0 + apart)


@decides("kinds.solved_apart")
def solved_apart(apart: float) -> object:
    return wrong_optimizer_setting._differ(
        FittedConstant(value=1.0, error=0.0), FittedConstant(value=1.0 - apart, error=0.0)
    )


@decides("kinds.beta_apart")
def beta_apart(apart: float) -> object:
    facts = ParameterStep(fqn="weight", gradients=((0, pair("accumulated", G)),))
    beta = 0.9 + apart * 0.1
    evidence = arrays((1 - beta) * G, 0.1 * G, parameter=facts, phase="optimizer", slot="state.exp_avg")
    return wrong_optimizer_setting._moments(evidence) is None


@decides("kinds.unchanged_share")
def unchanged_share(share: float) -> object:
    before = torch.ones(10_000).bfloat16()
    kept = torch.from_numpy(first(share, 10_000))
    evidence = updated(before, torch.where(kept, before, 2 * before), 1.5 * before.float())
    return wrong_optimizer_setting._lost(evidence) is None


# -- places, order, range ------------------------------------------


@decides("kinds.hardly")
def hardly(share: float) -> object:
    r = unit(10, 1001, 4, seed=8)
    t = r.copy()
    t[:, :-1] += np.where(first(share, 10_000), 0.0, 1.0).reshape(10, 1000, 1)
    found = wrong_mask._positions(arrays(t, r, surroundings=Surroundings(module="attn")))
    return found is not None and found.sentence.code is KindReason.LAST_POSITION_AGREES


SUBNORMAL = DTYPES["float16"].smallest_normal * DTYPES["float16"].eps * 2


@decides("kinds.mostly")
def mostly(share: float) -> object:
    b = np.full(1000, 0.9 * SUBNORMAL)
    return overflow_underflow._threshold(np.where(first(share, 1000), 0.0, b), b, 0.9 * SUBNORMAL)


@decides("kinds.near_smallest", margin=0.01)
def near_smallest(times: float) -> object:
    b = np.full(1000, SUBNORMAL / times)
    return overflow_underflow._threshold(0 * b, b, SUBNORMAL / times)


@decides("kinds.lost_widely", margin=0.05)
def lost_widely(share: float) -> object:
    b = np.where(first(share, 1000), 0.9 * SUBNORMAL, 1.0)
    found = overflow_underflow._underflow(arrays(np.where(b < 1, 0.0, b), b))
    assert found is not None
    return found.rank


@decides("kinds.nearly_all", margin=0.0005)
def nearly_all(share: float) -> object:
    r = np.ones((100, 1000))
    t = np.where(first(share, 100_000), 1.0, 2.0).reshape(r.shape)
    return permutations.equal_layout(t, r, 2.0**-24)


@decides("kinds.uneven_places")
def uneven_places(share: float) -> object:
    planes = np.broadcast_to(np.eye(8, dtype=bool), (10_000, 8, 8)) & ~first(share, 10_000)[:, None, None]
    found = wrong_mask._pattern(np.asarray(planes))
    return found is not None and found.code is PlacesCode.DIAGONALS


@decides("kinds.more_than_in_place")
def more_than_in_place(share: float) -> object:
    r = np.cumsum(np.random.default_rng(9).permutation(first(share, 10_000)).astype(float))
    return shifted_by_one._shifted(arrays(np.roll(r, 1), r)) is None


@decides("kinds.equal_statistics")
def equal_statistics(apart: float) -> object:
    r = summary_only(known(R), sketches=False)
    changed = {**r.statistics, "mean": r.statistic("mean") + apart * r.statistic("l2_norm")}
    t = Known("t", dtype=r.dtype, shape=r.shape, statistics=changed, digest=1)
    return transposed_or_permuted._same_statistics(arrays(R, N), t, r) is None


@decides("kinds.distinct_numbers", beside=(0, 1))
def distinct_numbers(numbers: float) -> object:
    r = np.resize(np.arange(numbers) + 1, 512)
    t = np.random.default_rng(10).permutation(r)
    found = transposed_or_permuted._from_values(
        arrays(t.reshape(32, 16), r.reshape(32, 16)), t.reshape(32, 16), r.reshape(32, 16)
    )
    assert found is not None
    return found.rank


def flipped(size: int, elements: int, bit: int) -> object:
    """What is found where a bit of some elements is flipped."""
    x = normal(size)
    other = x.clone()
    other.view(torch.int32)[:elements] ^= 1 << bit
    return bit_flip._flipped(case(other, x))


@decides("kinds.flipped_elements", beside=(0, 1))
def flipped_elements(elements: float) -> object:
    return flipped(64, int(elements), 28) is None


@decides("kinds.rounding_bits")
def rounding_bits(bit: float) -> object:
    return flipped(64, 1, int(bit)) is None


def as_its_repeat(times: float) -> Any:
    """What is found where the target is so many times as far from the reference as its repeat."""
    return non_determinism._as_its_repeat(arrays(R + 1e-3 * times * N, R, repeat=1e-3))


@decides("kinds.as_its_repeat")
def near_its_repeat(times: float) -> object:
    return as_its_repeat(times).rank


@decides("kinds.repeats_at_most")
def repeats_at_most(times: float) -> object:
    return as_its_repeat(times) is None
