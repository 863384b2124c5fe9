"""The sign of everything, or of some rows or columns, is the other way round."""

from __future__ import annotations

import numpy as np

from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.evidence.vectors import length
from trueup.diagnosing.kinds.fitting import close, explained, rank_of, roundoff_of
from trueup.diagnosing.kinds.loss_divisor import is_negative_loss
from trueup.diagnosing.kinds.rule import Found, KindRule, origin_reason
from trueup.diagnosing.kinds.solved import solved
from trueup.diagnosing.kinds.thresholds import (
    CLOSE_ROUNDINGS,
    FACTOR_AT_LEAST,
    MIN_NUMBERS,
    NEGATED_SHARE,
    PROBED_INDICES,
    ROUNDINGS_APART,
)
from trueup.types.arrays import Bools
from trueup.types.codes.kinds import AdviceCode, CauseCode, KindReason
from trueup.types.finding import EvidenceRank, KindClass, KindCode


def _negated(evidence: Evidence) -> Found | None:
    """t = -r; of a loss, one number, where what it sends back is negated as well."""
    vectors = evidence.vectors
    if vectors is not None and is_negative_loss(evidence, -1.0):
        alike = length(vectors.target + vectors.reference) <= FACTOR_AT_LEAST * vectors.norm
        return (
            Found(rank=EvidenceRank.FITTED, sentence=origin_reason(evidence, KindReason.NEGATED))
            if alike
            else None
        )
    if vectors is None or vectors.norm == 0 or vectors.num_values < MIN_NUMBERS:
        return None
    share = explained(evidence, vectors, length(vectors.target + vectors.reference))
    rank = rank_of(share, vectors, least=NEGATED_SHARE)
    if rank is None:
        return None
    return Found(rank=rank, measure=share, sentence=origin_reason(evidence, KindReason.NEGATED))


def _some_negated(evidence: Evidence) -> Found | None:
    """Magnitudes agree, signs do not everywhere."""
    t, r = evidence.target_values, evidence.reference_values
    if t is None or r is None or t.shape != r.shape:
        return None
    probe = (slice(0, PROBED_INDICES),) * t.ndim
    if not all(close(np.abs(t[part]), np.abs(r[part]), evidence.roundoff).all() for part in (probe, ())):
        return None
    flipped, present = (t * r < 0) & (t != r), r != 0
    if flipped.sum() < MIN_NUMBERS:
        return None
    share = float(flipped.sum() / present.sum())
    where = _where(flipped, present)
    if where is None:
        return Found(
            rank=EvidenceRank.CONSISTENT,
            sentence=origin_reason(evidence, KindReason.SIGNS_DIFFER, share=share),
        )
    dim, indices = where
    sentence = origin_reason(
        evidence,
        KindReason.SLICES_NEGATED,
        share=share,
        dim=dim,
        indices=len(indices),
        size=flipped.shape[dim],
        first=indices[0],
        last=indices[-1],
    )
    return Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence)


def _where(flipped: Bools, present: Bools) -> tuple[int, list[int]] | None:
    """The dimension along which whole slices are flipped, and which."""
    for dim in reversed(range(flipped.ndim)):
        others = tuple(d for d in range(flipped.ndim) if d != dim)
        all_of = (flipped | ~present).all(axis=others)
        any_of = np.asarray(flipped.any(axis=others))
        if any_of.any() and (any_of <= all_of).all() and not any_of.all():
            return dim, np.flatnonzero(any_of).tolist()
    return None


def _statistics_negated(evidence: Evidence) -> Found | None:
    t, r = evidence.target, evidence.reference
    if evidence.vectors is not None or t is None or r is None or t.shape != r.shape or t.numel < MIN_NUMBERS:
        return None
    size = max(abs(r.statistic("minimum")), abs(r.statistic("maximum")))
    slack = CLOSE_ROUNDINGS * roundoff_of(evidence) * size
    mirrored = (("minimum", "maximum"), ("maximum", "minimum"), ("mean", "mean"))
    if not all(abs(t.statistic(a) + r.statistic(b)) <= slack for a, b in mirrored):
        return None
    skew = (abs(r.statistic("mean")), abs(r.statistic("minimum") + r.statistic("maximum")))
    if not any(one > ROUNDINGS_APART * slack for one in skew):
        return None
    return Found(
        rank=EvidenceRank.CONSISTENT, sentence=origin_reason(evidence, KindReason.STATISTICS_NEGATED)
    )


RULE = KindRule(
    code=KindCode.WRONG_SIGN,
    family=KindClass.MODEL,
    looks=(solved(KindCode.WRONG_SIGN), _negated, _some_negated, _statistics_negated),
    causes=(CauseCode.MINUS_LEFT_OUT, CauseCode.OTHER_WAY_ROUND),
    advice=AdviceCode.CHECK_SIGNS,
    place="its place does not matter: a scale is positive, and no order of the numbers turns their signs",
)
