"""Bounds raised where the difference is explained by what went in: the same contents, or an API call's own
inputs.

- The same pair of contents seen again (one call's output, the next one's input; a weight handed to a
  function) is judged as where it was first seen.
- A tensor whose making a dump does not show (msprobe records no views) may differ relatively by twice what
  was accepted before it in the same module call.
- Inside a module, an API call's output may differ relatively by twice what its inputs differ by, a gradient
  by twice what gradients before it in the same module call differ by, if those were accepted and of one
  dtype: raw attention scores cancel, softmax then forgets it. Never across a module's boundary, so that a
  module's own outputs are always held against the rounding bound.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from trueup.comparing.metrics import Metrics
from trueup.comparing.rows import Bools, Floats, Half, Rows
from trueup.matching.codes import Codes

GAIN = 2.0
_MOST_ROUNDS = 200
_TOLD = ("minimum", "maximum", "mean", "l2_norm")


def raise_bound(rows: Rows, metrics: Metrics, bound: Floats, scale: Floats) -> Floats:
    """The bound of every row, never lower than given."""
    first = first_seen(rows)
    bound = np.fmax(bound, bound[first])
    inner = rows.kind_is("api") & rows.paired & (rows.of_call("parent") >= 0)
    forward, backward = inner & rows.phase_is("forward"), inner & rows.phase_is("backward")
    inputs = forward & rows.slot_starts("input")
    partial = bool(rows.target.tables.gaps or rows.reference.tables.gaps)
    unshown = inputs & (first == np.arange(len(rows))) & partial
    made = (forward & rows.slot_starts("output")) | backward | unshown
    within = rows.phase_is("forward") & rows.paired & (rows.of_call("parent") >= 0)
    same_dtype = rows.target.dtype == rows.reference.dtype
    error = np.where(same_dtype & np.isfinite(metrics.rel_l2), metrics.rel_l2, 0.0)
    for _ in range(_MOST_ROUNDS):
        beyond = rows.paired & (metrics.difference > bound)
        open_ = np.flatnonzero(made & beyond & same_dtype)
        if not len(open_):
            break
        accepted = np.where(beyond, 0.0, error)
        entered = _largest_by_call(rows, inputs, accepted)
        before = np.where(
            backward, _largest_before(rows, backward, accepted), _largest_before(rows, within, accepted)
        )
        allowed = np.where(forward & ~unshown, entered[rows.target.call], before)[open_]
        allowed = GAIN * allowed * scale[open_]
        explained = metrics.difference[open_] <= allowed
        if not explained.any():
            break
        bound[open_[explained]] = allowed[explained]
        bound = np.fmax(bound, bound[first])
    return bound


def first_seen(rows: Rows) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """For each row the first row of the same two contents; itself where a side has none."""
    width = int(rows.reference.summary.max(initial=0)) + 2
    both = (rows.target.summary >= 0) & (rows.reference.summary >= 0)
    mine, theirs = (_content(half) for half in (rows.target, rows.reference))
    key = np.where(both, mine * width + theirs, -1 - np.arange(len(rows)))
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    return first[inverse.reshape(-1)]


def _content(half: Half) -> Codes:
    """The first summary of the same digest and dtype, else of the same statistics: a trace read from
    elsewhere repeats them."""
    table = half.tables.summaries
    if not table.height:
        return half.summary
    numbered = table.select("digest", "dtype", *_TOLD, pl.int_range(pl.len(), dtype=pl.Int64).alias("number"))
    same_bits = pl.col("number").min().over("digest", "dtype")
    known = pl.when(pl.col("digest").is_not_null()).then(same_bits).otherwise("number")
    if numbered["digest"].null_count():
        alike = pl.col("number").min().over("digest", "dtype", *_TOLD)
        known = (
            pl.when(pl.col("digest").is_null() & pl.col("l2_norm").is_not_null()).then(alike).otherwise(known)
        )
    codes = numbered.select(known.alias("first"))["first"].to_numpy()
    return np.where(half.summary >= 0, codes[np.maximum(half.summary, 0)], -1)


def _largest_by_call(rows: Rows, chosen: Bools, values: Floats) -> Floats:
    largest = np.zeros(rows.match.target.num_calls + 1)
    np.maximum.at(largest, rows.target.call[chosen], values[chosen])
    return largest


def _largest_before(rows: Rows, chosen: Bools, values: Floats) -> Floats:
    """For each chosen row the largest value among chosen rows before it inside the same module call; else
    0."""
    at = np.flatnonzero(chosen)
    frame = pl.DataFrame({"parent": rows.of_call("parent")[at], "value": values[at]})
    before = frame.select(pl.col("value").cum_max().shift(1).over("parent").fill_null(0.0))["value"]
    out = np.zeros(len(rows))
    out[at] = before.to_numpy()
    return out
