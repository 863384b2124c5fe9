"""Bounds raised where the difference is explained by what went in: the same contents, or an API call's own
inputs.

- The same pair of contents seen again (one call's output, the next one's input; a weight passed to a
  function) is judged as where it was first seen.
- A tensor whose making a dump does not show (msprobe records no views) may differ relatively by twice what
  was accepted before it in the same module call.
- An API call's output may differ relatively by what the product of two does, (1 + e)^2 - 1 where its inputs
  differ by e, a gradient that it sends back by what the gradient it gets does, inside a module by what any
  gradient before it in the same module call does, if those were accepted and of one dtype: raw attention
  scores cancel, softmax then forgets it; a gradient that is rounding alone has a norm that is rounding alone,
  also where the program takes it. Never across a module's boundary, so that a module's own outputs are always
  held against the rounding bound.
- A function that steps (a sign, a rounding) of inputs that agree, with the same arguments, may differ by a
  step in every element: which side of a step a number lies on rounding decides, and of a gradient that is
  rounding alone every sign. What it makes is a function of what it was given, and that was compared.
- A part of a tensor (fewer elements, none outside its range) may hold all of its difference: that of a fused
  bias is the key's alone, whose gradient is zero in exact arithmetic. Sketches know both norms, but that of a
  difference in few channels badly; so what earlier updates explain of the whole counts too.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from trueup.comparing.judgement import Judgement
from trueup.comparing.metrics import Metrics
from trueup.comparing.rows import StepRows
from trueup.comparing.rules.rule import Rule, StepContext
from trueup.comparing.thresholds import INPUTS_GAIN, KNOWN_NORM
from trueup.types.arrays import Bools, Floats

_MOST_ROUNDS = 200


def _raised(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    bounds = judgement.bounds
    bound = _bound(context.rows, metrics, bounds.total, bounds.inherited, context)
    return replace(judgement, bounds=replace(bounds, total=bound))


def _bound(
    rows: StepRows, metrics: Metrics, bound: Floats, inherited: Floats, context: StepContext
) -> Floats:
    """The bound of every row, never lower than given."""
    first, scale = context.inflow.first, context.rounding.scale
    bound = np.fmax(bound, bound[first])
    function, owned = rows.kind_is("api") & rows.paired, rows.of_call("parent") >= 0
    inside = function & owned & rows.phase_is("backward")
    sent = function & ~owned & rows.phase_is("backward")
    forward = function & ~inside & ~sent & (rows.phase_is("forward") | ~owned)
    given_back, sent_back = sent & rows.slot_starts("output"), sent & rows.slot_starts("input")
    inputs = forward & rows.slot_starts("input")
    partial = bool(rows.target.tables.gaps or rows.reference.tables.gaps)
    unshown = inputs & (first == np.arange(len(rows))) & partial
    made = (forward & rows.slot_starts("output")) | inside | sent_back | unshown
    within = rows.phase_is("forward") & rows.paired & (rows.of_call("parent") >= 0)
    same_dtype = rows.target.dtype == rows.reference.dtype
    error = np.where(same_dtype & np.isfinite(metrics.rel_l2), metrics.rel_l2, 0.0)
    whole = KNOWN_NORM**2 * np.where(same_dtype & np.isfinite(metrics.difference), metrics.difference, 0.0)
    of_content = np.zeros(len(rows))
    np.fmax.at(of_content, first, inherited)
    whole = np.fmax(whole, of_content[first])
    parts, steps = _parts(rows, forward), _steps(rows, forward)
    for _ in range(_MOST_ROUNDS):
        beyond = rows.paired & (metrics.difference > bound)
        open_ = np.flatnonzero(made & beyond & same_dtype)
        if not len(open_):
            break
        accepted = np.where(beyond, 0.0, error)
        entered = _largest_by_call(rows, inputs | given_back, accepted)
        before = np.where(
            inside, _largest_before(rows, inside, accepted), _largest_before(rows, within, accepted)
        )
        of_call = (forward & ~unshown) | sent_back
        allowed = np.where(of_call, entered[rows.target.call], before)[open_]
        allowed = np.expm1(INPUTS_GAIN * np.log1p(allowed)) * scale[open_]
        held = _largest_by_call(rows, inputs, np.where(beyond, 0.0, whole))[rows.target.call[open_]]
        allowed = np.where(parts[open_], np.maximum(allowed, held), allowed)
        allowed = np.where(held > 0, np.maximum(allowed, steps[open_]), allowed)
        explained = metrics.difference[open_] <= allowed
        if not explained.any():
            break
        bound[open_[explained]] = allowed[explained]
        bound = np.fmax(bound, bound[first])
    return bound


_STEPS = {"sign": 2.0, "sgn": 2.0, "round": 1.0, "floor": 1.0, "ceil": 1.0, "trunc": 1.0, "fix": 1.0}
"""functions that are constant but for steps, and how high these are"""


def _steps(rows: StepRows, forward: Bools) -> Floats:
    """The distance of outputs that lie one step apart in every element, of functions that step and have the
    same arguments on both sides; 0 of all others."""
    words = [word.rpartition(".")[2].strip("_") for word in rows.match.words.name]
    heights = np.array([*(_STEPS.get(word, 0.0) for word in words), 0.0])[rows.of_call("name")]
    out = np.zeros(len(rows))
    at = np.flatnonzero(forward & rows.slot_starts("output") & (heights > 0))
    if not len(at):
        return out
    given = [
        half.tables.calls["arguments"].gather(half.call[at]).to_list()
        for half in (rows.target, rows.reference)
    ]
    same = np.array([one == other for one, other in zip(*given, strict=True)], bool)
    out[at] = np.where(same, heights[at] * np.sqrt(np.nan_to_num(rows.reference.numel[at])), 0.0)
    return out


def _parts(rows: StepRows, forward: Bools) -> Bools:
    """Outputs of functions that hold fewer elements than the largest input, none outside its range."""
    held, call = rows.reference.statistics, rows.reference.call
    inputs, outputs = (forward & rows.slot_starts(word) for word in ("input", "output"))
    at = np.flatnonzero(inputs & ~np.isnan(rows.reference.numel))
    at = at[np.argsort(rows.reference.numel[at], kind="stable")]
    largest = np.full(rows.match.reference.num_calls + 1, -1)
    largest[call[at]] = at
    of = largest[call]
    inside = (held["minimum"] >= held["minimum"][of]) & (held["maximum"] <= held["maximum"][of])
    fewer = (rows.reference.numel < rows.reference.numel[of]) & (held["l2_norm"] <= held["l2_norm"][of])
    return np.asarray(outputs & (of >= 0) & inside & fewer)


def _largest_by_call(rows: StepRows, chosen: Bools, values: Floats) -> Floats:
    largest = np.zeros(rows.match.target.num_calls + 1)
    np.maximum.at(largest, rows.target.call[chosen], values[chosen])
    return largest


def _largest_before(rows: StepRows, chosen: Bools, values: Floats) -> Floats:
    """For each chosen row the largest value among chosen rows before it inside the same module call; else
    0."""
    at = np.flatnonzero(chosen)
    frame = pl.DataFrame({"parent": rows.of_call("parent")[at], "value": values[at]})
    before = frame.select(pl.col("value").cum_max().shift(1).over("parent").fill_null(0.0))["value"]
    out = np.zeros(len(rows))
    out[at] = before.to_numpy()
    return out


RULE = Rule(
    apply=_raised,
    place="last of the bounds: what entered a call explains its output only within the bound it had itself",
    note="0002-tolerance",
)
