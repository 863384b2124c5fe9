"""Lines of a document as rich's text, and numbers in order as one row of bars."""

from __future__ import annotations

import warnings

import numpy as np
from rich.text import Text

from trueup.reporting.document import Line, Look, Span, Tone, Trend
from trueup.reporting.formatting import plain
from trueup.types.arrays import Floats

_BARS = "▁▂▃▄▅▆▇█"
COLOURS = {
    Tone.PLAIN: "",
    Tone.GOOD: "green",
    Tone.BAD: "red",
    Tone.WARN: "yellow",
    Tone.FOLLOWS: "magenta",
    Tone.QUIET: "dim",
}
_LOOKS = {
    Look.PLAIN: "",
    Look.STRONG: "bold",
    Look.QUIET: "dim",
    Look.CODE: "italic",
    Look.COMMAND: "bold cyan",
}


def styled(line: Line, base: str = "") -> Text:
    """A line as rich text."""
    pieces = line if isinstance(line, tuple) else (line,)
    text = Text(style=base)
    for piece in pieces:
        if isinstance(piece, Span):
            text.append(plain(piece.text), style=f"{_LOOKS[piece.look]} {COLOURS[piece.tone]}".strip())
        else:
            text.append(plain(piece))
    return text


def value_text(value: Line | Trend, base: str = "", width: int | None = None) -> Text:
    """A line or a row of bars, of at most ``width`` bars."""
    if isinstance(value, Trend):
        return bars(value.values, width or value.width, zero=value.zero)
    return styled(value, base)


def bars(values: Floats, width: int, *, zero: bool = False) -> Text:
    """One bar for each of ``width`` pieces, their mean; an exclamation mark where a number is not finite.

    Args:
        values: in order of time.
        width: characters; fewer where there are fewer values.
        zero: zero in the middle, missing numbers no error; else the smallest mean is the lowest bar.
    """
    if not len(values):
        return Text("")
    known = np.where(np.isfinite(values), values, np.nan)
    largest = np.abs(known[~np.isnan(known)]).max(initial=0.0)
    known = known / largest if largest > 0 else known  # bars are relative: no sum of them overflows
    pieces = np.array_split(known, min(width, len(values)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a piece without any number
        means = np.array([np.nanmean(piece) for piece in pieces])
        low, high = (float(np.nanmin(means)), float(np.nanmax(means)))
    if zero:
        high = float(np.nanmax(np.abs(means))) if np.isfinite(means).any() else 0.0
        low = -high
    text = Text()
    for mean, piece in zip(means, pieces, strict=True):
        wrong = not zero and bool(np.isnan(piece).any())
        share = 0.0 if np.isnan(mean) or not high > low else (float(mean) - low) / (high - low)
        height = min(len(_BARS) - 1, int(share * len(_BARS))) if zero else round(share * (len(_BARS) - 1))
        text.append("!" if wrong else _BARS[height], style="bold red" if wrong else "cyan")
    return text
