"""Faults of a known function, told by computing it again; every rule asks for those of its own kind."""

from __future__ import annotations

from dataclasses import dataclass

from trueup.diagnosing.evidence import Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """One way in which the target's function differs from the reference's."""

    kind: str
    sentence: str
    confidence: float


def solved(evidence: Evidence, kind: str) -> Solved | None:
    """The fault of a rotary embedding, an attention or a loss, if it is of a kind; worked out once."""
    from trueup.diagnosing.kinds.attention import attention_fault
    from trueup.diagnosing.kinds.criterion import criterion_fault
    from trueup.diagnosing.kinds.rotary import rotary_fault

    looks = (("rotary", rotary_fault), ("attention", attention_fault), ("criterion", criterion_fault))
    for name, look in looks:
        found = evidence.remembered(name, lambda look=look: look(evidence))  # type: ignore[misc]
        if isinstance(found, Solved) and found.kind == kind:
            return found
    return None
