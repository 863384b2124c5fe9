"""What the ranks of the target hold adds up (or averages) to what the reference holds."""

from __future__ import annotations

import numpy as np

from trueup.diagnosing.evidence import Evidence, Vectors
from trueup.diagnosing.evidence.vectors import length
from trueup.diagnosing.kinds.fitting import explained, rank_of
from trueup.diagnosing.kinds.rule import EvidenceNeeds, Found, KindRule, origin_reason
from trueup.diagnosing.kinds.thresholds import NEAR_ONE, ROUNDINGS_APART
from trueup.types.arrays import Floats
from trueup.types.codes.kinds import AdviceCode, CauseCode, KindReason
from trueup.types.finding import KindClass, KindCode
from trueup.types.reason import Reason, reason


def _sum_over_ranks(evidence: Evidence) -> Found | None:
    """The sum or the mean over (a group of) the target's ranks is the reference's value and no rank's own
    is."""
    vectors = evidence.vectors
    if vectors is None or vectors.norm == 0:
        return None
    parts = {rank: vectors.like(known) for rank, known in evidence.elsewhere.target_ranks}
    held: dict[int, Floats] = {rank: part for rank, part in parts.items() if part is not None}
    own = evidence.origin.rank
    if own not in held or len(held) < 2:
        return None
    best: tuple[float, KindReason, list[int]] | None = None
    for group in _groups(sorted(held), own):
        if not _held_by_all(evidence, vectors, group):
            continue
        for code, share in _shares(evidence, vectors, [held[r] for r in group], held[own]):
            if best is None or share > best[0] + NEAR_ONE:
                best = share, code, group
    rank = None if best is None else rank_of(best[0], vectors)
    if best is None or rank is None:
        return None
    share, code, group = best
    sentence = origin_reason(evidence, code, *_fewer_collectives(evidence), ranks=[str(r) for r in group])
    return Found(rank=rank, measure=share, sentence=sentence, over=tuple(group))


def _held_by_all(evidence: Evidence, vectors: Vectors, group: list[int]) -> bool:
    """Whether the reference's ranks of a group hold one value, as far as they are known: what is reduced over
    them is on all of them."""
    known = [vectors.like(one) for rank, one in evidence.elsewhere.reference_ranks if rank in group]
    most = ROUNDINGS_APART * vectors.rounding * vectors.norm
    return all(one is None or length(one - vectors.reference) <= most for one in known)


def _groups(ranks: list[int], own: int) -> list[list[int]]:
    """All ranks, and the regular groups that hold this one."""
    num = len(ranks)
    groups = [ranks]
    for size in range(2, num):
        if num % size == 0:
            at = ranks.index(own)
            groups.append(ranks[at - at % size : at - at % size + size])
            stride = num // size
            groups.append(ranks[at % stride :: stride])
    return groups


def _shares(
    evidence: Evidence, vectors: Vectors, parts: list[Floats], own: Floats
) -> list[tuple[KindReason, float]]:
    differ = max(length(p - own) for p in parts)
    if differ <= ROUNDINGS_APART * vectors.rounding * length(own):
        return []
    total = np.sum(parts, axis=0)
    return [
        (code, explained(evidence, vectors, length(guess - vectors.reference)))
        for code, guess in (
            (KindReason.SUM_OVER_RANKS, total),
            (KindReason.MEAN_OVER_RANKS, total / len(parts)),
        )
    ]


def _fewer_collectives(evidence: Evidence) -> tuple[Reason, ...]:
    t, r = evidence.target_run.collectives, evidence.reference_run.collectives
    fewer = [name for name in r if t.get(name, 0) < r[name]]
    return tuple(
        reason(KindReason.FEWER_COLLECTIVES, collective=name, target=t.get(name, 0), reference=r[name])
        for name in fewer[:2]
    )


_OF_PARAMETERS = ("param_grad", "collective", "optimizer", "param")
"""phases of what is reduced parameter by parameter"""

RULE = KindRule(
    code=KindCode.MISSING_ALL_REDUCE,
    family=KindClass.MODEL,
    needs=EvidenceNeeds.BOTH_TENSORS | EvidenceNeeds.OTHER_RANKS,
    looks=(_sum_over_ranks,),
    causes=(CauseCode.OUTSIDE_THE_GROUP, CauseCode.WRAPPER_BYPASSED, CauseCode.PARTIAL_SUM),
    in_phases={
        CauseCode.OUTSIDE_THE_GROUP: _OF_PARAMETERS,
        CauseCode.WRAPPER_BYPASSED: _OF_PARAMETERS,
        CauseCode.PARTIAL_SUM: ("forward", "loss", "backward", "param_grad"),
    },
    advice=AdviceCode.ADD_REDUCTION,
    place="a sum over ranks that hold nearly the same is a scale too; this says where it comes from",
)
