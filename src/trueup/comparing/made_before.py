"""The call of one run alone that made, in an earlier step, what differs first in a later one.

State that a program keeps itself (a momentum, an average, a count) is made in one step and read in the next.
Where no call of the step made an input that differs, the step before is looked up: a call that returned what
the one run holds now, and that the other run does not make there, is what the two do not have in common.
"""

from __future__ import annotations

from collections.abc import Sequence

from trueup.comparing.first import First
from trueup.comparing.pairing import StepPair, step_views
from trueup.matching.step import match_step
from trueup.store import TraceSource
from trueup.store.view import StepView
from trueup.types.codes import VerdictCode
from trueup.types.reason import Reason, reason


def made_by_no_call_of_its_step(first: First) -> bool:
    """Whether nothing is known of what made what differs first, as far as its own step goes."""
    return first.made is None or first.made.code is VerdictCode.GIVEN_OUTSIDE


def made_in_step_before(
    target: TraceSource, reference: TraceSource, pairs: Sequence[StepPair], first: First
) -> Reason | None:
    """None where the step before shows no such call, or both runs make theirs with counterparts."""
    row = first.row
    steps = [one for one in pairs if one.rank == first.rank]
    at = next((place for place, one in enumerate(steps) if one.step == first.step), 0)
    records = row.target_record, row.reference_record
    if not at or row.phase != "forward" or not row.slot.startswith("input") or None in records:
        return None
    now, before = (step_views(target, reference, steps[place]) for place in (at, at - 1))
    calls = [
        _maker(view, earlier, record)
        for view, earlier, record in zip(now, before, records, strict=True)
        if record is not None
    ]
    match = match_step(before[0].tables, before[1].tables)
    if match.bridge is not None:
        return None
    partners = match.calls.reference_of, match.calls.target_of
    for side, call, view, partner in zip(("target", "reference"), calls, before, partners, strict=True):
        if call is not None and partner[call] < 0:
            other = before[1] if view is before[0] else before[0]
            name = view.name[call]
            return reason(
                VerdictCode.MADE_BY_ONE,
                side=side,
                call=name,
                module=None,
                is_module=False,
                here=name in other.name,
                step=steps[at - 1].step,
            )
    return None


def _maker(view: StepView, earlier: StepView, record: int) -> int | None:
    """The last function of the earlier step, outside the model, that returned what a record holds; none of
    elements that are all alike, which others return too."""
    digest = view.digest(record)
    if digest is None or view.is_one_number(record):
        return None
    found = [
        earlier.record_call[one]
        for one, (phase, slot) in enumerate(zip(earlier.phase, earlier.slot, strict=True))
        if phase == "forward" and slot.startswith("output") and earlier.digest(one) == digest
    ]
    call = found[-1] if found else None
    if call is None or call < 0 or earlier.kind[call] != "api" or earlier.parent[call] >= 0:
        return None
    return call
