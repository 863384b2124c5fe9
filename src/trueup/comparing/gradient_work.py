"""Calls outside the model that work on gradients: norms, clipping, unscaling.

They are captured as functions of a forward pass, since no module is around them. Rules that follow a forward
pass go by that; a person reads of them, and a diagnosis places them, as work on the parameters' gradients.
"""

from __future__ import annotations

import numpy as np

from trueup.comparing.inflow import contents
from trueup.comparing.rows import Half, StepRows
from trueup.matching.codes import Codes
from trueup.types.arrays import Bools


def after_backward(rows: StepRows) -> Bools:
    """Calls outside every module after a backward pass began: clipping and the like, which work on
    gradients."""
    began = np.cumsum(rows.phase_is("backward", "param_grad")) > 0
    outside = rows.of_call("parent") < 0
    return np.asarray(rows.phase_is("forward") & began & outside & rows.kind_is("api"))


def works_on_gradients(rows: StepRows) -> Bools:
    """Of the calls after backward those that take a gradient, as backward left it, or what such a call made
    of one. A metric computed there takes what the model returned, and is none of them."""
    later = after_backward(rows) & rows.mode_is("eval")
    out = np.zeros(len(rows), bool)
    if later.any():
        for half in (rows.target, rows.reference):
            out |= _takes_gradients(rows, half, later & (half.record >= 0))
    return out


def _takes_gradients(rows: StepRows, half: Half, later: Bools) -> Bools:
    content, inputs = contents(half), rows.slot_starts("input")
    known = set(content[rows.phase_is("param_grad") & (half.summary >= 0)].tolist())
    taken: set[int] = set()
    for row in np.flatnonzero(later).tolist():
        call, seen = int(half.call[row]), int(content[row])
        if inputs[row] and seen in known:
            taken.add(call)
        if call in taken:
            known.add(seen)
    return later & np.isin(half.call, list(taken))


def shown_phase(rows: StepRows) -> Codes:
    """Phase of every row as a person reads it, as codes of ``rows.match.words.phase``."""
    at = works_on_gradients(rows)
    if not at.any():
        return rows.phase
    return np.where(at, rows.match.words.phase.index("param_grad"), rows.phase)
