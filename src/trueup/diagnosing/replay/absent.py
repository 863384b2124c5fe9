"""Gradients that one run has and the other has not, charged to the code that cut or joined the graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from trueup.diagnosing.replay.step import OUTSIDE, ReplayedStep
from trueup.matching.across.records import GRADIENTS_PART
from trueup.store import StepView
from trueup.store.view import WEIGHT
from trueup.types.codes import ReplayCode
from trueup.types.reason import Reason

NOT_IN_GRAPH = Reason(ReplayCode.NOT_IN_GRAPH)
NO_GRADIENT_FROM_CALL = Reason(ReplayCode.NO_GRADIENT_FROM_CALL)
NO_GRADIENT_FROM_USES = Reason(ReplayCode.NO_GRADIENT_FROM_USES)

Slot = tuple[int, str]
"""call of the replay, slot"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """A gradient on one side only."""

    owner: str
    call: int
    slot: str
    lacking: str
    """``target`` or ``reference``"""
    record: int | None
    """the replay's record of the tensor in forward, or of the gradient"""
    reference_record: int | None
    why: Reason
    charged: bool
    """False: it follows from another one"""


def absent_gradients(step: ReplayedStep) -> list[Absent]:
    """All of them, those that follow from others marked, in the target's order of calls.

    What each run has at the same slot is absent in neither, only not paired.
    """
    return [one for side in ("target", "reference") for one in _Side(step, side).find()]


class _Side:
    """One direction: what ``lacking`` has not and the other run has."""

    def __init__(self, step: ReplayedStep, lacking: str) -> None:
        self._step, self._lacking = step, lacking
        pairs, calls = step.match.records, step.match.calls
        self._partner = dict(zip(pairs.target.tolist(), pairs.reference.tolist(), strict=True))
        self._to_target: list[int] = calls.target_of.tolist()
        found = ((self._to_target[call], slot) for call, slot in _gradients(step.reference))
        there = {(call, slot) for call, slot in found if call >= 0}
        self._own_gradients = set(_gradients(step.target)) if lacking == "target" else there

    @cached_property
    def _missing(self) -> dict[Slot, int | None]:
        """Slots without a gradient here that have one there -> the other side's record."""
        step = self._step
        if self._lacking == "target":
            view, only = step.reference, step.match.records.only_reference.tolist()
        else:
            view, only = step.target, step.match.records.only_target.tolist()
        calls = [view.record_call[r] for r in only]
        if view is step.reference:
            calls = [self._to_target[call] for call in calls]
        planned = step.planned_calls
        elsewhere = self._names_of_second_runs
        return {
            (call, slot): row
            for call, row in zip(calls, only, strict=True)
            if view.phase[row] == "backward"
            and call in planned
            and step.target.mode[call] == "train"
            and self._is_one_tensor(call, slot := view.slot[row])
            and step.target.name[call] not in elsewhere
            and (call, slot) in self._requires_grad
            and (call, slot) not in self._own_gradients
            and not (slot.startswith("output") and (self._is_sent_on(call) or self._is_weight(call, slot)))
        }

    def _is_weight(self, call: int, slot: str) -> bool:
        """Whether a call returns a weight itself: its gradient arrives at the weight, where no hook of an
        output sees it."""
        step = self._step
        record: int | None = self._forward_record.get((call, slot))
        view = step.target if self._lacking == "target" else step.reference
        if record is not None and view is step.reference:
            record = self._partner.get(record)
        return record is not None and view.content[record] in self._weights

    @cached_property
    def _weights(self) -> set[int]:
        """Summaries of the weights of the side that lacks gradients."""
        step = self._step
        view = step.target if self._lacking == "target" else step.reference
        held = (view.parameter(fqn, *WEIGHT) for fqn in view.parameters)
        return {found for one in held if one is not None and (found := view.content[one]) is not None}

    def _is_sent_on(self, call: int) -> bool:
        """Whether a call with a single output sends its inputs what it sends them in the other run: nothing
        but the gradient of that output makes it, so it did arrive. A hook on a view misses it where the view
        is written to afterwards (``linear(x).add_(x)``): the graph goes past the view then.
        """
        step, view = self._step, self._step.target
        outputs = [slot for c, slot in self._requires_grad if c == call and slot.startswith("output")]
        sent = [r for r in view.records(call, "backward") if view.slot[r].startswith("input")]
        if len(outputs) != 1 or not sent:
            return False
        if step.match.bridge is not None:
            return all(self._is_of_the_reference(call, record) for record in sent)
        rows = [step.row_of_record.get(record, -1) for record in sent]
        if min(rows) < 0:
            return False
        apart, norm = step.metrics.difference[rows], step.metrics.norm[rows]
        return bool((norm > 0).all() and (apart <= step.bounds[rows]).all())

    def _is_of_the_reference(self, call: int, record: int) -> bool:
        """Whether the call of the reference sends one of its inputs this gradient. Two implementations were
        paired before anything was put in, so that gradients far apart then have no partner in the replay."""
        view, other = self._step.target, self._step.reference
        partner = int(self._step.match.calls.reference_of[call])
        sketch, shape = view.shared_sketch(record), view.shape(record)
        if partner < 0 or sketch is None or not np.any(sketch):
            return False
        sent = [r for r in other.records(partner, "backward") if other.slot[r].startswith("input")]
        alike = (other.shared_sketch(r) for r in sent if other.shape(r) == shape)
        most = GRADIENTS_PART * float(np.linalg.norm(sketch))
        return any(one is not None and float(np.linalg.norm(sketch - one)) <= most for one in alike)

    @cached_property
    def _names_of_second_runs(self) -> set[str]:
        """Modules whose gradients stand, on either side, under a second run whose original is not known."""
        return {
            view.name[call]
            for view in (self._step.target, self._step.reference)
            for call, _ in _gradients(view)
            if view.mode[call] == "recompute"
        }

    def _is_one_tensor(self, call: int, slot: str) -> bool:
        """Of two implementations only what is known to be one tensor of one module can lack a gradient."""
        if self._step.match.bridge is None:
            return True
        paired = self._forward_record.get((call, slot)) in self._partner
        return paired and self._step.target.kind[call] == "module"

    def find(self) -> list[Absent]:
        """Judge each in the order of calls; outermost first."""
        return [self._judge(call, slot) for call, slot in sorted(self._missing)]

    def _judge(self, call: int, slot: str) -> Absent:
        step = self._step
        cut = self._requires_grad.get((call, slot)) is False
        inward = slot.startswith("input")
        if cut:
            follows = self._cut_before(call, slot, inward=inward)
            owner = step.module_around(call) if inward else self._own(call)
            why = NOT_IN_GRAPH
        elif inward:
            follows = self._same_tensor_inside(call, slot) or not self._received(call)
            owner, why = self._own(call), NO_GRADIENT_FROM_CALL
        else:
            follows = self._not_sent_further_on(call, slot)
            owner, why = step.module_around(call), NO_GRADIENT_FROM_USES
        other = self._missing[call, slot]
        here = self._forward_record.get((call, slot))
        return Absent(
            owner=owner,
            call=call,
            slot=slot,
            lacking=self._lacking,
            record=here if self._lacking == "target" else other,
            reference_record=other if self._lacking == "target" else None,
            why=why,
            charged=not follows,
        )

    def _own(self, call: int) -> str:
        step = self._step
        return step.target.name[call] if step.target.kind[call] == "module" else step.module_around(call)

    # -- what is known of the side that lacks it ------------------------------------------

    @cached_property
    def _forward_record(self) -> dict[Slot, int]:
        view = self._step.target
        keys = zip(view.record_call, view.slot, view.phase, strict=True)
        return {(call, slot): row for row, (call, slot, phase) in enumerate(keys) if phase == "forward"}

    @cached_property
    def _requires_grad(self) -> dict[Slot, bool | None]:
        """Whether a forward tensor takes part in the graph, on the side that lacks its gradient; slots that
        are not there at all are not here."""
        step = self._step
        if self._lacking == "target":
            return {slot: step.target.requires_grad[row] for slot, row in self._forward_record.items()}
        found = {}
        for slot, row in self._forward_record.items():
            other = self._partner.get(row)
            if other is not None:
                found[slot] = step.reference.requires_grad[other]
        return found

    @cached_property
    def _calls_by_content(self) -> dict[int, list[Slot]]:
        """Slots that hold the same tensor in forward."""
        found: dict[int, list[Slot]] = {}
        for slot, row in self._forward_record.items():
            summary = self._step.target.content[row]
            if summary is not None:
                found.setdefault(summary, []).append(slot)
        return found

    def _others_with(self, call: int, slot: str) -> list[Slot]:
        row = self._forward_record.get((call, slot))
        summary = None if row is None else self._step.target.content[row]
        return [] if summary is None else [s for s in self._calls_by_content[summary] if s != (call, slot)]

    def _received(self, call: int) -> bool:
        """Whether any gradient arrived at the call's outputs."""
        gradients = self._own_gradients
        return any(s.startswith("output") for c, s in gradients if c == call)

    # -- what follows from another ------------------------------------------

    def _cut_before(self, call: int, slot: str, *, inward: bool) -> bool:
        """Cut already where it came from: an input of a module around, an output just before, or inside."""
        step = self._step
        if not inward:
            inputs = any(c == call and s.startswith("input") and self._is_cut(c, s) for c, s in self._missing)
            return inputs or any(
                call in step.target.enclosing(c) and self._is_cut(c, s) for c, s in self._missing if c != call
            )
        around = step.target.enclosing(call)
        parent = step.target.parent[call]
        for other, where in self._missing:
            if not self._is_cut(other, where) or other == call:
                continue
            if where.startswith("input") and other in around:
                return True
            beside = step.target.parent[other] == parent and other < call
            if where.startswith("output") and beside:
                return True
        return any(c < call and self._is_cut(c, s) for c, s in self._others_with(call, slot))

    def _is_cut(self, call: int, slot: str) -> bool:
        return (call, slot) in self._missing and self._requires_grad.get((call, slot)) is False

    def _same_tensor_inside(self, call: int, slot: str) -> bool:
        """The innermost call that was given the tensor is the one that sent nothing."""
        return any(
            s.startswith("input") and (c, s) in self._missing and call in self._step.target.enclosing(c)
            for c, s in self._others_with(call, slot)
        )

    def _not_sent_further_on(self, call: int, slot: str) -> bool:
        """Calls that used the tensor are charged themselves, or those around it got nothing either."""
        step = self._step
        used = any(
            s.startswith("input") and (c, s) in self._missing for c, s in self._others_with(call, slot)
        )
        returned = any(
            s.startswith("output") and (c, s) in self._missing and c in step.target.enclosing(call)
            for c, s in self._others_with(call, slot)
        )
        parent = step.target.parent[call]
        starved = parent >= 0 and not self._received(parent) and step.module_around(call) != OUTSIDE
        return used or returned or starved


def _gradients(view: StepView) -> Iterator[Slot]:
    """Call and slot of the gradients that arrived at inputs and outputs."""
    for call, phase, slot in zip(view.record_call, view.phase, view.slot, strict=True):
        if phase == "backward":
            yield call, slot
