"""A norm of the gradients that a program reports, and that is another though no gradient differs: what it was
taken of shows once it is large enough to clip."""

from __future__ import annotations

import math

from trueup.diagnosing.gradients import scalar_line
from trueup.diagnosing.stages.context import Context
from trueup.diagnosing.stages.naming import kind_named
from trueup.diagnosing.thresholds import CLIP_NEAR
from trueup.store import TraceSource
from trueup.store.view import ACCUMULATED, CLIPPED
from trueup.types.codes import ClippingCode as Clip
from trueup.types.codes import VerdictCode
from trueup.types.finding import Basis, EvidenceRank, Finding, Stage
from trueup.types.reason import Reason, reason


def reported_norm_findings(context: Context) -> list[Finding]:
    """One finding where the comparison found nothing but another reported norm."""
    verdict = context.comparison.verdict
    if verdict.headline.code is not VerdictCode.GRADIENT_NORM_DIFFERS:
        return []
    headline = _before_reduction(context) or verdict.headline
    kind = kind_named("wrong_scale", EvidenceRank.FITTED, headline, causes=(reason(Clip.NORM_CAUSE),))
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
            causes=(reason(Clip.NORM_CAUSE),),
            next_note=verdict.next,
        )
    ]


def _before_reduction(context: Context) -> Reason | None:
    """Whether one side alone takes the norm of what backward left, and the other of what the optimizer gets,
    where a reduction lies in between."""
    step, other = context.steps[0]
    target, reference = _taken_of(context, context.target, step), _taken_of(context, context.reference, other)
    if {target, reference} != {"before", "after"}:
        return None
    return reason(Clip.NORM_BEFORE_REDUCTION, side="target" if target == "before" else "reference")


def _taken_of(context: Context, source: TraceSource, step: int) -> str | None:
    rank = context.ranks[0]
    reported = scalar_line(source, rank, step).get("grad_norm")
    book = context.book(source, step, rank)
    left, given = (
        math.sqrt(sum((book.norm(book.parameter(fqn, *slot)) or 0.0) ** 2 for fqn in book.parameters))
        for slot in (ACCUMULATED, CLIPPED)
    )
    if not reported or not left or not given or abs(left / given - 1) <= CLIP_NEAR:
        return None
    near = [abs(reported / norm - 1) <= CLIP_NEAR for norm in (left, given)]
    return "before" if near[0] else "after" if near[1] else None
