"""The screen of a monitored run: its scalars, its weights, outputs and routers, its alarms."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.live import Live

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
from trueup.monitoring.rollouts import mismatch_lines
from trueup.reporting.document import (
    Block,
    Cell,
    Column,
    Document,
    Look,
    Mark,
    Paragraph,
    Row,
    Section,
    Span,
    Table,
    Tone,
    Trend,
)
from trueup.reporting.formatting import count, number
from trueup.reporting.render import show
from trueup.reporting.render.terminal import screen
from trueup.store.series import ColumnSeries
from trueup.types.arrays import Floats

_TREND = 128
"""rows of series that a trend is drawn from"""
_ALARMS = 8
_RATE = 32
"""steps that the speed is measured over"""
_SCALARS = {
    "loss": "loss",
    "grad_norm": "gradient norm",
    "learning_rate": "learning rate",
    "loss_scale": "loss scale",
    "update_ratio": "update / weight",
    "weight_norm": "weight norm",
    "step_seconds": "seconds per step",
}
_MISMATCH = {
    "k3": "rollout mismatch, k3",
    "ess_token": "effective sample size",
    "max_abs_diff": "largest log-prob difference",
}
_SHARES = ("unchanged", "zeros", "dead units", "without tokens")
_RAISED, _QUIET = 1, 0
Last = Mapping[str, float]
"""name -> last value"""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What of a run is shown."""

    names: str = ""
    """only weights, outputs and routers with this in their name"""
    rows: int = 10
    """of each table"""


def monitor_report(run: MonitoredRun, view: View) -> Document:
    """The run as it is now."""
    alarms = merged_alarms(run.alarms())
    facts = [
        f"rank {run.rank}",
        f"step {run.lines[-1]['step']:,}" if run.lines else "waiting for the first step",
        *_rate(run),
        count(len(alarms), "alarm") if alarms else "no alarm",
    ]
    blocks: list[Block] = [_scalars(run)]
    tables = [table for table in (_weights(run, view), _outputs(run, view), _routers(run, view)) if table]
    blocks += tables
    if view.names and not tables:
        words = f"no measured name contains {view.names!r}"
        blocks.append(Paragraph(line=Span(words, tone=Tone.WARN)))
    if alarms:
        blocks.append(Section(title="Alarms", blocks=tuple(_alarms(alarms))))
    return Document(
        title=f"Monitor: {run.root}",
        mark=Mark("✗", "alarm", Tone.BAD) if alarms else Mark("✓", "no alarm", Tone.GOOD),
        headline=f"{run.root}  {' · '.join(facts)}",
        blocks=tuple(blocks),
    )


def measured_names(run: MonitoredRun) -> list[str]:
    """The weights, outputs and routers that a run has measured so far."""
    kinds = ((measures.GRADIENT, L2_NORM), (measures.WEIGHT, L2_NORM), (measures.ACTIVATION, L2_NORM))
    found: dict[str, None] = {}
    for kind, column in (*kinds, (measures.ROUTER, IMBALANCE)):
        series = run.series(kind, column, last=1)
        found |= {} if series is None else dict.fromkeys(series.names)
    return list(found)


def print_run(run: MonitoredRun, console: Console, view: View) -> int:
    """Print it once; the exit status."""
    show(monitor_report(run, view), console)
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
                live.update(screen(monitor_report(run, view), width=console.width), refresh=True)
                wait(every)
    except KeyboardInterrupt:
        pass
    return print_run(run, console, view)


def status_of(run: MonitoredRun) -> int:
    """1 where there was an alarm."""
    return _RAISED if run.alarms() else _QUIET


def _rate(run: MonitoredRun) -> list[str]:
    times = run.numbers("time")[-_RATE:]
    spent = times[-1] - times[0] if len(times) > 1 else 0.0
    return [f"{number((len(times) - 1) / spent)} steps/s"] if spent > 0 else []


def _scalars(run: MonitoredRun) -> Table:
    rows = []
    for name, words in _SCALARS.items():
        values = run.numbers(name, noted=True)
        if len(values):
            rows.append(_trend(words, values))
    lines = mismatch_lines(run.root)[-_TREND:]
    rows += [
        _trend(words, np.array([line[name] for line in lines])) for name, words in _MISMATCH.items() if lines
    ]
    columns = (
        Column(),
        Column(title="now", show=lambda value: number(value, digits=4)),
        Column(title="trend", width=40, grow=True),
        Column(title="range"),
    )
    return Table(columns=columns, rows=tuple(rows))


def _trend(words: str, values: Floats) -> Row:
    known = values[np.isfinite(values)]
    tone = Tone.PLAIN if np.isfinite(values[-1]) else Tone.BAD
    span = f"{number(known.min())} to {number(known.max())}" if len(known) else ""
    now = Cell(value=float(values[-1]), tone=tone)
    return Row(cells=(Span(words, Look.QUIET), now, Trend(values), Span(span, Look.QUIET)))


def _weights(run: MonitoredRun, view: View) -> Table | None:
    gradient = run.series(measures.GRADIENT, L2_NORM, last=_TREND)
    weight = run.series(measures.WEIGHT, L2_NORM, last=1)
    columns = {
        "|gradient|": _last(gradient),
        "update/weight": _last(run.series(measures.UPDATE, RATIO, last=1)),
        "|weight|": _last(weight),
        "max |gradient|": _last(run.series(measures.GRADIENT, LARGEST, last=1)),
        "unchanged": _last(run.series(measures.UPDATE, ZERO_SHARE, last=1)),
        "|m|": _last(run.series(measures.MOMENTS[0], L2_NORM, last=_TREND), seldom=True),
        "|v|": _last(run.series(measures.MOMENTS[1], L2_NORM, last=_TREND), seldom=True),
    }
    return _table("weight", gradient or weight, gradient, columns, view)


def _outputs(run: MonitoredRun, view: View) -> Table | None:
    norm = run.series(measures.ACTIVATION, L2_NORM, last=_TREND)
    columns = {
        "|output|": _last(norm),
        "max |output|": _last(run.series(measures.ACTIVATION, LARGEST, last=1)),
        "dead units": _last(run.series(measures.UNITS, DEAD_SHARE, last=1)),
        "zeros": _last(run.series(measures.ACTIVATION, ZERO_SHARE, last=1)),
        "mean": _last(run.series(measures.ACTIVATION, MEAN, last=1)),
    }
    return _table("output of", norm, norm, columns, view)


def _routers(run: MonitoredRun, view: View) -> Table | None:
    load = run.series(measures.ROUTER, IMBALANCE, last=_TREND)
    columns = {
        "max load / mean": _last(load),
        "without tokens": _last(run.series(measures.ROUTER, STARVED_SHARE, last=1)),
    }
    return _table("router", load, load, columns, view)


def _table(
    title: str,
    shown: ColumnSeries | None,
    trend: ColumnSeries | None,
    columns: Mapping[str, Last],
    view: View,
) -> Table | None:
    """Largest of the first column first, only columns that were measured; None without a name to show."""
    names = [] if shown is None else [name for name in shown.names if view.names in name]
    measured = {word: values for word, values in columns.items() if values}
    if not names:
        return None
    first = next(iter(measured.values()), {})
    names.sort(key=lambda name: -np.nan_to_num(first.get(name, np.nan), nan=np.inf))
    at = {name: i for i, name in enumerate(trend.names)} if trend is not None else {}
    rows = []
    for name in names:
        drawn = Trend(trend.values[:, at[name]].astype(np.float64)) if trend and name in at else ""
        cells = [_cell(word, values.get(name)) for word, values in measured.items()]
        rows.append(Row(cells=(name, *cells, drawn)))
    heads = (Column(title=title, fit=True), *(_column(word) for word in measured), Column(width=12))
    return Table(columns=heads, rows=tuple(rows), limit=view.rows)


def _column(word: str) -> Column:
    return Column(title=word, show=_share if word in _SHARES else number)


def _share(value: float | None) -> str:
    return "–" if value is None else "0" if value == 0 else f"{100 * value:.3g} %"


def _cell(word: str, value: float | None) -> Cell:
    if value is None:
        return Cell(value=None, tone=Tone.QUIET)
    if word in _SHARES:
        return Cell(value=value, tone=Tone.QUIET if value == 0 else Tone.WARN)
    return Cell(value=value, tone=Tone.PLAIN if np.isfinite(value) else Tone.BAD)


def _last(series: ColumnSeries | None, *, seldom: bool = False) -> Last:
    """The last row; of what is not measured at every row, the last that has a number."""
    if series is None or not len(series.steps):
        return {}
    at = -1
    if seldom:
        measured = np.flatnonzero(~np.isnan(series.values).all(axis=1))
        at = int(measured[-1]) if len(measured) else -1
    return dict(zip(series.names, series.values[at].astype(float).tolist(), strict=True))


def _alarms(alarms: Sequence[Mapping[str, object]]) -> list[Block]:
    """The latest, each with what to do; the run's command is said once."""
    rows = []
    for alarm in alarms[-_ALARMS:]:
        ranks, captured = alarm["ranks"], alarm.get("captured_step")
        places = f", rank {', '.join(map(str, ranks))}" if isinstance(ranks, list) and ranks != [0] else ""
        then = "" if captured is None else f"; step {captured} captured"
        sentence = (Span(str(alarm["sentence"]), Look.STRONG), Span(places + then, Look.QUIET))
        rerun = (f"rerun: {alarm['rerun']}",) if alarm is alarms[0] and alarm.get("rerun") else ()
        step = Span(f"step {alarm['step']:,}", Look.STRONG, Tone.BAD)
        rows.append(Row(cells=(step, Cell(value=sentence, under=(str(alarm["advice"]), *rerun)))))
    table = Table(columns=(Column(title="step"), Column(title="alarm", grow=True)), rows=tuple(rows))
    earlier = len(alarms) - _ALARMS
    more = [Paragraph(line=Span(f"and {earlier} earlier", Look.QUIET))] if earlier > 0 else []
    return [table, *more]
