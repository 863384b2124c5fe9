"""The gradient still holds the step before's."""

from __future__ import annotations

import numpy as np

from trueup.diagnosing.evidence import Evidence, Vectors
from trueup.diagnosing.evidence.vectors import length
from trueup.diagnosing.kinds.fitting import explained, rank_of
from trueup.diagnosing.kinds.rule import EvidenceNeeds, Found, KindRule, origin_reason
from trueup.diagnosing.kinds.thresholds import CLOSE_ROUNDINGS, FULL_SHARE, NEAR_ONE
from trueup.types.arrays import Floats
from trueup.types.codes.kinds import AdviceCode, CauseCode, KindReason
from trueup.types.finding import KindClass, KindCode


def _holds_the_step_before(evidence: Evidence) -> Found | None:
    """t = t of the step before + r, up to what clipping multiplies both by."""
    vectors = evidence.vectors
    if vectors is None or evidence.origin.phase != "param_grad" or evidence.origin.slot == "local":
        return None
    step, known = evidence.elsewhere.target_earlier[0]
    before = vectors.like(known)
    if vectors.norm == 0 or before is None:
        return None
    if length(before) <= CLOSE_ROUNDINGS * vectors.rounding * vectors.norm:
        return None
    share, factor = _share(evidence, vectors, before)
    rank = rank_of(share, vectors)
    if rank is None:
        return None
    clipping = factor if abs(factor - 1) > NEAR_ONE else None
    sentence = origin_reason(evidence, KindReason.GRADIENT_NOT_CLEARED, earlier_step=step, clipping=clipping)
    return Found(rank=rank, measure=share, sentence=sentence)


def _share(evidence: Evidence, vectors: Vectors, before: Floats) -> tuple[float, float]:
    plain = explained(evidence, vectors, length(vectors.target - vectors.reference - before))
    if evidence.origin.slot != "clipped" or plain > FULL_SHARE:
        return plain, 1.0
    both = vectors.reference + before
    square = float(np.dot(both, both))
    factor = float(np.dot(vectors.target, both)) / square if square > 0 else 0.0
    if factor <= 0:
        return plain, 1.0
    clipped = explained(evidence, vectors, length(vectors.target - factor * both))
    return (clipped, factor) if clipped > plain else (plain, 1.0)


RULE = KindRule(
    code=KindCode.MISSING_ZERO_GRAD,
    family=KindClass.MODEL,
    needs=EvidenceNeeds.BOTH_TENSORS | EvidenceNeeds.EARLIER_STEP,
    looks=(_holds_the_step_before,),
    causes=(
        CauseCode.NOT_CLEARED,
        CauseCode.CLEARED_UNDER_A_CONDITION,
        CauseCode.SECOND_OPTIMIZER_NOT_CLEARED,
    ),
    advice=AdviceCode.CLEAR_GRADIENTS,
    place="the gradient of the step before is an extra term too; this says which",
)
