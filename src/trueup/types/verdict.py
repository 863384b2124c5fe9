"""The conclusion over two runs, as a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trueup.types.reason import Json, Reason, reason_from_json, reasons_from_json
from trueup.types.status import Outcome

Render = Callable[[Reason], dict[str, Json]]
"""How a reason is written; ``wording.to_json`` puts its text beside the code"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether two runs agree, where they first diverge, and on what that rests."""

    outcome: Outcome
    headline: Reason
    where: str | None = None
    """site of the origin as a person reads it"""
    owner: str | None = None
    """module charged with it"""
    step: int | None = None
    rank: int | None = None
    phase: str | None = None
    confidence: float | None = None
    """0 to 1; None where there is none to give"""
    evidence: tuple[Reason, ...] = ()
    """what tells the cause first"""
    before: Reason | None = None
    """how the preceding records agree"""
    next: Reason | None = None
    """what to do next; its phrase has the command"""

    @property
    def exit_code(self) -> int:
        """0 agree, 1 differ, 2 undecided."""
        return self.outcome.exit_code

    def to_json(self, render: Render = Reason.to_json) -> dict[str, Json]:
        """Plain values (docs/result-format.md, ``verdict``)."""
        return {
            "outcome": self.outcome.value,
            "exit_code": self.exit_code,
            "headline": render(self.headline),
            "where": self.where,
            "owner": self.owner,
            "step": self.step,
            "rank": self.rank,
            "phase": self.phase,
            "confidence": self.confidence,
            "evidence": [render(one) for one in self.evidence],
            "before": None if self.before is None else render(self.before),
            "next": None if self.next is None else render(self.next),
        }


def verdict_from_json(plain: Mapping[str, Any]) -> Verdict:
    """The verdict of a document, of version 2 or of version 1 (whose sentences are kept as given)."""
    following = plain.get("next")
    if plain.get("next_note") is not None and not isinstance(following, Mapping):  # version 1
        following = ", ".join(str(part) for part in (following, plain["next_note"]) if part)
    return Verdict(
        outcome=Outcome(plain.get("outcome") or Outcome.UNDECIDED),
        headline=reason_from_json(plain.get("headline") or "No verdict was reached."),
        **{name: plain.get(name) for name in ("where", "owner", "step", "rank", "phase", "confidence")},
        evidence=tuple(dict.fromkeys(reasons_from_json(plain.get("evidence")))),
        before=reason_from_json(plain["before"]) if plain.get("before") else None,
        next=reason_from_json(following) if following else None,
    )


__all__ = ["Render", "Verdict", "verdict_from_json"]
