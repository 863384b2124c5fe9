"""Whose part of a tensor that was put together from ranks is wrong: the elements that err, and who recorded
them."""

from __future__ import annotations

import numpy as np

from trueup.comparing.row_order import layout_of_rows
from trueup.diagnosing.stages.context import Context
from trueup.errors import ConfigError
from trueup.merging.dealt import given_to_calls
from trueup.merging.trace import MergedTrace
from trueup.store import StepView
from trueup.types.arrays import Array, Floats
from trueup.types.finding import Origin


def ranks_that_err(origin: Origin, context: Context) -> tuple[int, ...]:
    """The ranks whose part of the origin's tensor exceeds its tolerance while every other rank's keeps it;
    empty where all err, where a rank has no part of its own, or where values were not kept."""
    at = next((n for n, steps in enumerate(context.steps) if steps[0] == origin.step), None)
    records = origin.target_record, origin.reference_record
    return () if at is None else ranks_apart(context, at, records, origin.tolerance or 0.0)


def ranks_apart(
    context: Context, at: int, records: tuple[int | None, int | None], allowed: float
) -> tuple[int, ...]:
    """The same of a record of both sides in the ``at``-th compared step."""
    target, views = context.target, context.pair(at)
    if not isinstance(target, MergedTrace) or records[0] is None or records[1] is None:
        return ()
    errors: dict[int, float] = {}
    for record, other in _in_all_microbatches(views, *records):
        row = views[0].content[record]
        owners = None if row is None else target.owners(views[0].step, row)
        actual, expected = views[0].value(record), views[1].value(other)
        if actual is None or expected is None or owners is None:
            return ()
        held = _in_one_order((actual, owners, expected), views, views[0].record_microbatch[record])
        for rank, error in ({} if held is None else _errors(*held)).items():
            errors[rank] = max(error, errors.get(rank, 0.0))
    some = tuple(sorted(rank for rank, error in errors.items() if not error <= allowed))
    return some if len(some) < len(errors) == target.layout.size else ()


def _in_all_microbatches(views: tuple[StepView, StepView], *records: int | None) -> list[tuple[int, int]]:
    """The records of one site in every microbatch, those of both sides together."""
    sides: list[dict[int, int]] = []
    for view, record in zip(views, records, strict=True):
        assert record is not None
        call, phase, slot = view.record_call[record], view.phase[record], view.slot[record]
        calls = view.same_place(view, call, microbatch=False)
        found = {
            view.record_microbatch[one]: one
            for at in calls
            for one in view.records(at, phase)
            if view.slot[one] == slot
        }
        sides.append(found)
    target, reference = sides
    return [(target[at], reference[at]) for at in target if at in reference]


def _in_one_order(
    held: tuple[Array, Array, Array], views: tuple[StepView, StepView], microbatch: int | None
) -> tuple[Array, Array, Array] | None:
    """The target's values, their owners, and the reference's, row by row where the rows stand otherwise."""
    actual, owners, expected = held
    given = [dict(given_to_calls(view)).get(microbatch or 0) for view in views]
    shapes = actual.shape, expected.shape
    layout = None if given[0] is None or given[1] is None else layout_of_rows(given[0], given[1], shapes)
    if layout is not None and not layout.known:
        return None
    if layout is not None:
        try:
            actual, owners = layout.of_target(actual), layout.of_target(owners)
            expected = layout.of_reference(expected)
        except ConfigError:  # the layout does not fit after all
            return None
    return (actual, owners, expected) if actual.shape == owners.shape == expected.shape else None


def _errors(actual: Floats, owners: Array, expected: Floats) -> dict[int, float]:
    """Relative error of each rank's part."""
    found = {}
    for rank in np.unique(owners).tolist():
        own = owners == rank
        error, size = np.linalg.norm((actual - expected)[own]), np.linalg.norm(expected[own])
        found[rank] = float(error / size) if size else (0.0 if not error else float("inf"))
    return found
