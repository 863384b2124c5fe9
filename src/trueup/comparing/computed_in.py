"""What a record can have been rounded to, where all that it is computed from is bit-equal.

A coarse dtype that both runs have used before rounds nothing that came out equal: a difference that starts at
a record was made between the record and what it is computed from, in a dtype that one of the two shows. Four
cases tell what a record is computed from:

- an output of one function of the framework: the function's inputs. It computes in the dtype of its result or
  in a finer one; under autocast its inputs are cast to it first.
- the loss, and what a collective carries between the model and the loss (the logged loss): what the outermost
  modules returned. A sum over their n numbers adds n / ROWS_PER_ROUNDING to the walk.
- where functions were captured and both runs are one program, a single number after others: those numbers.
  Functions show every step in between.

- what a module without weights makes of integers alone (cosines of positions): those, which are exact. An
  angle of up to n is known to n roundings, and the module computes in the dtype of its result: a coarse one
  that stands before it is none of its own.

Elsewhere a module computes out of sight, in any dtype that it has seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trueup.comparing.metrics import Metrics
from trueup.comparing.rows import StepRows
from trueup.matching.codes import Codes
from trueup.numerics.dtypes import unit_roundoffs
from trueup.types.arrays import Bools, Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedIn:
    """For each row; infinite, and 0, where nothing tells."""

    roundoff: Floats
    """of the coarsest dtype among the record's own, that of what it is computed from, and those of all
    records before that differ or have no counterpart"""
    numbers: Floats
    """that it may be a sum of"""


def computed_in(rows: StepRows, metrics: Metrics) -> ComputedIn:
    """Columns beside ``rows``."""
    table = unit_roundoffs(rows.match.words.dtype)
    own = np.fmax(*(np.nan_to_num(table[half.dtype]) for half in (rows.target, rows.reference)))
    apart = ~rows.paired | (~metrics.bits_equal & (metrics.difference != 0))
    differing = _so_far(np.where(apart, own, 0.0))
    outputs = rows.paired & rows.phase_is("forward") & rows.slot_starts("output") & (own > 0)

    roots = outputs & rows.kind_is("module") & (rows.of_call("parent") < 0)
    after_model = rows.phase_is("loss") & rows.slot_is("value")
    after_model |= rows.phase_is("collective") & leads_to_loss(rows)
    returned = _so_far(np.where(roots, own, 0.0))
    after_model &= returned > 0
    num_returned = _so_far(np.where(roots, np.nan_to_num(rows.reference.numel), 0.0))

    single = (rows.reference.numel == 1) & (own > 0) & rows.phase_is("forward", "loss", "collective")
    earlier = _before(_so_far(np.where(outputs & single, own, 0.0)))
    one_program = rows.match.bridge is None and bool(rows.kind_is("api").any())
    after_numbers = single & (earlier > 0) & one_program

    largest = _of_integers(rows, apart, own)
    roundoff = np.full(len(rows), np.inf)
    for chosen, source in (
        (after_model, returned),
        (after_numbers, earlier),
        (outputs & _of_equal_inputs(rows, apart), np.zeros(len(rows))),
        (outputs & (largest > 0), own * largest),
    ):
        found = np.maximum(np.maximum(own, differing), source)
        roundoff[chosen] = np.minimum(roundoff, found)[chosen]
    return ComputedIn(roundoff=roundoff, numbers=np.where(after_model, num_returned, 0.0))


def _of_equal_inputs(rows: StepRows, apart: Bools) -> Bools:
    """Rows whose call is one function of the framework with tensors as inputs, all of them bit-equal."""
    functions = rows.kind_is("api") & rows.phase_is("forward")
    inputs = functions & rows.slot_starts("input")
    call = _target_call(rows)
    equal, some = (
        np.ones(rows.match.target.num_calls + 1, bool),
        np.zeros(rows.match.target.num_calls + 1, bool),
    )
    equal[call[inputs & apart]] = False
    some[call[inputs]] = True
    some[-1] = False
    return np.asarray(functions & (some & equal)[call])


def _of_integers(rows: StepRows, apart: Bools, own: Floats) -> Floats:
    """Of rows whose call is a module without weights that is given integers alone, all bit-equal: one more
    than the largest magnitude of them; else 0."""
    inputs = rows.phase_is("forward") & rows.slot_starts("input") & rows.kind_is("module")
    call = _target_call(rows)
    largest = np.zeros(rows.match.target.num_calls + 1)
    sizes = [np.abs(rows.target.statistics[name]) for name in ("minimum", "maximum")]
    np.maximum.at(largest, call[inputs], 1 + np.nan_to_num(np.fmax(*sizes))[inputs])
    largest[call[inputs & (apart | (own > 0))]] = 0.0
    largest[-1] = 0.0
    return np.where(_holds_weights(rows), 0.0, largest[call])


def _holds_weights(rows: StepRows) -> Bools:
    """Rows whose call is a module with a weight in it: the root, and all that a weight is named under."""
    words, names = rows.match.words.name, rows.of_call("name")
    held = {""}
    for code in np.unique(names[rows.kind_is("parameter")]).tolist():
        parts = words[code].split(".")
        held.update(".".join(parts[:end]) for end in range(1, len(parts)))
    return np.isin(names, [code for code, word in enumerate(words) if word in held])


def _target_call(rows: StepRows) -> Codes:
    """The target's call of each row; of rows that the reference alone has, the counterpart of theirs."""
    there = rows.match.calls.target_of
    other = there[rows.reference.call] if len(there) else np.full(len(rows), -1)
    found: Codes = np.where(
        rows.target.call >= 0, rows.target.call, np.where(rows.reference.call >= 0, other, -1)
    )
    return found


def leads_to_loss(rows: StepRows) -> Bools:
    """Rows that no backward row divides from the next loss."""
    at, num = np.arange(len(rows)), len(rows)
    loss = _next(np.where(rows.phase_is("loss"), at, num))
    back = _next(np.where(rows.phase_is("backward", "param_grad"), at, num))
    return np.asarray(loss < back)


def _so_far(values: Floats) -> Floats:
    return np.maximum.accumulate(values) if len(values) else values


def _before(values: Floats) -> Floats:
    return np.concatenate([[0.0], values[:-1]]) if len(values) else values


def _next(places: Codes) -> Codes:
    """The nearest place at or after each."""
    return np.minimum.accumulate(places[::-1])[::-1] if len(places) else places
