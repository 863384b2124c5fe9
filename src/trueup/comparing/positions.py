"""Positions that differ in no distance: of any two tokens of a row of which one may see the other, both runs
have the same difference of positions.

A model that looks at distances (rotary embeddings, relative buckets, slopes) computes the same of them,
but for rounding. Documents packed into one row, kept apart by a mask, may so begin anew or be counted on,
and all positions may begin at another number. Without a mask every token may see every other.
"""

from __future__ import annotations

import numpy as np

from trueup.comparing.pairing import StepPair
from trueup.comparing.rows import StepRows
from trueup.numerics.dtypes import DTYPES, float64_from_array
from trueup.numerics.hidden import lowest_visible
from trueup.store import TraceSource
from trueup.store.given import whole_numbers
from trueup.store.same_rows import MASK, POSITION
from trueup.store.view import StepView, step_view
from trueup.types.arrays import Bools


def positions_given(rows: StepRows) -> Bools:
    """Positions that the program gives the model, as far as both runs have them."""
    named = np.array([POSITION in word for word in rows.match.words.slot] + [False])[rows.slot]
    given = rows.paired & rows.kind_is("module") & rows.phase_is("forward") & rows.slot_starts("input")
    return np.asarray(given & named & (rows.of_call("parent") < 0))


def same_distances(rows: StepRows, target: TraceSource, reference: TraceSource, pair: StepPair) -> Bools:
    """Positions with the same distances in both runs; none where values or masks were not kept."""
    found = np.zeros(len(rows), bool)
    given = np.flatnonzero(positions_given(rows)).tolist()
    if not given:
        return found
    views = (
        step_view(target, pair.step, pair.rank),
        step_view(reference, pair.reference_step, pair.reference_rank),
    )
    for row in given:
        records = int(rows.target.record[row]), int(rows.reference.record[row])
        own, other = (whole_numbers(view, at) for view, at in zip(views, records, strict=True))
        if own is None or other is None or own.shape != other.shape or own.ndim != 2:
            continue
        seen, also = (_seen(view, at) for view, at in zip(views, records, strict=True))
        if seen is None or also is None:
            continue
        apart = own - other
        pairs = (apart[:, :, None] != apart[:, None, :]) & (seen | also)
        found[row] = not pairs.any()
    return found


def _seen(view: StepView, record: int) -> Bools | None:
    """Which token may see which, (rows or 1, tokens, tokens), by the mask that the same call was given; None
    where that was not kept, or is of another form."""
    call, (_, tokens) = view.record_call[record], view.shape(record)[-2:]  # type: ignore[index]
    masks = [r for r in view.records(call, "forward") if MASK in view.slot[r] and "input" in view.slot[r]]
    seen = np.ones((1, tokens, tokens), bool)
    for one in masks:
        raw, shape = view.raw(one), view.shape(one)
        if raw is None or shape is None or shape[-1] != tokens:
            return None
        values, kind = float64_from_array(raw[1], raw[0]), DTYPES[raw[0]].kind
        visible = values > lowest_visible(raw[0]) if kind == "float" else values != 0
        if len(shape) == 2:
            visible = visible[:, None, :] & visible[:, :, None]
        elif shape[-2] != tokens:
            return None
        else:  # whatever heads see
            visible = visible.reshape(shape[0], -1, tokens, tokens).any(axis=1)
        seen = seen & visible
    return seen
