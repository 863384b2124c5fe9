"""The module's own code calls other functions than the reference's: another formula, a step more or less."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from trueup.diagnosing.evidence import Evidence, NeighbourCall
from trueup.diagnosing.kinds.arguments import calls_apart, short_name
from trueup.diagnosing.kinds.rule import Found, KindRule, origin_reason
from trueup.types.codes.kinds import AdviceCode, CauseCode, KindReason
from trueup.types.finding import EvidenceRank, KindClass, KindCode
from trueup.types.reason import reason

_MOST = 6
"""functions of a side that a sentence lists"""


def _functions(evidence: Evidence) -> Found | None:
    """What one side alone calls, up to the origin. That both programs do it is stated; that it makes the
    difference is not: two ways to compute one thing call other functions too."""
    if evidence.origin.phase not in ("forward", "loss"):
        return None
    apart = calls_apart(evidence)
    target, reference = (_counts(evidence, side) for side in ("target", "reference"))
    own, other = _of_one_side(apart, target, reference), _of_one_side(apart, reference, target)
    more = [name for name in dict.fromkeys(map(short_name, apart)) if 0 < target[name] != reference[name] > 0]
    if not (own or other or more) or max(map(len, (own, other, more))) > _MOST:
        return None
    parts = [
        reason(
            KindReason.MORE_CALLS,
            call=name,
            target=target[name],
            reference=reference[name],
            **_with_numbers_of_one_side(evidence, name),
        )
        for name in more
    ]
    sentence = origin_reason(
        evidence, KindReason.OTHER_FUNCTIONS, *parts, target=", ".join(own), reference=", ".join(other)
    )
    return Found(rank=EvidenceRank.CONSISTENT, sentence=sentence)


def _counts(evidence: Evidence, side: str) -> Counter[str]:
    """How often the module's code calls each function, before the origin and after."""
    calls = evidence.surroundings.neighbours
    return Counter(short_name(one) for one in calls if one.kind == "api" and getattr(one, side) is not None)


def _with_numbers_of_one_side(evidence: Evidence, name: str) -> dict[str, str]:
    """The calls of one function with the numbers that one side alone gives it."""
    sides = ("target", "reference")
    calls = [one for one in evidence.surroundings.neighbours if one.kind == "api" and short_name(one) == name]
    shown = [
        dict.fromkeys(_with_numbers(one, given) for one in calls if (given := getattr(one, side)) is not None)
        for side in sides
    ]
    pairs = ((side, own, other) for side, own, other in zip(sides, shown, shown[::-1], strict=True))
    only = {side: [one for one in own if one not in other and one != name] for side, own, other in pairs}
    return {f"{side}_only": ", ".join(found) for side, found in only.items() if 0 < len(found) <= _MOST}


def _of_one_side(apart: Iterable[NeighbourCall], own: Counter[str], other: Counter[str]) -> list[str]:
    """What the other side calls nowhere in the module, with the numbers it is given: ``mul 0.2``."""
    calls = (call for call in apart if own[short_name(call)] and not other[short_name(call)])
    return list(dict.fromkeys(map(_shown, calls)))


def _shown(call: NeighbourCall) -> str:
    return _with_numbers(call, call.target if call.target is not None else call.reference)


def _with_numbers(call: NeighbourCall, given: Mapping[str, object] | None) -> str:
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
