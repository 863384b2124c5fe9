"""The reference itself gives another value every time it is run."""

from __future__ import annotations

from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.kinds.rule import EvidenceNeeds, Found, KindRule, origin_reason
from trueup.diagnosing.kinds.thresholds import AS_ITS_REPEAT, REPEATS_AT_MOST
from trueup.types.codes.kinds import AdviceCode, CauseCode, KindReason
from trueup.types.finding import EvidenceRank, KindClass, KindCode


def _as_its_repeat(evidence: Evidence) -> Found | None:
    """A plain repeat of the reference differs at this site about as much as the target does."""
    repeat = evidence.repeat
    vectors = evidence.vectors
    rel = vectors.rel if vectors is not None else evidence.origin.rel_l2
    if repeat is None or not repeat > 0 or rel is None or not 0 < rel <= REPEATS_AT_MOST * repeat:
        return None
    rank = EvidenceRank.FITTED if rel <= AS_ITS_REPEAT * repeat else EvidenceRank.CONSISTENT
    return Found(
        rank=rank, sentence=origin_reason(evidence, KindReason.AS_ITS_REPEAT, repeat=repeat, rel_l2=rel)
    )


RULE = KindRule(
    code=KindCode.NON_DETERMINISM,
    family=KindClass.NUMERICAL,
    needs=EvidenceNeeds.REPEAT,
    looks=(_as_its_repeat,),
    causes=(CauseCode.ATOMIC_ADDITIONS, CauseCode.KERNEL_CHOICE, CauseCode.REDUCTION_ORDER),
    advice=AdviceCode.DETERMINISTIC_KERNELS,
    place="before a rounding of any other origin: its size was measured",
)
