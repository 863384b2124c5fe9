"""The module's own code calls other functions than the reference's: another formula, a step more or less."""

from __future__ import annotations

from collections.abc import Iterable

from trueup.diagnosing.evidence import Evidence, NeighbourCall
from trueup.diagnosing.kinds.arguments import calls_apart, short_name
from trueup.diagnosing.kinds.rule import Found, KindRule, origin_reason
from trueup.types.codes.kinds import AdviceCode, CauseCode, KindReason
from trueup.types.finding import EvidenceRank, KindClass, KindCode

_MOST = 6
"""functions of a side that a sentence lists"""


def _functions(evidence: Evidence) -> Found | None:
    """What one side alone calls, up to the origin. That both programs do it is stated; that it makes the
    difference is not: two ways to compute one thing call other functions too."""
    if evidence.origin.phase not in ("forward", "loss"):
        return None
    apart = calls_apart(evidence)
    own = _names(call for call in apart if call.reference is None)
    other = _names(call for call in apart if call.target is None)
    if not apart or max(len(own), len(other)) > _MOST:
        return None
    sentence = origin_reason(
        evidence,
        KindReason.OTHER_FUNCTIONS,
        target=", ".join(own),
        reference=", ".join(other),
    )
    return Found(rank=EvidenceRank.CONSISTENT, sentence=sentence)


def _names(calls: Iterable[NeighbourCall]) -> list[str]:
    """With the numbers they are given: ``mul 0.2``."""
    return list(dict.fromkeys(_shown(call) for call in calls))


def _shown(call: NeighbourCall) -> str:
    given = call.target if call.target is not None else call.reference
    numbers = [
        f"{value:g}"
        for slot, value in (given or {}).items()
        if type(value) in (int, float) and not slot.rpartition(".")[2].startswith("_")
    ]
    return " ".join([short_name(call), *numbers])


RULE = KindRule(
    code=KindCode.OTHER_FUNCTIONS,
    family=KindClass.MODEL,
    looks=(_functions,),
    causes=(CauseCode.OTHER_FORMULA, CauseCode.STEP_OF_COMPUTATION),
    advice=AdviceCode.COMPARE_FORMULAS,
    place="last: that other functions are called says less than any number that fits",
)
