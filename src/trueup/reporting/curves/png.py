"""The plots as one picture, for a report or a chat."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trueup._optional import require
from trueup.curves.comparison import CurveComparison
from trueup.reporting.curves.plots import curve_plots
from trueup.reporting.document import Plot, reason_text
from trueup.reporting.formatting import elide

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK, _SOFT, _GRID, _PAPER = "#191b1e", "#5a5f66", "#e2dfd8", "#ffffff"
_COLOURS = {
    "target": "#1d5fae",
    "reference": "#a3722e",
    "repeat": "#c9a66b",
    "raw": "#b9cbe2",
    "smooth": "#1d5fae",
}
_WIDTHS = {"target": 0.9, "reference": 0.9, "repeat": 0.7, "raw": 0.6, "smooth": 1.6}
_BAND, _MARK = "#4d7a70", "#b3391a"
_TONES = {"agree": "#4d7a70", "differ": "#b3391a", "undecided": "#85590a"}


def write_png(comparison: CurveComparison, path: Path) -> Path:
    """Draw every plot into ``path``, without a display.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    require("matplotlib", purpose="a PNG of the curves")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = curve_plots(comparison)
    rows = 1 + -(-max(0, len(drawn) - 1) // 2)
    figure = Figure(figsize=(12, 1.0 + 3.1 * rows), dpi=120, layout="constrained", facecolor=_PAPER)
    canvas = FigureCanvasAgg(figure)
    judgement = comparison.judgement
    figure.suptitle(
        elide(reason_text(judgement.headline), 130),
        x=0.012,
        ha="left",
        fontsize=13,
        fontweight="bold",
        color=_TONES[judgement.outcome.value],
    )
    grid = figure.add_gridspec(rows, 2)
    for index, plot in enumerate(drawn):
        row, col = (0, slice(None)) if index == 0 else (1 + (index - 1) // 2, (index - 1) % 2)
        _draw(figure.add_subplot(grid[row, col]), plot)
    canvas.print_png(path)  # ``savefig`` would draw it twice
    return path


def _draw(axes: Axes, plot: Plot) -> None:
    axes.set_title(
        plot.title + (f" ({plot.notes})" if plot.notes else ""), loc="left", fontsize=10.5, color=_INK
    )
    axes.set_xlabel(plot.x_title, fontsize=8.5, color=_SOFT)
    axes.set_ylabel(plot.y_title, fontsize=8.5, color=_SOFT)
    axes.tick_params(labelsize=8, colors=_SOFT, length=2)
    axes.grid(color=_GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_GRID)
    if plot.bars:
        line = plot.lines[0]
        axes.bar(line.x, line.y, width=np.diff(line.x)[0], color=_COLOURS["target"], linewidth=0)
        axes.axvline(0, color=_INK, linewidth=0.8)
        return
    if plot.band is not None:
        x, low, high = plot.band
        axes.fill_between(x, low, high, color=_BAND, alpha=0.14, linewidth=0, label=plot.band_name)
    if plot.zero:
        axes.axhline(0, color=_INK, linewidth=0.8)
    for line in plot.lines:
        axes.plot(
            line.x,
            line.y,
            color=_COLOURS[line.role],
            linewidth=_WIDTHS[line.role],
            alpha=0.85,
            label=elide(line.name, 44),
        )
    if plot.span is not None:
        axes.set_ylim(*plot.span)
    for step, what in plot.marks:
        axes.axvline(step, color=_MARK, linewidth=0.9, linestyle=(0, (4, 3)))
        axes.annotate(
            what, (step, 1), xycoords=("data", "axes fraction"), xytext=(4, -3), textcoords="offset points",
            va="top", fontsize=8, color=_MARK,
        )  # fmt: skip
    axes.legend(loc="best", fontsize=8, frameon=False, labelcolor=_SOFT)
