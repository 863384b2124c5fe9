"""What a mismatch means: bit-identical, rounding, noise, a fault that shows itself, or unexplained.

A difference of log-probs alone is no fault: two engines round differently. Red is what rounding cannot do
(arrays shifted or reordered, log-probs that are not those of the sampling distribution, a layer beyond what
its dtype explains), or what exceeds a bound that a person gave. Green needs bits, layers, noise or a bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from trueup.mismatch.layers import LayerError, first_beyond
from trueup.mismatch.measuring import TokenMeasures, correlation
from trueup.mismatch.needed import dtype_needed
from trueup.mismatch.parts import by_position, by_step, rms
from trueup.mismatch.thresholds import (
    DOUBT,
    ENOUGH,
    FEW,
    GROWS,
    HEAD,
    MOST_IN_FEW,
    MOVED,
    MOVED_ROWS,
    NOISE,
    NOT_SAMPLED_SHARE,
    ROUNDINGS,
    SPREAD,
    SPREAD_CORRELATION,
    STANDARD_ERRORS,
)
from trueup.mismatch.tokens import Tokens
from trueup.numerics.dtypes import DTYPES
from trueup.types.codes import MismatchCode as M
from trueup.types.reason import Reason, reason
from trueup.types.status import Outcome

_HEAD_TOKENS = 16
"""of a sequence, to recognise it by"""
_SMALLEST = 2.0**-14
"""a log-prob nearer to 0 counts as this: against the logarithm of 0"""
_MOST_SEQUENCES = 512
"""that are looked for among each other; costs time"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MismatchJudgement:
    """The verdict with its reasons, strongest first, and what else is seen."""

    outcome: Outcome
    reasons: tuple[Reason, ...]
    remarks: tuple[Reason, ...]
    advice: tuple[Reason, ...]


def judge(
    tokens: Tokens,
    measures: TokenMeasures,
    layers: Sequence[LayerError],
    *,
    exact: bool = False,
    bounds: Mapping[str, float] | None = None,
) -> MismatchJudgement:
    """The verdict.

    Args:
        tokens: every token.
        measures: of all of them.
        layers: outputs of layers on both sides, in order; may be none.
        exact: nothing but bit-identity agrees.
        bounds: field of ``TokenMeasures`` -> the most (of ``AT_LEAST`` the least) that a person accepts.
    """
    outcome, reasons = _verdict(tokens, measures, layers, exact=exact, bounds=bounds or {})
    return MismatchJudgement(
        outcome=outcome,
        reasons=tuple(reasons),
        remarks=tuple(_remarks(tokens, layers)),
        advice=tuple(_advice(reasons, has_layers=bool(layers), has_noise=tokens.noise is not None)),
    )


def _verdict(
    tokens: Tokens,
    measures: TokenMeasures,
    layers: Sequence[LayerError],
    *,
    exact: bool,
    bounds: Mapping[str, float],
) -> tuple[Outcome, list[Reason]]:
    unequal = [one for one in layers if not one.is_equal]
    equal = measures.num_equal == measures.num_tokens and not measures.num_not_finite
    if equal and not (unequal and exact):
        return Outcome.AGREE, [reason(M.IDENTICAL, num_tokens=measures.num_tokens)]
    faults = [*_faults(tokens, measures), *_beyond(measures, bounds)]
    explained = _explained(tokens, measures, layers)
    if exact:
        faults.insert(0, _first_unequal(measures, unequal))
    elif explained is not None and explained.code not in (*_GREEN, *_IN_DOUBT):
        faults.append(explained)
    if faults:
        return Outcome.DIFFER, faults
    if explained is not None and explained.code in _GREEN:
        return Outcome.AGREE, [explained]
    if bounds:
        return Outcome.AGREE, [reason(M.WITHIN_BOUNDS, metrics=list(bounds))]
    if explained is not None:
        return Outcome.UNDECIDED, [explained]
    unknown = reason(
        M.UNEXPLAINED, rms_diff=measures.rms_diff, k3=measures.k3, num_tokens=measures.num_tokens
    )
    return Outcome.UNDECIDED, [unknown]


AT_LEAST = ("pearson", "ess_token", "ess_sequence", "min_ratio", "min_ratio_sequence")
"""measures of which a bound is the least that is accepted; of all others it is the most"""
_GREEN = (M.ROUNDING, M.WITHIN_NOISE)
_IN_DOUBT = (M.LAYER_IN_DOUBT, M.NOISE_IN_DOUBT)


def _first_unequal(measures: TokenMeasures, unequal: Sequence[LayerError]) -> Reason:
    if unequal:
        first = unequal[0]
        different = first.num_tokens - first.num_equal
        return reason(M.NOT_IDENTICAL, name=first.name, different=different, total=first.num_tokens)
    different = measures.num_tokens - measures.num_equal
    return reason(M.NOT_IDENTICAL, name="log-probs", different=different, total=measures.num_tokens)


def _beyond(measures: TokenMeasures, bounds: Mapping[str, float]) -> Iterator[Reason]:
    held = asdict(measures)
    for metric, bound in bounds.items():
        kept = held[metric] >= bound if metric in AT_LEAST else held[metric] <= bound
        if not kept:
            yield reason(M.BEYOND_BOUND, metric=metric, value=held[metric], bound=bound)


# -- what rounding cannot do ------------------------------------------


def _faults(tokens: Tokens, measures: TokenMeasures) -> Iterator[Reason]:
    if measures.num_not_finite:
        yield _not_finite(tokens, measures)
    kept = tokens.where(np.isfinite(tokens.log_ratio))
    if len(kept.rollout) < ENOUGH:
        return
    moved = _shifted(kept) or _reordered(kept)
    if moved is not None:
        yield moved
        return
    for found in (_not_sampled(kept), _spread(kept)):
        if found is not None:
            yield found


def _not_finite(tokens: Tokens, measures: TokenMeasures) -> Reason:
    sides = {"rollout": tokens.rollout, "training": tokens.training}
    at_fault = [side for side, values in sides.items() if not np.isfinite(values).all()]
    first = int(np.flatnonzero(~np.isfinite(tokens.log_ratio))[0])
    return reason(
        M.NOT_FINITE,
        sides=at_fault,
        num=measures.num_not_finite,
        sequence=int(tokens.sequence[first]),
        position=int(tokens.position[first]),
    )


def _shifted(tokens: Tokens) -> Reason | None:
    """Whether training log-probs agree with those of a neighbouring token and not with their own."""
    inside = tokens.sequence[1:] == tokens.sequence[:-1]
    own = rms(tokens.log_ratio)
    for by, difference in (
        (1, tokens.training[1:] - tokens.rollout[:-1]),
        (-1, tokens.training[:-1] - tokens.rollout[1:]),
    ):
        moved = rms(difference[inside])
        if inside.sum() >= ENOUGH and moved < MOVED * own:
            return reason(M.SHIFTED, by=by, own=own, moved=moved)
    return None


def _reordered(tokens: Tokens) -> Reason | None:
    """Whether the training log-probs of most sequences are those of others of the same step."""
    for step in tokens.steps:
        part = tokens.of_step(step)
        long = np.flatnonzero(part.lengths >= _HEAD_TOKENS)[:_MOST_SEQUENCES]
        if len(long) < 2:
            continue
        at = part.starts[long][:, None] + np.arange(_HEAD_TOKENS)
        rollout, training = part.rollout[at], part.training[at]
        apart = np.array([np.sqrt(((training - row) ** 2).mean(axis=1)) for row in rollout])
        own, best = np.diagonal(apart), apart.min(axis=1)
        moved = (best < MOVED * own) & (apart.argmin(axis=1) != np.arange(len(long)))
        if moved.mean() > MOVED_ROWS:
            first = int(np.flatnonzero(moved)[0])
            return reason(
                M.REORDERED,
                step=step,
                num=int(moved.sum()),
                total=len(long),
                row=int(long[first]),
                is_row=int(long[apart[first].argmin()]),
            )
    return None


def _not_sampled(tokens: Tokens) -> Reason | None:
    """Whether the mean importance ratio is not 1, which it is for tokens drawn from the rollout's
    log-probs."""
    excess = np.expm1(tokens.log_ratio)
    size = math.sqrt(float(excess @ excess))
    if size == 0:
        return None
    z = float(excess.sum()) / size
    share = abs(z) / math.sqrt(len(excess))
    if abs(z) < STANDARD_ERRORS or share < NOT_SAMPLED_SHARE:
        return None
    return reason(M.NOT_SAMPLED, mean_ratio=1 + float(excess.mean()), z=abs(z))


def _spread(tokens: Tokens) -> Reason | None:
    """Whether log-probs of one side are those of the other stretched, as by a temperature."""
    alike = correlation(tokens.rollout, tokens.training)
    factor = float(tokens.training.std() / tokens.rollout.std()) if tokens.rollout.std() > 0 else 1.0
    error = math.sqrt((1 - alike**2) / len(tokens.rollout)) if alike <= 1 else 0.0
    if not alike >= SPREAD_CORRELATION or abs(factor - 1) < max(SPREAD, STANDARD_ERRORS * error):
        return None
    return reason(M.SPREAD, factor=factor, correlation=alike)


# -- what explains a difference ------------------------------------------


def _explained(tokens: Tokens, measures: TokenMeasures, layers: Sequence[LayerError]) -> Reason | None:
    """By layers where there are some, else by noise; None where there is neither."""
    if layers:
        return _by_layers(tokens, layers)
    if tokens.noise is None:
        return None
    noise = rms(tokens.noise - tokens.training)
    if not noise > 0:
        return None
    times = measures.rms_diff / noise
    code = (
        M.WITHIN_NOISE if times <= NOISE else M.NOISE_IN_DOUBT if times <= DOUBT * NOISE else M.BEYOND_NOISE
    )
    return reason(code, rms_diff=measures.rms_diff, noise=noise, times=times)


def _by_layers(tokens: Tokens, layers: Sequence[LayerError]) -> Reason:
    beyond = first_beyond(layers, DOUBT)
    found = beyond or first_beyond(layers)
    if found is not None:
        first, bound = found
        if first.shape_differs:
            return reason(M.LAYER_SHAPE, name=first.name)
        code = M.LAYER if first.noise is None else M.LAYER_NOISE
        code = M.LAYER_IN_DOUBT if beyond is None else code
        return reason(code, name=first.name, rel_l2=first.rel_l2, bound=bound, dtype=first.dtype)
    last = layers[-1]
    stored = sum(float(one.number("rms_diff") or 0) ** 2 for one in _roundings(tokens))
    size = math.sqrt(max(0.0, rms(tokens.log_ratio) ** 2 - stored)) / rms(tokens.rollout)
    if size > HEAD * last.rel_l2 + DOUBT * ROUNDINGS * DTYPES[last.dtype].eps:
        return reason(M.HEAD, name=last.name, rel_l2=last.rel_l2, log_probs=size)
    return reason(
        M.ROUNDING, dtype=last.dtype, first=layers[0].rel_l2, last=last.rel_l2, num_layers=len(layers)
    )


# -- what else is seen ------------------------------------------


def _remarks(tokens: Tokens, layers: Sequence[LayerError]) -> Iterator[Reason]:
    if tokens.equal.all():
        return
    if tokens.noise is not None and not rms(tokens.noise - tokens.training) > 0:
        yield reason(M.NO_NOISE)
    yield from _roundings(tokens)
    few = _few(tokens)
    if few is not None:
        yield few
    yield from _growth(tokens)
    equal = [one.is_equal for one in layers]
    if any(equal) and not all(equal) and equal.index(False):
        at = equal.index(False)
        yield reason(M.LAYERS_EQUAL, last=layers[at - 1].name, first=layers[at].name)
    covered = max((one.num_tokens for one in layers), default=0)
    if 0 < covered < len(tokens.rollout):
        yield reason(M.LAYERS_OF, num=covered, total=len(tokens.rollout))


def _roundings(tokens: Tokens) -> Iterator[Reason]:
    """Sides whose log-probs were stored in a coarse dtype: uniform errors of one unit in their last place."""
    if len(tokens.rollout) < ENOUGH:
        return
    for side, values in (("rollout", tokens.rollout), ("training", tokens.training)):
        dtype = dtype_needed(values)
        if dtype in ("bfloat16", "float16"):
            gaps = 2 * DTYPES[dtype].eps * 2.0 ** np.floor(np.log2(np.maximum(np.abs(values), _SMALLEST)))
            yield reason(M.ROUNDED, side=side, dtype=dtype, rms_diff=rms(gaps) / math.sqrt(12))


def _few(tokens: Tokens) -> Reason | None:
    """Whether few sequences hold most of the squared difference."""
    squares = tokens.by_sequence(np.nan_to_num(tokens.log_ratio) ** 2)
    most, allowed = np.sort(squares)[::-1], int(FEW * len(squares))
    if not allowed or not most[:allowed].sum() >= MOST_IN_FEW * most.sum():
        return None
    num = int(np.searchsorted(np.cumsum(most), MOST_IN_FEW * most.sum())) + 1
    worst = np.argsort(squares)[::-1][:num]
    return reason(
        M.FEW_SEQUENCES, num=num, total=len(squares), sequences=[str(one) for one in worst.tolist()]
    )


def _growth(tokens: Tokens) -> Iterator[Reason]:
    positions = [part for part in by_position(tokens) if part.num_tokens >= ENOUGH]
    steps = [part for part in by_step(tokens) if part.num_tokens >= ENOUGH]
    for code, parts in ((M.GROWS_POSITION, positions), (M.GROWS_STEPS, steps)):
        if len(parts) < 2:
            continue
        first, last = parts[0], parts[-1]
        if code is M.GROWS_STEPS and first.num_equal == first.num_tokens:
            until = next(part for part in parts if part.num_equal < part.num_tokens)
            yield reason(M.EQUAL_UNTIL, step=until.first)
        elif last.rms_diff > GROWS * first.rms_diff > 0:
            yield reason(code, first=first.rms_diff, last=last.rms_diff, begin=first.name, end=last.name)


def _advice(reasons: Sequence[Reason], *, has_layers: bool, has_noise: bool) -> Iterator[Reason]:
    first = reasons[0]
    if first.code in (M.UNEXPLAINED, M.BEYOND_NOISE, M.NOISE_IN_DOUBT, M.BEYOND_BOUND) and not has_layers:
        yield reason(M.GIVE_LAYERS, has_noise=has_noise)
    if first.code is M.LAYER_IN_DOUBT:
        yield reason(M.GIVE_NOISE)
    if first.code in (M.LAYER, M.LAYER_NOISE, M.LAYER_SHAPE, M.LAYER_IN_DOUBT):
        yield reason(M.COMPARE_LAYER, name=str(first.place("name")))
