"""A sign-off: every item of the procedure, and whether the migrated run is accepted."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from trueup.accepting.item import Item, ProcedurePart, State
from trueup.comparing.result import plain
from trueup.curves.conditions import Condition
from trueup.curves.standard import ADVISORY
from trueup.store.writer import write_text
from trueup.types.codes import AcceptCode as Code
from trueup.types.reason import Reason, reason
from trueup.types.status import Outcome
from trueup.wording import document

SCHEMA_VERSION = 1
FILE = "signoff.json"
WORDS = {Outcome.AGREE: "accepted", Outcome.DIFFER: "refused", Outcome.UNDECIDED: "undecided"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SignOff:
    """What a person files; ``to_json`` is signoff.json (docs/accept.md)."""

    items: tuple[Item, ...]
    inputs: tuple[tuple[Reason, str], ...]
    """role and place of all that was given"""
    conditions: tuple[Condition, ...] = ()
    """the standard's default configuration, kept or changed"""
    by_hand: tuple[Reason, ...] = ()
    """what only a person can look at"""
    notes: tuple[Reason, ...] = ()
    waivers: dict[str, str] = field(default_factory=dict)
    """recommendation that is not followed -> a person's reason"""
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def outcome(self) -> Outcome:
        """Refused where an item that decides failed; accepted where all of those passed and none failed."""
        if any(item.binding and item.state is State.FAILED for item in self.items):
            return Outcome.DIFFER
        open_ = any(item.binding and item.state is not State.PASSED for item in self.items)
        failed = any(item.state is State.FAILED for item in self.items)
        decided = any(item.binding for item in self.items)
        return Outcome.UNDECIDED if open_ or failed or not decided else Outcome.AGREE

    @property
    def exit_code(self) -> int:
        """0 accepted, 1 refused, 2 undecided."""
        return self.outcome.exit_code

    @property
    def headline(self) -> Reason:
        """The decision, and what it rests on."""
        binding = [item for item in self.items if item.binding]
        failed = [item.title for item in self.items if item.state is State.FAILED]
        if self.outcome is Outcome.AGREE:
            waived = sum(item.state is State.WAIVED for item in self.items)
            return reason(Code.ACCEPTED, num=len(binding), waived=waived)
        if self.outcome is Outcome.DIFFER:
            return reason(Code.REFUSED, *(item.title for item in binding if item.state is State.FAILED))
        if failed:
            return reason(Code.FAILED_UNPROVED, *failed)
        unfollowed = [item.title for item in binding if item.state is State.WARNING]
        if unfollowed:
            return reason(Code.UNFOLLOWED, *unfollowed)
        return reason(Code.OPEN, *(item.title for item in binding if item.state is not State.PASSED))

    def of(self, part: ProcedurePart) -> list[Item]:
        """The items of one part."""
        return [item for item in self.items if item.part is part]

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        written: dict[str, object] = plain(
            document(
                {
                    "schema_version": SCHEMA_VERSION,
                    "outcome": WORDS[self.outcome],
                    "exit_code": self.exit_code,
                    "headline": self.headline,
                    "counts": {s.value: sum(item.state is s for item in self.items) for s in State},
                    "inputs": [{"role": role, "path": path} for role, path in self.inputs],
                    "parts": [
                        {
                            "key": part.value,
                            "title": reason(Code.PART, part=part.value),
                            "items": self.of(part),
                        }
                        for part in ProcedurePart
                    ],
                    "conditions": self.conditions,
                    "by_hand": self.by_hand,
                    "notes": self.notes,
                    "waivers": [{"row": row, "reason": why} for row, why in self.waivers.items()],
                    "standard": ADVISORY,
                    "seconds": {name: round(value, 2) for name, value in self.seconds.items()},
                }
            )
        )
        return written

    def write(self, folder: Path) -> Path:
        """Write signoff.json by one rename and return its path."""
        text = json.dumps(self.to_json(), allow_nan=False, indent=1, ensure_ascii=False)
        return write_text(folder / FILE, text + "\n")
