"""One line of a sign-off: what was asked, what was measured, what was expected, and the outcome."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from trueup.curves.standard import Criterion, Met
from trueup.types.reason import Reason


class State(str, Enum):
    """What came of an item."""

    PASSED = "passed"
    FAILED = "failed"
    WARNING = "warning"
    """beyond a number that does not reject by itself"""
    WAIVED = "waived"
    """a recommendation of the guide that a person decided not to follow, with a reason"""
    NOT_SHOWN = "not shown"


class ProcedurePart(str, Enum):
    """The guide's procedure, in its order."""

    CHECKLIST = "checklist"
    PREPARATION = "preparation"
    FIRST_STEPS = "first_steps"
    NO_UPDATE = "no_update"
    LONG_RUN = "long_run"
    DOWNSTREAM = "downstream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One item of the procedure."""

    key: str
    part: ProcedurePart
    title: Reason
    state: State
    binding: bool
    """whether it decides: failed it refuses, not shown it leaves the acceptance open"""
    measured: Reason
    threshold: Reason
    origin: Reason
    """where the threshold comes from"""
    evidence: tuple[Reason, ...] = ()
    how: Reason | None = None
    """how it could be shown"""

    def to_json(self) -> dict[str, object]:
        """Fields by name; without a way to show it ``how`` is ``""``."""
        names = ("key", "part", "title", "state", "binding", "measured", "threshold", "origin", "evidence")
        return {**{name: getattr(self, name) for name in names}, "how": self.how or ""}


_STATES = {
    Met.MET: State.PASSED,
    Met.NOT_MET: State.FAILED,
    Met.WARNING: State.WARNING,
    Met.UNDECIDED: State.NOT_SHOWN,
}


def item_from_criterion(criterion: Criterion, part: ProcedurePart) -> Item:
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
        evidence=(criterion.note,) if criterion.note is not None and not open_ else (),
        how=criterion.note if open_ else None,
    )
