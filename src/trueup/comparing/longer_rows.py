"""Batches that hold the other run's rows and further columns: padded to another length.

Where the model is given a mask, its rows are found again without their padding (``row_order``). A model of
two sequences, or one that makes its masks from the ids, is given none. The columns beyond the shorter batch
hold padding, and maybe an end token whose label is padding; that nothing is made of them only what comes of
them can tell.
"""

from __future__ import annotations

import numpy as np

from trueup.comparing.pairing import StepPair
from trueup.comparing.rows import StepRows
from trueup.store import TraceSource
from trueup.store.given import whole_numbers
from trueup.store.view import step_view
from trueup.types.arrays import Bools, Ints


def longer_rows(rows: StepRows, target: TraceSource, reference: TraceSource, pair: StepPair) -> Bools:
    """Whole numbers that both models are given, of which one side's are the other's with further columns;
    none where values were not kept."""
    found = np.zeros(len(rows), bool)
    given = rows.paired & rows.kind_is("module") & rows.phase_is("forward") & rows.slot_starts("input")
    given &= (rows.of_call("parent") < 0) & (rows.target.shape != rows.reference.shape)
    if not given.any():
        return found
    views = (
        step_view(target, pair.step, pair.rank),
        step_view(reference, pair.reference_step, pair.reference_rank),
    )
    for row in np.flatnonzero(given).tolist():
        records = int(rows.target.record[row]), int(rows.reference.record[row])
        own, other = (whole_numbers(view, at) for view, at in zip(views, records, strict=True))
        if own is not None and other is not None:
            found[row] = extends(own, other) or extends(other, own)
    return found


def extends(longer: Ints, shorter: Ints) -> bool:
    """Whether one array is the other with columns before or after it: the same rows, more tokens.

    Example:
        >>> extends(np.array([[5, 6, 0, 0]]), np.array([[5, 6]]))
        True
    """
    if longer.ndim < 2 or longer.shape[:-1] != shorter.shape[:-1]:
        return False
    more, width = longer.shape[-1] - shorter.shape[-1], shorter.shape[-1]
    if more <= 0 or not width:
        return False
    return any((longer[..., start : start + width] == shorter).all() for start in (0, more))
