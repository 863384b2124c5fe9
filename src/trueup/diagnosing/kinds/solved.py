"""Faults of a known function, told by computing it again; every rule asks for those of its own kind."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.kinds.rule import Found, Look
from trueup.types.codes.kinds import CauseCode
from trueup.types.finding import KindCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """One way in which the target's function differs from the reference's."""

    kind: KindCode
    found: Found


def solved(kind: KindCode, *, without: tuple[CauseCode, ...] = ()) -> Look:
    """Looks for a fault of this kind of a rotary embedding, an attention, a gate, a router, a loss, a linear
    layer's operands, or in the factors of indices; each function is worked out once for all rules.
    ``without``: usual causes that none of these faults has."""
    from trueup.diagnosing.kinds.attention import attention_fault
    from trueup.diagnosing.kinds.by_index import index_fault
    from trueup.diagnosing.kinds.criterion import criterion_fault
    from trueup.diagnosing.kinds.gated import gate_fault
    from trueup.diagnosing.kinds.quantised import quantisation_fault
    from trueup.diagnosing.kinds.rotary import rotary_fault
    from trueup.diagnosing.kinds.routing import routing_fault

    def look(evidence: Evidence) -> Found | None:
        for fault in (
            rotary_fault,
            attention_fault,
            gate_fault,
            routing_fault,
            criterion_fault,
            quantisation_fault,
            index_fault,
        ):
            one = evidence.remembered(fault)
            if one is not None and one.kind is kind:
                return replace(one.found, without=(*one.found.without, *without))
        return None

    return look
