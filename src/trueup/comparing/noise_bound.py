"""How large a difference the reference's own measured noise explains at each site.

    ||t - r|| <= factor * NOISE_TIMES * max(noise * ||r|| * (1 + 4 / sqrt(numel)), u * scale)

- noise: the largest relative difference that reruns of the reference showed at this very site, with the
  allowance for small tensors because the largest of a few draws of a few numbers says little.
- u * scale: one rounding of the coarser dtype of both sides, of the record or of its operands where they are
  larger (tolerance.py): noise below the dtype's own rounding is luck. Sums over a channel that came before
  round by more, in an order that is the same in all reruns.
- Where everything before is bit-equal, the rounding bound holds if it is tighter: noise that has not come in
  cannot go out. Noise of plain repeats can: it arises at the site, or before the first record.
- Where the reference differs from itself by more than LOTTERY (a gradient that is 0 but for rounding, a
  routing decision near a tie) the measured size is one draw: the rounding bound holds if it is wider.
- Updates follow from the gradients that came in and are judged so (history.py); the profile can only widen
  that, and never where gradient, weight and state were bit-equal.
"""

from __future__ import annotations

import numpy as np

from trueup.comparing.metrics import Metrics
from trueup.comparing.noise import StepNoise
from trueup.comparing.rows import StepRows
from trueup.comparing.thresholds import LOTTERY, NOISE_SMALL, NOISE_TIMES
from trueup.comparing.tolerance import Bound
from trueup.numerics.dtypes import unit_roundoffs
from trueup.types.arrays import Floats

PHASES = ("forward", "loss", "backward", "param_grad", "collective")


def noise_bound(rows: StepRows, metrics: Metrics, rounding: Bound, noise: StepNoise, factor: float) -> Floats:
    """The bound of every row: measured where there is a measurement, else that of rounding."""
    measured = measured_size(rows, metrics, noise)
    floor = np.fmax(_own_roundoff(rows), rounding.unvaried) * rounding.scale
    bound = factor * NOISE_TIMES * np.fmax(measured, floor)
    spontaneous = factor * NOISE_TIMES * np.nan_to_num(_as_norm(rows, metrics, noise.repeat))
    untouched = np.fmax(np.fmin(bound, rounding.absolute), spontaneous)
    bound = np.where(rounding.depth == 0, untouched, bound)
    bound = np.where(noise.size > LOTTERY, np.fmax(bound, rounding.absolute), bound)
    known = ~np.isnan(measured) & ~np.isnan(bound) & rows.phase_is(*PHASES)
    return np.where(known, bound, rounding.absolute)


def widen_updates(
    rows: StepRows, metrics: Metrics, bound: Floats, inherited: Floats, noise: StepNoise, factor: float
) -> Floats:
    """Bounds of updates, and of the weights they left, where not everything before was bit-equal."""
    open_ = rows.phase_is("optimizer", "param") & (inherited > 0)
    return np.where(open_, np.fmax(bound, factor * NOISE_TIMES * measured_size(rows, metrics, noise)), bound)


def measured_size(rows: StepRows, metrics: Metrics, noise: StepNoise) -> Floats:
    """Noise as a norm, with the allowance for small tensors; NaN where none was measured."""
    return _as_norm(rows, metrics, noise.size)


def _as_norm(rows: StepRows, metrics: Metrics, relative: Floats) -> Floats:
    numel = np.maximum(np.nan_to_num(rows.reference.numel, nan=1.0), 1.0)
    with np.errstate(invalid="ignore"):  # infinite noise of a tensor that is 0
        return np.asarray(relative * metrics.norm * (1.0 + NOISE_SMALL / np.sqrt(numel)))


def floor_of_rows(rows: StepRows, noise: StepNoise | None) -> Floats:
    """Relative difference below which nothing is said: measured noise, never less than one rounding."""
    own = _own_roundoff(rows)
    return own if noise is None else np.fmax(own, noise.size)


def _own_roundoff(rows: StepRows) -> Floats:
    table = unit_roundoffs(rows.match.words.dtype)
    return np.fmax(table[rows.target.dtype], table[rows.reference.dtype])
