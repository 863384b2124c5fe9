"""The screen of a run that is watched: its numbers, its weights, its alarms."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from trueup.adapters import measures
from trueup.monitoring.reader import MonitoredRun, merged_alarms
from trueup.monitoring.readings import (
    DEAD_SHARE,
    IMBALANCE,
    L2_NORM,
    LARGEST,
    MEAN,
    RATIO,
    STARVED_SHARE,
    ZERO_SHARE,
)
from trueup.reporting.formatting import count, elide, number, plain
from trueup.store.series import Series

Floats = NDArray[np.float64]
_BARS = "▁▂▃▄▅▆▇█"
_TREND = 128
"""rows of series that a trend is drawn from"""
_ALARMS = 8
_NUMBERS = {
    "loss": "loss",
    "grad_norm": "gradient norm",
    "learning_rate": "learning rate",
    "loss_scale": "loss scale",
    "update_ratio": "update / weight",
    "weight_norm": "weight norm",
    "step_seconds": "seconds a step",
}
_CELL, _DRAWN, _NAME = 8, 12, 20
"""characters of a number, of a weight's trend, and at least of its name"""
_RAISED = 1
_QUIET = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What of a run is shown."""

    names: str = ""
    """only weights, outputs and routers with this in their name"""
    rows: int = 10
    """of each table"""


def screen(run: MonitoredRun, *, width: int, view: View) -> RenderableType:
    """The whole screen."""
    width = max(60, min(width, 140))
    alarms = merged_alarms(run.alarms())
    parts: list[RenderableType] = [Text(""), _headline(run, alarms), Text(""), _numbers(run, width)]
    made = (_weights(run, view, width), _outputs(run, view, width), _routers(run, view, width))
    tables = [table for table in made if table is not None]
    for table in tables:
        parts += [Text(""), table]
    if view.names and not tables:
        parts += [
            Text(""),
            Text(f"   nothing measured has {plain(view.names)!r} in its name", "yellow"),
        ]
    if alarms:
        parts += [Text(""), _alarms(alarms)]
    return Group(*parts, Text(""))


def print_run(run: MonitoredRun, console: Console, view: View) -> int:
    """Print it once; the exit status."""
    console.print(screen(run, width=console.width, view=view))
    return status_of(run)


def watch(
    run: MonitoredRun,
    console: Console,
    view: View,
    *,
    every: float,
    wait: Callable[[float], None] = time.sleep,
) -> int:
    """Draw the run in place until interrupted; the exit status."""
    try:
        with Live(console=console, auto_refresh=False, screen=True) as live:
            while True:
                run.update()
                live.update(screen(run, width=console.width, view=view), refresh=True)
                wait(every)
    except KeyboardInterrupt:
        pass
    return print_run(run, console, view)


def status_of(run: MonitoredRun) -> int:
    """1 where there was an alarm."""
    return _RAISED if run.alarms() else _QUIET


def _headline(run: MonitoredRun, alarms: list[dict[str, Any]]) -> Text:
    glyph, colour = ("✗", "red") if alarms else ("✓", "green")
    said = count(len(alarms), "alarm") if alarms else "no alarm"
    steps = f"step {run.lines[-1]['step']:,}" if run.lines else "waiting for the first step"
    facts = [f"rank {run.rank}", steps, *_rate(run)]
    return Text.assemble(
        (f" {glyph} ", f"bold {colour}"),
        (plain(run.root), "bold"),
        (f"  {' · '.join(facts)} · ", "dim"),
        (said, f"bold {colour}" if alarms else "dim"),
    )


def _rate(run: MonitoredRun) -> list[str]:
    times = run.numbers("time")[-32:]
    spent = times[-1] - times[0] if len(times) > 1 else 0.0
    return [f"{number((len(times) - 1) / spent)} steps/s"] if spent > 0 else []


def _numbers(run: MonitoredRun, width: int) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=3 + max(map(len, _NUMBERS.values())), style="dim", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(style="dim", no_wrap=True, overflow="ellipsis")
    for name, said in _NUMBERS.items():
        values = run.numbers(name, noted=True)
        known = values[np.isfinite(values)]
        if not len(values):
            continue
        now = Text(number(values[-1], digits=4), style="" if np.isfinite(values[-1]) else "bold red")
        span = f"{number(known.min())} to {number(known.max())}" if len(known) else ""
        grid.add_row(f"   {said}", now, bars(values, max(16, min(48, width - 52))), span)
    return grid


def bars(values: Floats, width: int) -> Text:
    """Values in order as one row of bars; an exclamation mark where one is not finite."""
    if not len(values):
        return Text("")
    pieces = np.array_split(values, min(width, len(values)))
    bad = [not np.isfinite(piece).all() for piece in pieces]
    means = [
        float(np.mean(piece[np.isfinite(piece)])) if np.isfinite(piece).any() else 0.0 for piece in pieces
    ]
    known = [mean for mean, piece in zip(means, pieces, strict=True) if np.isfinite(piece).any()]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    room = (high - low) or 1.0
    text = Text()
    for mean, wrong in zip(means, bad, strict=True):
        height = round((mean - low) / room * (len(_BARS) - 1)) if high > low else 0
        text.append("!" if wrong else _BARS[height], style="bold red" if wrong else "cyan")
    return text


def _weights(run: MonitoredRun, view: View, width: int) -> Table | None:
    gradient = run.series(measures.GRADIENT, L2_NORM, last=_TREND)
    weight = run.series(measures.WEIGHT, L2_NORM, last=1)
    shown = gradient or weight
    if shown is None:
        return None
    columns = {
        "|gradient|": _last(gradient),
        "update/weight": _last(run.series(measures.UPDATE, RATIO, last=1)),
        "|weight|": _last(weight),
        "largest": _last(run.series(measures.GRADIENT, LARGEST, last=1)),
        "unchanged": _last(run.series(measures.UPDATE, ZERO_SHARE, last=1)),
        "|m|": _last(run.series(measures.MOMENTS[0], L2_NORM, last=_TREND), seldom=True),
        "|v|": _last(run.series(measures.MOMENTS[1], L2_NORM, last=_TREND), seldom=True),
    }
    return _table("weight", shown, gradient, columns, view, width)


def _outputs(run: MonitoredRun, view: View, width: int) -> Table | None:
    norm = run.series(measures.ACTIVATION, L2_NORM, last=_TREND)
    if norm is None:
        return None
    columns = {
        "|output|": _last(norm),
        "largest": _last(run.series(measures.ACTIVATION, LARGEST, last=1)),
        "dead units": _last(run.series(measures.UNITS, DEAD_SHARE, last=1)),
        "zeros": _last(run.series(measures.ACTIVATION, ZERO_SHARE, last=1)),
        "mean": _last(run.series(measures.ACTIVATION, MEAN, last=1)),
    }
    return _table("output of", norm, norm, columns, view, width)


def _routers(run: MonitoredRun, view: View, width: int) -> Table | None:
    load = run.series(measures.ROUTER, IMBALANCE, last=_TREND)
    if load is None:
        return None
    columns = {
        "largest load / mean": _last(load),
        "without tokens": _last(run.series(measures.ROUTER, STARVED_SHARE, last=1)),
    }
    return _table("router", load, load, columns, view, width)


_SHARES = ("unchanged", "zeros", "dead units", "without tokens")


def _table(
    title: str,
    shown: Series,
    trend: Series | None,
    columns: dict[str, dict[str, float]],
    view: View,
    width: int,
) -> Table | None:
    """Largest of the first column first; columns nobody measured are left out, and the last that have no
    room. None where no name is wanted."""
    columns = {name: values for name, values in columns.items() if values}
    first = next(iter(columns.values()), {})
    names = [name for name in shown.names if view.names in name]
    if not names:
        return None
    names.sort(key=lambda name: -np.nan_to_num(first.get(name, np.nan), nan=np.inf))
    grid = Table.grid(padding=(0, 2, 0, 0))
    room = width - 3 - 2 - _DRAWN - sum(map(_taken, columns))
    while room < _NAME and len(columns) > 1:
        room += _taken(columns.popitem()[0])
    room = max(_NAME, room)
    grid.add_column(no_wrap=True, min_width=min(room, 24))
    for _ in columns:
        grid.add_column(justify="right", no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_row(
        *[Text(f"   {title}" if not i else word, style="dim") for i, word in enumerate(["", *columns])]
    )
    place = {name: i for i, name in enumerate(trend.names)} if trend is not None else {}
    for name in names[: view.rows]:
        cells = [_cell(word, values.get(name)) for word, values in columns.items()]
        drawn = (
            bars(trend.values[:, place[name]].astype(np.float64), _DRAWN)
            if trend and name in place
            else Text("")
        )
        grid.add_row(Text("   " + elide(plain(name), room)), *cells, drawn)
    more = len(names) - view.rows
    if more > 0:
        grid.add_row(Text(f"   and {count(more)} more", style="dim"))
    return grid


def _taken(word: str) -> int:
    return max(len(word), _CELL) + 2


def _cell(word: str, value: float | None) -> Text:
    if value is None:
        return Text("–", style="dim")
    if word in _SHARES:
        return Text("0" if value == 0 else f"{100 * value:.3g} %", style="dim" if value == 0 else "yellow")
    return Text(number(value), style="" if np.isfinite(value) else "bold red")


def _last(series: Series | None, *, seldom: bool = False) -> dict[str, float]:
    """The last row; of what is not measured at every row, the last that has a number."""
    if series is None or not len(series.steps):
        return {}
    at = -1
    if seldom:
        measured = np.flatnonzero(~np.isnan(series.values).all(axis=1))
        at = int(measured[-1]) if len(measured) else -1
    return dict(zip(series.names, series.values[at].astype(float).tolist(), strict=True))


def _alarms(alarms: list[dict[str, Any]]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for alarm in alarms[-_ALARMS:]:
        rerun = f"\nagain: {plain(alarm['rerun'])}" if alarm is alarms[0] and alarm.get("rerun") else ""
        ranks = f", rank {', '.join(map(str, alarm['ranks']))}" if alarm["ranks"] != [0] else ""
        captured = alarm.get("captured_step")
        then = "" if captured is None else f"; step {captured} captured"
        grid.add_row(
            Text(f"   step {alarm['step']:,}", style="bold red"),
            Text.assemble(
                (plain(alarm["sentence"]), "bold"),
                (f"{ranks}{then}\n", "dim"),
                (plain(alarm["advice"]) + rerun, "dim"),
            ),
        )
    earlier = len(alarms) - _ALARMS
    if earlier > 0:
        grid.add_row(Text(""), Text(f"and {earlier} earlier", style="dim"))
    return grid
