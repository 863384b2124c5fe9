"""One factor between target and reference: a = <t, r> / <r, r> with nothing left over."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from trueup.diagnosing.evidence import Evidence, RunFacts
from trueup.diagnosing.kinds.fitting import at_most, close, explained, fit, holds_everywhere, rank_of
from trueup.diagnosing.kinds.loss_divisor import (
    divided_otherwise,
    given_divisor,
    is_negative_loss,
    name_given,
    numbers_given,
    sends_back_alike,
)
from trueup.diagnosing.kinds.rule import Found, KindRule, origin_reason, whole_origin_reason
from trueup.diagnosing.kinds.solved import solved
from trueup.diagnosing.kinds.thresholds import (
    CLOSE_ROUNDINGS,
    FACTOR_AT_LEAST,
    FACTOR_AT_MOST,
    FACTOR_ERRORS,
    FAR_ROUNDINGS,
    FLOAT32_ROUNDOFF,
    FULL_SHARE,
    MIN_NUMBERS,
    SUMMED_ROUNDINGS,
    USUAL_FACTORS,
)
from trueup.types.codes.kinds import AdviceCode, CauseCode, FactorCode, KindReason
from trueup.types.finding import EvidenceRank, KindClass, KindCode, Stage
from trueup.types.reason import Reason, reason

Factor = tuple[float, Reason]
_EXACT = float(np.finfo(np.float64).eps)
_SHOWN = 4
_OF_ANY_RUN = (
    FactorCode.NUMBER,
    FactorCode.SQUARE_ROOT,
    FactorCode.LOGARITHM,
    FactorCode.SIZE,
    FactorCode.ROOT_OF_SIZE,
    FactorCode.LESS_ONE,
    FactorCode.ROOT_OF_LESS_ONE,
)
"""which are so many that a fitted factor is near one of them anyway"""


# In one piece: one rule; what must hold is asked in the order in which it becomes known.
def _scaled(evidence: Evidence) -> Found | None:
    """t = a r with a > 0 explains the difference; which factor a is. Of a loss also a < 0, but -1.

    A single number proves nothing but a factor that the run knows (1/2, ranks, microbatches, tokens), unless
    it is a loss whose gradients are scaled alike.
    """
    vectors = evidence.vectors
    if vectors is None or vectors.norm == 0 or vectors.target_norm == 0 or vectors.num_values == 0:
        return None
    found = fit(vectors.target - vectors.reference, vectors.reference)
    if found is None or abs(found.factor) < _EXACT:
        return None
    if found.factor <= -1 and (not is_negative_loss(evidence, 1.0 + found.factor) or found.factor == -2.0):
        return None
    share = explained(evidence, vectors, found.residual, z=found.z)
    error = found.residual / vectors.norm / np.sqrt(vectors.size)
    labels = known_factors(evidence, 1.0 + found.factor, error)
    rank = rank_of(share, None if vectors.num_values == 1 else vectors)
    single = vectors.num_values == 1
    sent = evidence.origin.sent_back is not None or sends_back_alike(evidence, 1.0 + found.factor)
    alike = single and not labels and sent
    if rank is None or (single and not labels and not alike):
        return None
    of_run = any(label.code not in _OF_ANY_RUN for label in labels)
    if not single and (
        (share < FULL_SHARE and not of_run) or not holds_everywhere(evidence, vectors.reference, found.factor)
    ):
        return None  # a factor that leaves much over, and that nothing of the run equals, is a likeness
    if single:
        rank = EvidenceRank.FITTED if alike else EvidenceRank.CONSISTENT
    return _found(evidence, 1.0 + found.factor, labels, rank, share)


# In one piece: one fit of both runs' factors; each condition leaves out what explains them otherwise.
def _kept(evidence: Evidence) -> Found | None:
    """A call that multiplies its input by another factor, where nothing of the run equals the quotient; or
    that makes the same part of it zero in both runs and multiplies what it keeps by another factor: as
    dropout does, whose kept values are divided by the chance to be kept. Zeros that the sign of the input
    tells are those of an activation."""
    t, r = evidence.target_values, evidence.reference_values
    if evidence.origin.phase != "forward" or t is None or r is None or t.shape != r.shape:
        return None
    near = CLOSE_ROUNDINGS * max(evidence.roundoff, FLOAT32_ROUNDOFF)
    for pair in evidence.surroundings.inputs:
        x = evidence.values_of(pair.reference) if pair.agree else None
        if x is None or x.shape != t.shape:
            continue
        zero = (x != 0) & (t == 0) & (r == 0)
        kept = (x != 0) & ~zero
        signs = int((zero & (x > 0)).sum()), int((zero & (x < 0)).sum())
        if int(kept.sum()) < MIN_NUMBERS or (any(signs) and min(signs) < MIN_NUMBERS):
            continue
        factors = [float(np.median(side[kept] / x[kept])) for side in (t, r)]
        pairs = zip((t, r), factors, strict=True)
        if not all(close(side[kept], factor * x[kept], evidence.roundoff).all() for side, factor in pairs):
            continue
        if abs(factors[0] - factors[1]) <= near * max(map(abs, factors)) or min(factors) <= 0:
            continue
        scale = factors[0] / factors[1]
        if not any(signs) and known_factors(evidence, scale, evidence.roundoff):
            return None
        facts = {
            "target": factors[0],
            "reference": factors[1],
            "share": 1.0 - float(zero.sum() / (x != 0).sum()),
        }
        sentence = origin_reason(evidence, KindReason.KEPT_TIMES, **facts)
        causes = (CauseCode.KEPT_SHARE,) if any(signs) else (CauseCode.FACTOR_LEFT_OUT,)
        rank = EvidenceRank.EVERY_ELEMENT if any(signs) else EvidenceRank.FITTED
        return Found(rank=rank, sentence=sentence, factor=scale, causes=causes)
    return None


def _statistics_scaled(evidence: Evidence) -> Found | None:
    """All of norm, extremes and mean scaled alike."""
    t, r = evidence.target, evidence.reference
    if evidence.vectors is not None or t is None or r is None or t.shape != r.shape or t.numel < MIN_NUMBERS:
        return None
    norm = r.statistic("l2_norm")
    scale = t.statistic("l2_norm") / norm if norm > 0 else math.nan
    rounding = max(evidence.roundoff, FLOAT32_ROUNDOFF)
    if not np.isfinite(scale) or scale <= 0 or not abs(scale - 1) > FAR_ROUNDINGS * rounding:
        return None
    rms = norm / np.sqrt(max(t.numel, 1))
    for name in ("minimum", "maximum", "mean"):
        here = t.statistic(name)
        slack = SUMMED_ROUNDINGS * rounding * max(rms * scale, abs(here))
        if not abs(here - scale * r.statistic(name)) <= slack:
            return None
    labels = known_factors(evidence, scale, evidence.roundoff)
    return _found(evidence, scale, labels, EvidenceRank.CONSISTENT, 1.0, of_statistics=True)


def given_number(evidence: Evidence) -> Found | None:
    """The one number that the model is given is another, and not known to be one of the step on both sides;
    which factor lies between them, where the run knows it."""
    numbers = numbers_given(evidence)
    if numbers is None or given_divisor(evidence) is not None:
        return None
    target, reference = numbers
    scale = target / reference
    labels = known_factors(evidence, scale, evidence.roundoff) if scale > 0 else []
    name = name_given(evidence)
    sentence = whole_origin_reason(
        evidence, KindReason.NUMBER_GIVEN, *labels, name=name, target=target, reference=reference
    )
    return Found(rank=EvidenceRank.STATED, sentence=sentence, factor=scale if labels else None)


def _given_scaled(evidence: Evidence) -> Found | None:
    found = given_number(evidence)
    return found if found is not None and found.factor is not None else None


def _found(
    evidence: Evidence,
    scale: float,
    labels: list[Reason],
    rank: EvidenceRank,
    share: float,
    *,
    of_statistics: bool = False,
) -> Found:
    rank = rank if labels else at_most(rank, EvidenceRank.FITTED)
    smoothing = _at_even_scores(evidence, scale)
    if smoothing is not None and all(label.code in _OF_ANY_RUN for label in labels):
        sentence = origin_reason(
            evidence, KindReason.SCALED_AT_EVEN_SCORES, factor=scale, smoothing=smoothing
        )
        return Found(
            rank=rank, measure=share, sentence=sentence, factor=scale, causes=(CauseCode.LOGISTIC_SCALE,)
        )
    facts = {"of_statistics": True} if of_statistics else {}
    sentence = origin_reason(evidence, KindReason.SCALED, *labels, factor=scale, **facts)
    return Found(rank=rank, measure=share, sentence=sentence, factor=scale)


def _at_even_scores(evidence: Evidence, scale: float) -> float | None:
    """The label smoothing that a gradient of the loss times ``scale`` is, where the losses of both runs are
    ln 2: a logistic loss of two equal scores is that whatever its scale and smoothing e are, and its gradient
    is 1 - 2 e times the scale. Negative where the reference has it."""
    losses = evidence.target_run.loss, evidence.reference_run.loss
    near = CLOSE_ROUNDINGS * FLOAT32_ROUNDOFF
    if evidence.origin.phase != "backward" or evidence.origin.stage is not Stage.LOSS or scale <= 0:
        return None
    if any(loss is None or abs(loss / math.log(2) - 1) > near for loss in losses):
        return None
    return (1 - scale) / 2 if scale < 1 else -(1 - 1 / scale) / 2


# -- which factor it is ------------------------------------------


def known_factors(evidence: Evidence, scale: float, error: float) -> list[Reason]:
    """What the run holds that equals a scale, best first; ``error`` is one standard error of the scale,
    relative to the reference."""
    exact = max(FACTOR_ERRORS * error / scale, FACTOR_ERRORS * evidence.roundoff, FACTOR_AT_LEAST)
    tolerance = min(exact, FACTOR_AT_MOST)
    for source in ((*_quantities(evidence), *_usual()), _sizes(evidence, tolerance)):
        found = [label for value, label in source if value > 0 and abs(scale / value - 1) <= tolerance]
        if found:
            return list(dict.fromkeys(found))[:_SHOWN]
    return []


def _usual() -> Iterator[Factor]:
    """Small whole numbers, the square root of 2, ln 2, and one over each."""
    for number in range(2, USUAL_FACTORS + 1):
        yield from _both_ways(float(number), FactorCode.NUMBER, number=number)
    yield from _both_ways(math.sqrt(2), FactorCode.SQUARE_ROOT, number=2)
    yield from _both_ways(math.log(2), FactorCode.LOGARITHM, number=2)


def _quantities(evidence: Evidence) -> Iterator[Factor]:
    target, reference = evidence.target_run, evidence.reference_run
    here, elsewhere = target.microbatches, target.microbatches_elsewhere
    if here and elsewhere and here != elsewhere:
        facts = {"here": here, "elsewhere": elsewhere}
        yield here / elsewhere, reason(FactorCode.OTHER_STEPS, **facts)
        yield elsewhere / here, reason(FactorCode.OTHER_STEPS, inverse=True, **facts)
    for attribute, code in (
        ("world_size", FactorCode.WORLD_SIZE),
        ("data_parallel_size", FactorCode.DATA_PARALLEL_SIZE),
        ("microbatches", FactorCode.MICROBATCHES),
        ("loss_scale", FactorCode.LOSS_SCALE),
    ):
        for side in dict.fromkeys((getattr(target, attribute), getattr(reference, attribute))):
            if side and side > 1:
                yield from _both_ways(float(side), code, number=side)
    if evidence.origin.stage is Stage.LOSS:
        for sent in (*target.sent_back.values(), *reference.sent_back.values()):
            if sent.ndim > 1 and sent.shape[-1] > 1:
                yield from _both_ways(float(sent.shape[-1]), FactorCode.CLASSES, number=sent.shape[-1])
    yield from _ratios(target, reference)
    if evidence.origin.phase not in ("forward", "loss", "backward"):  # of which both are made
        yield from _ratios_of_update(target, reference)
    yield from _clipping(evidence)


def _ratios(target: RunFacts, reference: RunFacts) -> Iterator[Factor]:
    if target.tokens and reference.tokens and target.tokens != reference.tokens:
        yield from _both_ways(target.tokens / reference.tokens, FactorCode.TOKENS)
    if len(target.rank_tokens) > 1 and target.tokens:
        yield from _both_ways(sum(target.rank_tokens) / target.tokens, FactorCode.TOKENS_OF_RANK)


def _ratios_of_update(target: RunFacts, reference: RunFacts) -> Iterator[Factor]:
    if target.grad_norm and reference.grad_norm:
        yield from _both_ways(target.grad_norm / reference.grad_norm, FactorCode.GRADIENT_NORMS)
    if target.learning_rate and reference.learning_rate and reference.learning_rate[0]:
        ratio = target.learning_rate[0] / reference.learning_rate[0]
        if ratio != 1:
            yield ratio, reason(FactorCode.LEARNING_RATES)


def _clipping(evidence: Evidence) -> Iterator[Factor]:
    """What clipping did to this parameter's gradient, on either side."""
    facts = evidence.parameter
    if facts is None or evidence.origin.slot != "clipped":
        return
    before = [p for _, p in facts.gradients if p.slot == "accumulated"]
    after = [p for _, p in facts.gradients if p.slot == "clipped"]
    if not before or not after:
        return
    factors = []
    for a, b in ((before[-1].target, after[-1].target), (before[-1].reference, after[-1].reference)):
        if a is None or b is None or not a.statistic("l2_norm") > 0:
            return
        factors.append(b.statistic("l2_norm") / a.statistic("l2_norm"))
    target, reference = factors
    if reference > 0 and target > 0 and abs(target / reference - 1) > CLOSE_ROUNDINGS * FLOAT32_ROUNDOFF:
        yield target / reference, reason(FactorCode.CLIPPING, target=target, reference=reference)


def _sizes(evidence: Evidence, tolerance: float) -> Iterator[Factor]:
    known = evidence.target
    if known is None:
        return
    shapes = [known.shape, *(p.target.shape for p in evidence.surroundings.inputs if p.target is not None)]
    for size in dict.fromkeys(n for shape in shapes for n in shape if n > 1):
        yield from _both_ways(float(size), FactorCode.SIZE, number=size)
        yield from _both_ways(math.sqrt(size), FactorCode.ROOT_OF_SIZE, number=size)
    for size in dict.fromkeys(
        n for shape in shapes for n in _spans(shape) if n > 2
    ):  # of 2 they are 2 and its root
        if 4 * size**2 * tolerance > 1:
            continue  # that of size + 1 would fit as well
        yield from _both_ways(size / (size - 1), FactorCode.LESS_ONE, number=size)
        yield from _both_ways(math.sqrt(size / (size - 1)), FactorCode.ROOT_OF_LESS_ONE, number=size)


def _spans(shape: Sequence[int]) -> Iterator[int]:
    """Elements of each run of dimensions, over which a variance may be taken."""
    for first in range(len(shape)):
        for last in range(first + 1, len(shape) + 1):
            yield math.prod(shape[first:last])


def _both_ways(value: float, code: FactorCode, **facts: float) -> Iterator[Factor]:
    yield value, reason(code, **facts)
    yield 1.0 / value, reason(code, inverse=True, **facts)


RULE = KindRule(
    code=KindCode.WRONG_SCALE,
    family=KindClass.MODEL,
    looks=(
        given_divisor,
        _given_scaled,
        divided_otherwise,
        solved(KindCode.WRONG_SCALE),
        _kept,
        _scaled,
        _statistics_scaled,
    ),
    causes=(
        CauseCode.LOSS_DIVIDED,
        CauseCode.SUMMED_FOR_AVERAGED,
        CauseCode.UNSCALED_OR_CLIPPED,
        CauseCode.FACTOR_LEFT_OUT,
    ),
    in_phases={
        CauseCode.LOSS_DIVIDED: ("loss", "backward", "param_grad"),
        CauseCode.SUMMED_FOR_AVERAGED: ("param_grad", "collective"),
        CauseCode.UNSCALED_OR_CLIPPED: ("param_grad",),
        CauseCode.FACTOR_LEFT_OUT: ("forward", "param", "optimizer"),
    },
    advice=AdviceCode.LOOK_FOR_FACTOR,
    place="before an extra term: a scale is an extra term that is the reference itself",
)
