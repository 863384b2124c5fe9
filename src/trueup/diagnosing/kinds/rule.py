"""What a rule is: the kind it looks for, what it needs, how it looks, and what is said of the kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Flag, auto

from trueup.diagnosing.evidence import Evidence
from trueup.types.codes.kinds import AdviceCode, CauseCode, KindReason
from trueup.types.finding import EvidenceRank, Kind, KindClass, KindCode
from trueup.types.reason import Number, Place, Reason, reason


class EvidenceNeeds(Flag):
    """Evidence without which a rule is not asked."""

    NOTHING = 0
    BOTH_TENSORS = auto()
    PARAMETER = auto()
    """the origin is about a parameter"""
    OTHER_RANKS = auto()
    """the same site on other ranks of the target"""
    EARLIER_STEP = auto()
    """the same site of the target a step before"""
    REPEAT = auto()
    """a plain repeat of the reference"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one look at the evidence found."""

    rank: EvidenceRank
    sentence: Reason
    measure: float = 1.0
    """share of the difference it explains"""
    causes: tuple[CauseCode, ...] = ()
    """that this case points to, in place of the usual ones"""
    without: tuple[CauseCode, ...] = ()
    """usual ones that this case rules out"""
    advice: AdviceCode | None = None
    """of this case, in place of the rule's"""
    factor: float | None = None
    over: tuple[int, ...] = ()


Look = Callable[[Evidence], Found | None]

BEFORE_UPDATE = ("batch", "forward", "loss", "backward", "param_grad")
"""phases of a step before its optimizer, whose values are of a batch"""
_AMONG_RANKS = frozenset(
    (
        CauseCode.SHARED_STREAM,
        CauseCode.SUMMED_FOR_AVERAGED,
        CauseCode.OUTSIDE_THE_GROUP,
        CauseCode.WRAPPER_BYPASSED,
        CauseCode.PARTIAL_SUM,
    )
)
"""causes that need several processes"""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRule:
    """How one kind of fault is recognised. Its module defines ``RULE``; ``RULES`` lists it."""

    code: KindCode
    family: KindClass
    needs: EvidenceNeeds = EvidenceNeeds.BOTH_TENSORS
    looks: tuple[Look, ...]
    """ways to see it, the most telling first; of equal rank the first counts"""
    causes: tuple[CauseCode, ...]
    """usual ones, most likely first"""
    in_phases: dict[CauseCode, tuple[str, ...]] = field(default_factory=dict)
    """causes that hold in these phases alone"""
    advice: AdviceCode
    place: str
    """why it stands where it stands in ``RULES``, or that the order does not matter"""
    note: str = "0023-order-of-kinds"
    """the decision it comes from, in docs/decisions"""

    def find(self, evidence: Evidence) -> Found | None:
        """The strongest of what its looks find; looks after one that explains everything are left out."""
        best: Found | None = None
        for look in self.looks:
            found = look(evidence)
            if found is not None and (best is None or found.rank.place < best.rank.place):
                best = found
            if best is not None and best.rank.place <= EvidenceRank.EVERY_ELEMENT.place:
                break
        return best

    def kind(self, found: Found, evidence: Evidence | None = None, *, phase: str | None = None) -> Kind:
        """What was found as a kind of this rule, with the causes that this case points to; where it points to
        none, the usual ones that can be: of the phase (of the evidence, or ``phase``), and among ranks only
        where there are several."""
        usual = [c for c in self.causes if evidence is None or self._can_be(c, evidence)]
        usual = [cause for cause in usual if cause not in found.without]
        if phase is not None:
            usual = [cause for cause in usual if phase in self.in_phases.get(cause, (phase,))]
        return Kind(
            name=self.code,
            family=self.family,
            rank=found.rank,
            measure=round(min(max(found.measure, 0.0), 1.0), 4),
            sentence=_with_share(found),
            causes=tuple(reason(code) for code in dict.fromkeys(found.causes or usual)),
            next=reason(found.advice or self.advice),
            factor=found.factor,
            over=found.over,
        )

    def _can_be(self, cause: CauseCode, evidence: Evidence) -> bool:
        phase = evidence.origin.phase
        is_single_process = evidence.target_run.world_size == evidence.reference_run.world_size == 1
        return phase in self.in_phases.get(cause, (phase,)) and not (
            is_single_process and cause in _AMONG_RANKS
        )


def _with_share(found: Found) -> Reason:
    """The sentence; where it leaves more of the difference than rounding, how much it explains."""
    sentence = found.sentence
    if found.rank not in (EvidenceRank.MOST, EvidenceRank.SOME):
        return sentence
    return replace(sentence, numbers=(*sentence.numbers, ("explains", round(found.measure, 4))))


Fact = Number | Place | Sequence[str]


def origin_reason(evidence: Evidence, code: KindReason, *parts: Reason, **facts: Fact) -> Reason:
    """A reason about the origin's tensor, with what the tensor is and which part of it was looked at."""
    one = whole_origin_reason(evidence, code, *parts, **facts)
    part = evidence.part_seen
    return replace(one, places=(*one.places, ("part_seen", part))) if part else one


def whole_origin_reason(evidence: Evidence, code: KindReason, *parts: Reason, **facts: Fact) -> Reason:
    """The same where it does not rest on the part of a large tensor that was looked at."""
    origin = evidence.origin
    return reason(code, *parts, **facts, origin_phase=origin.phase, origin_slot=origin.slot)
