"""What a norm of the gradients is taken of, where a program reduces gradients after backward: of those that
backward left, or of the reduced ones. It shows once it is large enough to clip."""

from __future__ import annotations

import math

from trueup.diagnosing.stages.clipping import clipping_of
from trueup.diagnosing.stages.context import Context
from trueup.diagnosing.stages.naming import kind_named
from trueup.diagnosing.thresholds import CLIP_NEAR
from trueup.store import TraceSource
from trueup.store.view import ACCUMULATED
from trueup.types.codes import ClippingCode as Clip
from trueup.types.codes import VerdictCode
from trueup.types.finding import Basis, EvidenceRank, Finding, Stage
from trueup.types.reason import Reason, reason


def reported_norm_findings(context: Context) -> list[Finding]:
    """One finding where the comparison found nothing but another reported norm."""
    verdict = context.comparison.verdict
    if verdict.headline.code is not VerdictCode.GRADIENT_NORM_DIFFERS:
        return []
    factors = _factors_before(context)
    headline = norm_before_reduction(context) or factors or verdict.headline
    causes = (reason(Clip.UNSCALED_CAUSE if headline is factors else Clip.NORM_CAUSE),)
    kind = kind_named("wrong_scale", EvidenceRank.FITTED, headline, causes=causes)
    return [
        Finding(
            stage=Stage.REDUCTION,
            headline=headline,
            module=None,
            site=verdict.where or "",
            phase="param_grad",
            step=verdict.step,
            rank=context.ranks[0],
            kinds=(kind,),
            basis=Basis.RECORDED,
            evidence=(headline, *verdict.evidence),
            causes=causes,
            next_note=verdict.next,
        )
    ]


def _factors_before(context: Context) -> Reason | None:
    """By what each run multiplies what backward left before it takes the norm, where that is a power of two
    of its own in every step on one process: one that changes no digit, as loss scales are. A norm of other
    parameters is no such multiple, and on one process none is counted twice."""
    if len(context.ranks) > 1 or len(context.steps) < 2:
        return None
    found = [
        (_factor(context, context.target, step), _factor(context, context.reference, other))
        for step, other in context.steps
    ]
    if any(one is None or other is None or one == other for one, other in found):
        return None
    target, reference = found[0]
    return reason(Clip.SCALED_BEFORE_NORM, target=target, reference=reference, step=context.steps[0][0])


def _factor(context: Context, source: TraceSource, step: int) -> float | None:
    """The power of two that the reported norm is, times that of the gradients that backward left."""
    rank = context.ranks[0]
    book = context.book(source, step, rank)
    line = next((one for one in source.scalars(rank) if one.get("step") == step), None)
    reported = None if line is None else line.get("grad_norm")
    left = math.sqrt(
        sum((book.norm(book.parameter(fqn, *ACCUMULATED)) or 0.0) ** 2 for fqn in book.parameters)
    )
    if not isinstance(reported, float) or not reported > 0 or not left > 0 or not math.isfinite(left):
        return None
    power = float(2.0 ** round(math.log2(reported / left)))
    return power if abs(reported / left / power - 1) <= CLIP_NEAR else None


def norm_before_reduction(context: Context) -> Reason | None:
    """Whether one side alone clips by the norm of what backward left, where both reduce after backward."""
    step, other = context.steps[0]
    sides = _is_of_own(context, context.target, step), _is_of_own(context, context.reference, other)
    if None in sides or sides[0] == sides[1]:
        return None
    return reason(Clip.NORM_BEFORE_REDUCTION, side="target" if sides[0] else "reference")


def _is_of_own(context: Context, source: TraceSource, step: int) -> bool | None:
    """Whether the reported norm is that of the gradients that backward left on this rank; None where they are
    not reduced afterwards, or no norm is known."""
    rank = context.ranks[0]
    clip = clipping_of(context, source, step, rank)
    book = context.book(source, step, rank)
    squares = ((book.norm(book.parameter(fqn, *ACCUMULATED)) or 0.0) ** 2 for fqn in book.parameters)
    left = math.sqrt(sum(squares))
    if clip is None or clip.way != "later" or not clip.reported or not left:
        return None
    return abs(clip.reported / left - 1) <= CLIP_NEAR
