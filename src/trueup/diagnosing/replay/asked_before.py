"""Models that a program asks before the first step begins: a teacher, or a reference model, that is called
before the model that trains.

A step begins with its first training forward, so that what such a model gave for the first microbatch is in
no trace, and no replay can put it in. What the loss makes of it is no error of the loss. That a model is
asked beforehand shows in the calls that follow: it is given what the next training forward is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from trueup.diagnosing.replay.step import OUTSIDE, ReplayedStep
from trueup.store import StepView, step_view
from trueup.types.finding import Stage


class Charged(Protocol):
    """What is asked of a charge."""

    @property
    def owner(self) -> str:
        """Whose error it is."""

    @property
    def stage(self) -> Stage:
        """Of the step."""

    @property
    def step(self) -> ReplayedStep:
        """Where it was seen."""


ChargeT = TypeVar("ChargeT", bound=Charged)


def without_asked_before(
    charges: Sequence[ChargeT], steps: Sequence[ReplayedStep], microbatch_of: Callable[[ChargeT], int | None]
) -> list[ChargeT]:
    """Leave out what the first loss makes of a model that errs and was asked before the step began."""
    first = min((step.step for step in steps), default=0)
    unseen = {step.rank: _asked_before(step) for step in steps if step.step == first}
    wrong = {
        charge.step.rank
        for charge in charges
        if any(f"{charge.owner}.".startswith(f"{root}.") for root in unseen.get(charge.step.rank, ()))
    }

    def follows(charge: ChargeT) -> bool:
        is_first = charge.step.step == first and not microbatch_of(charge)
        of_loss = charge.owner == OUTSIDE and charge.stage is Stage.LOSS
        return is_first and of_loss and charge.step.rank in wrong

    return [charge for charge in charges if not follows(charge)]


def _asked_before(step: ReplayedStep) -> set[str]:
    """Models that are evaluated on what the next training forward is given, but for the first one's of the
    step, of which no call is there."""
    view = step.target
    outer = [call for call in view.calls_of_kind("module") if view.parent[call] < 0]
    trained = [call for call in outer if view.mode[call] == "train"]
    if not trained:
        return set()
    loss = next((call for call in view.calls_of_kind("loss") if call > trained[0]), trained[-1])
    asked, there = set(), set()
    for call in outer:
        if view.mode[call] != "eval":
            continue
        if call < loss and _given(view, call) & _given(view, trained[0]):
            there.add(view.name[call])
        following = next((later for later in trained if later > call), None)
        given = _next_given(step) if following is None else _given(view, following)
        if _given(view, call) & given:
            asked.add(view.name[call])
    return asked - there


def _given(view: StepView, call: int) -> set[int]:
    """Digests of what a call was given."""
    rows = (row for row in view.records(call, "forward") if view.slot[row].startswith("input"))
    return {digest for row in rows if (digest := view.digest(row)) is not None}


def _next_given(step: ReplayedStep) -> set[int]:
    """What the reference's next step begins with."""
    source, own = step.reference.source, step.reference.step
    later = min(
        (number for number, ranks in source.steps().items() if number > own and step.rank in ranks),
        default=None,
    )
    if later is None:
        return set()
    view = step_view(source, later, step.reference.rank)
    calls = view.calls_of_kind("module")
    first = next((c for c in calls if view.parent[c] < 0 and view.mode[c] == "train"), None)
    return set() if first is None else _given(view, first)
