"""The plots of compared curves: what the page, the picture and the workbook draw."""

from __future__ import annotations

import numpy as np

from trueup.curves.columns import (
    BALANCING_LOSS,
    GRAD_NORM,
    LEARNING_RATE,
    LOSS,
    LOSS_SCALE,
    MTP_LOSS,
    THROUGHPUT,
    Z_LOSS,
)
from trueup.curves.comparison import CurveComparison
from trueup.curves.curve import Curve
from trueup.curves.statistics.envelope import moving_mean
from trueup.curves.thresholds import MEAN_REL
from trueup.reporting.document import Plot, Series
from trueup.reporting.formatting import plain
from trueup.types.arrays import Array, Floats

BUCKETS = 1500
"""A longer line is drawn by the smallest and largest value of this many pieces: nothing that stands out
is lost."""
_BINS = 60
MAX_ROWS = 200_000
"""steps of a workbook"""


def curve_plots(comparison: CurveComparison) -> tuple[Plot, ...]:
    """The plots people expect, of what both sides logged."""
    found: list[Plot | None] = [_both(comparison, LOSS, "Loss", "loss")]
    difference = comparison.difference(LOSS)
    if difference is not None:
        found += [
            _difference(comparison, difference),
            _relative(comparison, difference),
            _histogram(difference),
        ]
    for column, title, name in (
        (GRAD_NORM, "Global gradient norm", "gradient norm"),
        (LEARNING_RATE, "Learning rate, as logged", "learning rate"),
        (BALANCING_LOSS, "Load balancing loss", "load balancing loss"),
        (Z_LOSS, "z-loss", "z-loss"),
        (MTP_LOSS, "Loss of multi-token prediction", "loss"),
    ):
        found.append(_both(comparison, column, title, name))
    unit = {curve.units.get(THROUGHPUT, "") for curve in (comparison.target, comparison.references[0])}
    if len(unit) == 1:
        found.append(_both(comparison, THROUGHPUT, "Throughput", unit.pop() or "throughput"))
    scale = comparison.paired.target.get(LOSS_SCALE)
    if scale is not None and np.nanmax(scale) > np.nanmin(scale):
        found.append(_both(comparison, LOSS_SCALE, "Loss scale", "loss scale"))
    return tuple(plot for plot in found if plot is not None)


def _both(comparison: CurveComparison, column: str, title: str, y_title: str) -> Plot | None:
    paired = comparison.paired
    lines = []
    many = len(paired.references.sides) > 1
    for index, (curve, side) in reversed(
        list(enumerate(zip(comparison.references, paired.references.sides, strict=True)))
    ):
        values = side.get(column)
        if values is not None:
            role = "reference" if index == 0 else "repeat"
            label = "reference" if not many else f"reference {index + 1}"
            lines.append(_line(f"{label}: {_short(curve)}", role, paired.steps, values))
    values = paired.target.get(column)
    if values is not None:
        lines.append(_line(f"target: {_short(comparison.target)}", "target", paired.steps, values))
    if values is None or len(lines) < 2:
        return None
    return Plot(
        key=column,
        title=title,
        y_title=y_title,
        lines=tuple(lines),
        marks=_marks(comparison) if column == LOSS else (),
        span=_span(np.concatenate([line.y for line in lines]), tail=column in (LOSS, GRAD_NORM)),
    )


def _difference(comparison: CurveComparison, difference: Floats) -> Plot:
    steps, room = comparison.paired.steps, comparison.band
    band, name, smooth = None, "", difference
    if room is not None:
        x, half = _thin(steps, room.half_width, largest=True)
        band = x, -half, half
        name = "band of the repeats" if room.origin == "repeats" else "the standard's threshold"
        smooth = room.smoothed
    whose = "mean of the references" if len(comparison.references) > 1 else "reference"
    window = room.window if room is not None else 1
    return Plot(
        key="difference",
        title=f"Difference of the loss: target − {whose}",
        y_title="difference",
        lines=(
            _line("every step", "raw", steps, difference),
            _line(f"mean of {window} steps", "smooth", steps, smooth),
        ),
        band=band,
        band_name=name,
        marks=_marks(comparison),
        zero=True,
        span=_span(_joined(smooth, difference), band=band),
    )


def _joined(smooth: Floats, difference: Floats) -> Floats:
    """What the axis of a difference must show: the smooth line whole, of the single steps the middle 99 %."""
    known = difference[np.isfinite(difference)]
    edges = np.quantile(known, (0.005, 0.995)) if len(known) else np.zeros(2)
    return np.concatenate([smooth[np.isfinite(smooth)], edges])


def _relative(comparison: CurveComparison, difference: Floats) -> Plot | None:
    level = comparison.paired.references.centre(LOSS)
    if level is None:
        return None
    steps = comparison.paired.steps
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(level != 0, 100 * difference / np.abs(level), np.nan)
    window = comparison.band.window if comparison.band is not None else 1
    edge = np.full(2, 100 * MEAN_REL)
    smooth = moving_mean(share, window)
    room = (steps[[0, -1]], -edge, edge)
    return Plot(
        key="relative",
        title="Relative difference of the loss",
        y_title="%",
        lines=(
            _line("every step", "raw", steps, share),
            _line(f"mean of {window} steps", "smooth", steps, smooth),
        ),
        band=room,
        band_name="the standard's 1 %",
        marks=_marks(comparison),
        zero=True,
        span=_span(_joined(smooth, share), band=room),
    )


def _histogram(difference: Floats) -> Plot | None:
    known = difference[np.isfinite(difference)]
    if len(known) < 2:
        return None
    low, high = np.quantile(known, (0.001, 0.999))
    if not high > low:
        return None
    counts, edges = np.histogram(known, bins=_BINS, range=(float(low), float(high)))
    middles = (edges[1:] + edges[:-1]) / 2
    return Plot(
        key="histogram",
        title="Histogram of the differences",
        y_title="steps",
        x_title="target − reference",
        lines=(Series(name="steps", role="target", x=middles, y=counts.astype(float)),),
        bars=True,
        zero=True,
        notes="99.8 % of the steps" if len(known) > 1000 else "",
    )


def _marks(comparison: CurveComparison) -> tuple[tuple[int, str], ...]:
    found = []
    onset = comparison.evidence.onset
    if onset is not None and onset.is_sure:
        found.append((onset.step, f"diverges at {onset.step:,}"))
    found += [(restart.step, "restart") for restart in comparison.target.restarts[:3]]
    health = comparison.evidence.target_health
    if health.not_finite:
        found.append((health.not_finite[0], "not finite"))
    return tuple(found)


def _short(curve: Curve) -> str:
    return plain(curve.path.name or curve.name)


def _line(name: str, role: str, x: Array, y: Floats) -> Series:
    xs, ys = thinned(x, y)
    return Series(name=name, role=role, x=xs, y=ys)


def thinned(x: Array, y: Floats, buckets: int = BUCKETS) -> tuple[Array, Floats]:
    """Smallest and largest of each piece, where they stand; short lines as they are."""
    if len(y) <= 2 * buckets:
        return x, y
    edges = np.linspace(0, len(y), buckets + 1).astype(int)
    low = np.where(np.isfinite(y), y, np.inf)
    high = np.where(np.isfinite(y), y, -np.inf)
    keep: list[int] = []
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        keep += sorted({begin + int(low[begin:end].argmin()), begin + int(high[begin:end].argmax())})
    return x[keep], y[keep]


def _thin(x: Array, y: Floats, *, largest: bool) -> tuple[Array, Floats]:
    if len(y) <= BUCKETS:
        return x, y
    edges = np.linspace(0, len(y) - 1, BUCKETS).astype(int)
    return x[edges], np.maximum.reduceat(y, edges) if largest else y[edges]


def _span(
    values: Floats, *, tail: bool = False, band: tuple[Array, Floats, Floats] | None = None
) -> tuple[float, float] | None:
    """Low and high end of an axis that shows these values, with a little air.

    Args:
        values: what must be in sight.
        tail: the largest may be cut off where they stand far out.
        band: what is allowed around zero; it is in sight too.
    """
    known = values[np.isfinite(values)]
    if not len(known):
        return None
    low, high = float(known.min()), float(known.max())
    if tail:
        top = float(np.quantile(known, 0.999))
        high = min(high, top + 0.25 * (top - low))
    if band is not None:
        usual = float(np.median(band[2]))
        low, high = min(low, -1.2 * usual), max(high, 1.2 * usual)
    air = 0.05 * (high - low) or 0.1 * abs(high) or 1.0
    return low - air, high + air


def raw_plots(comparison: CurveComparison) -> tuple[Plot, ...]:
    """Every compared step of what both sides logged, for a workbook."""
    paired, found = comparison.paired, []
    steps = paired.steps[:MAX_ROWS]
    sides = {"target": paired.target}
    sides |= {f"reference {number}": side for number, side in enumerate(paired.references.sides, 1)}
    for column in (LOSS, GRAD_NORM, LEARNING_RATE):
        lines = [
            Series(name=f"{column} {name}", role=name.split()[0], x=steps, y=values[: len(steps)])
            for name, side in sides.items()
            if (values := side.get(column)) is not None
        ]
        words = column.replace("_", " ")
        found.append(Plot(key=column, title=words.capitalize(), y_title=words, lines=tuple(lines)))
    difference = comparison.difference(LOSS)
    if difference is not None:
        line = Series(name="difference", role="smooth", x=steps, y=difference[: len(steps)])
        title = "Loss difference: target − reference"
        found.append(Plot(key="difference", title=title, y_title="difference", lines=(line,)))
    return tuple(plot for plot in found if plot.lines)
