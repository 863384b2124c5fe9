"""One line of a sign-off: what was asked, what was measured, what was wanted, and what came of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from trueup.curves.standard import Criterion, Met

STANDARD = "migration standard"
GUIDE = "accuracy guide"


class State(str, Enum):
    """What came of an item."""

    PASSED = "passed"
    FAILED = "failed"
    WARNING = "warning"
    """beyond a number that does not reject by itself"""
    NOT_SHOWN = "not shown"


class Part(str, Enum):
    """The guide's procedure, in its order."""

    CHECKLIST = "checklist"
    PREPARATION = "preparation"
    FIRST_STEPS = "first_steps"
    NO_UPDATE = "no_update"
    LONG_RUN = "long_run"
    DOWNSTREAM = "downstream"


TITLES = {
    Part.CHECKLIST: "Checklist of the configurations",
    Part.PREPARATION: "Aligned preparation",
    Part.FIRST_STEPS: "Steps 1 and 2",
    Part.NO_UPDATE: "Learning rate 0",
    Part.LONG_RUN: "Long run",
    Part.DOWNSTREAM: "Downstream tasks",
}


VOUCH = "; or --assume "
"""before the key of what a person may vouch for, at the end of how it could be shown"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One item of the procedure."""

    key: str
    part: Part
    title: str
    state: State
    binding: bool
    """whether it decides: failed it refuses, not shown it leaves the acceptance open"""
    measured: str = ""
    threshold: str = ""
    origin: str = ""
    """where the threshold comes from"""
    evidence: tuple[str, ...] = ()
    how: str = ""
    """how it could be shown"""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"part": self.part.value, "state": self.state.value}


_STATES = {
    Met.MET: State.PASSED,
    Met.NOT_MET: State.FAILED,
    Met.WARNING: State.WARNING,
    Met.UNDECIDED: State.NOT_SHOWN,
}


def item_from_criterion(criterion: Criterion, part: Part) -> Item:
    """A criterion of the standard as a line of the sign-off."""
    state = _STATES[criterion.status]
    if state is State.FAILED and not criterion.decisive:
        state = State.WARNING
    open_ = state is State.NOT_SHOWN
    return Item(
        key=criterion.key,
        part=part,
        title=criterion.title,
        state=state,
        binding=criterion.decisive,
        measured=criterion.value,
        threshold=criterion.threshold,
        origin=criterion.origin,
        evidence=(criterion.note,) if criterion.note and not open_ else (),
        how=criterion.note if open_ else "",
    )
