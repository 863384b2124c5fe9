"""The conclusion over two runs, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from trueup.types.codes import VerdictCode
from trueup.types.confidence import Confidence, confidence_from_json
from trueup.types.reason import Reason, given, read_reason, read_reasons
from trueup.types.status import Outcome


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
    confidence: Confidence | None = None
    """that the runs first diverge at ``where``; None where no place is named"""
    evidence: tuple[Reason, ...] = ()
    """what tells the cause first"""
    before: Reason | None = None
    """how the preceding records agree"""
    next: Reason | None = None
    """what to do next; its phrase has the command"""

    @property
    def numbers_agree(self) -> bool:
        """Whether nothing that was compared differs, also where the programs are known to."""
        return self.outcome is Outcome.AGREE or self.headline.code is VerdictCode.OTHER_ARGUMENT

    @property
    def exit_code(self) -> int:
        """0 agree, 1 differ, 2 undecided."""
        return self.outcome.exit_code

    def to_json(self) -> dict[str, object]:
        """Plain values (docs/result-format.md, ``verdict``); reasons stay what they are, for
        ``wording.document``."""
        return {
            "outcome": self.outcome.value,
            "exit_code": self.exit_code,
            **{one.name: getattr(self, one.name) for one in fields(self) if one.name != "outcome"},
        }


def verdict_from_json(plain: Mapping[str, Any]) -> Verdict:
    """The verdict of a document, of version 2 or of version 1 (whose sentences are kept as given)."""
    following = read_reason(plain, "next")
    if plain.get("next_note") and not plain.get("next_reason"):  # version 1
        following = given(", ".join(str(part) for part in (plain.get("next"), plain["next_note"]) if part))
    return Verdict(
        outcome=Outcome(plain.get("outcome") or Outcome.UNDECIDED),
        headline=read_reason(plain, "headline") or given("No verdict was reached."),
        **{name: plain.get(name) for name in ("where", "owner", "step", "rank", "phase")},
        confidence=confidence_from_json(plain),
        evidence=read_reasons(plain, "evidence"),
        before=read_reason(plain, "before"),
        next=following,
    )


__all__ = ["Verdict", "verdict_from_json"]
