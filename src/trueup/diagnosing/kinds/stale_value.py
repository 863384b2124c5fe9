"""The target holds what this site held at an earlier step or microbatch."""

from __future__ import annotations

from collections.abc import Iterator

from trueup.diagnosing.evidence import Evidence, Known
from trueup.diagnosing.evidence.vectors import length
from trueup.diagnosing.kinds.fitting import at_most, close, explained, rank_of
from trueup.diagnosing.kinds.rule import BEFORE_UPDATE, Found, KindRule, origin_reason
from trueup.diagnosing.kinds.thresholds import MOST_SHARE, NEARLY_ALL
from trueup.types.codes.kinds import AdviceCode, CauseCode, KindReason
from trueup.types.finding import EvidenceRank, KindClass, KindCode


def _of_an_earlier_time(evidence: Evidence) -> Found | None:
    """t equals an earlier value of the same site that the reference has left behind."""
    if evidence.target is None or evidence.target.numel == 0:
        return None
    best: tuple[float, KindReason, int] | None = None
    for code, when, known in _earlier(evidence):
        share = _share(evidence, known)
        if share > 0 and (best is None or share > best[0]):
            best = share, code, when
    rank = None if best is None else rank_of(best[0], least=MOST_SHARE)
    if best is None or rank is None:
        return None
    if evidence.target.numel == 1:
        rank = at_most(rank, EvidenceRank.CONSISTENT)
    # no update lies between two microbatches of one step
    without = (CauseCode.COPY_NOT_UPDATED,) if best[1] is KindReason.OF_MICROBATCH else ()
    sentence = origin_reason(evidence, best[1], earlier=best[2])
    return Found(rank=rank, measure=best[0], sentence=sentence, without=without)


def _earlier(evidence: Evidence) -> Iterator[tuple[KindReason, int, Known]]:
    elsewhere = evidence.elsewhere
    kept = {step for step, known in elsewhere.reference_earlier if _is_kept(evidence.reference, known)}
    for step, known in elsewhere.target_earlier:
        if step not in kept:  # the reference uses one value in both steps too
            yield KindReason.OF_TARGET_STEP, step, known
    yield from ((KindReason.OF_REFERENCE_STEP, step, known) for step, known in elsewhere.reference_earlier)
    if evidence.origin.phase in ("forward", "batch"):
        own = evidence.surroundings.microbatch
        others = elsewhere.reference_microbatches
        kept = {microbatch for microbatch, known in others if _is_kept(evidence.reference, known)}
        for microbatch, known in elsewhere.target_microbatches:
            if microbatch < own and microbatch not in kept:
                yield KindReason.OF_MICROBATCH, microbatch, known


def _is_kept(reference: Known | None, earlier: Known) -> bool:
    return reference is not None and bool(earlier.same_bits(reference))


def _share(evidence: Evidence, earlier: Known) -> float:
    """How well the earlier value explains the target; bits first, then values or sketches."""
    target, reference = evidence.target, evidence.reference
    if target is None or reference is None or earlier.same_bits(reference):
        return 0.0
    vectors = evidence.vectors
    if vectors is not None and target.numel == 1:
        sizes = vectors.target_norm, float(abs(vectors.reference).max())
        if (
            sizes[0] < (1 - NEARLY_ALL) * sizes[1]
        ):  # what cancels, as advantages of a group do, is 0 in every step
            return 0.0
    if target.same_bits(earlier):
        return 1.0
    other = None if vectors is None else vectors.like(earlier)
    if vectors is None or other is None:
        return 0.0
    if target.numel == 1:  # losses of two batches are near each other, and far from one divided otherwise
        return float(close(vectors.target, other, vectors.rounding).all())
    gap, size = length(vectors.target - other), min(vectors.target_norm, length(other))
    # A tensor that has shrunk is nearer to any that is as small than to the reference: it must be nearer to
    # the earlier value than to nothing, too.
    nearer = 1.0 - gap / size if size > 0 else 0.0
    return min(explained(evidence, vectors, gap), max(nearer, 0.0))


RULE = KindRule(
    code=KindCode.STALE_VALUE,
    family=KindClass.MODEL,
    looks=(_of_an_earlier_time,),
    causes=(CauseCode.CACHE_NOT_REFRESHED, CauseCode.COPY_NOT_UPDATED, CauseCode.BATCH_AGAIN),
    in_phases={
        CauseCode.COPY_NOT_UPDATED: ("forward", "loss", "backward", "param_grad", "param"),
        CauseCode.BATCH_AGAIN: BEFORE_UPDATE,
    },
    advice=AdviceCode.REFRESH,
    place="after kinds that say why a value has not changed: a dropped update, a batch delivered again",
)
