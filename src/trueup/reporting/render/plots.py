"""Plots of a document on a page: as data for plotly, or as SVG text in the colours of the style sheet."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray

from trueup.reporting.document import Plot
from trueup.reporting.formatting import number, plain
from trueup.types.reason import Json

WIDTH, HEIGHT = 1100.0, 250.0
LEFT, RIGHT, TOP, BOTTOM = 74.0, 20.0, 14.0, 32.0
_TICKS = 4


def figures(plots: Sequence[Plot]) -> list[Json]:
    """What the page's script draws, six digits a number."""
    return [_figure(plot) for plot in plots]


def _figure(plot: Plot) -> Json:
    band: Json = None
    if plot.band is not None:
        x, low, high = map(_numbers, plot.band)
        band = {"x": x, "low": low, "high": high, "name": plot.band_name}
    return {
        "key": plot.key,
        "title": plot.title,
        "notes": plot.notes,
        "x_title": plot.x_title,
        "y_title": plot.y_title,
        "bars": plot.bars,
        "zero": plot.zero,
        "range": None if plot.span is None else list(plot.span),
        "band": band,
        "marks": [{"step": step, "what": what} for step, what in plot.marks],
        "lines": [
            {"name": line.name, "role": line.role, "x": _numbers(line.x), "y": _numbers(line.y)}
            for line in plot.lines
        ],
    }


def _numbers(values: NDArray[np.generic]) -> list[Json]:
    """Null where a number is missing."""
    if values.dtype.kind in "iu":
        return [int(value) for value in values]
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values.tolist()]


def svg_plot(plot: Plot) -> str:
    """The lines from zero up, with the steps that are marked."""
    last = max(float(line.x[-1]) for line in plot.lines) or 1.0
    top = max(float(np.nanmax(line.y)) for line in plot.lines) or 1.0

    def x(step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * step / last

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / (top * 1.06)

    parts = []
    for tick in range(_TICKS + 1):
        value = top * tick / _TICKS
        at = y(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(_text(LEFT - 8, at + 4, number(value), "tick", "end"))
    parts += [_text(x(s), HEIGHT - BOTTOM + 18, f"{s:,}", "tick", "middle") for s in _round_steps(int(last))]
    parts.append(_text(WIDTH - RIGHT, HEIGHT - 2, plot.x_title, "tick", "end"))
    for line in plot.lines:
        pairs = zip(line.x.tolist(), line.y.tolist(), strict=True)
        points = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in pairs)
        parts.append(f'<polyline class="series {line.role}" points="{points}"/>')
    for step, what in plot.marks:
        at = x(step)
        parts.append(f'<line class="apart" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        right = at > WIDTH * 0.7
        parts.append(_text(at + (-5 if right else 5), TOP - 3, what, "said", "end" if right else "start"))
    return svg(WIDTH, HEIGHT, "".join(parts), f"{plot.title}: {plot.y_title} over {plot.x_title}")


def svg(width: float, height: float, inside: str, label: str) -> str:
    """A drawing that scales with the page."""
    name = escape(plain(label), {'"': "&quot;"})
    box = f'viewBox="0 0 {width:g} {height:g}"'
    return f'<svg class="drawing" {box} role="img" aria-label="{name}">{inside}</svg>'


def _round_steps(last: int) -> Sequence[int]:
    size = 10 ** max(0, len(str(last)) - 1)
    every = next(step for step in (size // 5, size // 2, size, size * 2) if step and last / step <= 8)
    return range(0, last + 1, max(1, every))


def _text(x: float, y: float, words: str, style: str, anchor: str) -> str:
    return (
        f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(plain(words))}</text>'
    )
