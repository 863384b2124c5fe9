"""``trueup inspect``: what a trace holds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trueup.errors import ConfigError, TraceError

_WIDTH_IN_A_FILE = 240

if TYPE_CHECKING:
    from trueup.store import TraceSource


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A trace, or a dump of msprobe or MindSpore.")],
    find: Annotated[str | None, typer.Option(help="Only sites with this text in name, type or slot.")] = None,
    step: Annotated[int | None, typer.Option(min=0, help="Sites of this step.")] = None,
    rank: Annotated[int | None, typer.Option(min=0, help="Only this rank.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many rows.")] = 60,
) -> None:
    """List the steps, ranks, sites and sizes of a trace; with --find or --step, its records."""
    from rich.console import Console

    from trueup.cli import inspect_tables as tables
    from trueup.importers import open_trace

    if find is not None and not find.strip():
        raise ConfigError("--find is empty; give a part of a name, such as layers.0 or gelu")
    trace = open_trace(run)
    steps = trace.steps()
    _check_is_there(trace, steps, step, rank)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH_IN_A_FILE)
    if find is None and step is None:
        tables.print_overview(trace, steps, console, rank=rank)
        return
    if not steps:
        raise TraceError(f"{run} has no whole step: there is nothing to list or to find")
    chosen = next(iter(steps)) if step is None else step
    seen = tables.print_records(
        trace, console, step=chosen, rank=steps[chosen][0] if rank is None else rank, find=find, limit=limit
    )
    if not seen:
        raise TraceError(f"{run}: no site of step {chosen} has {find!r} in its name, type or slot")


def _check_is_there(
    trace: TraceSource, steps: dict[int, list[int]], step: int | None, rank: int | None
) -> None:
    from trueup.capture.launch.outcome import describe

    if step is not None and step not in steps:
        there = describe(list(steps), "step") if steps else "no whole step"
        raise TraceError(f"{trace.path} has no step {step}; it has {there}")
    ranks = sorted({r for there in (steps.values() if step is None else [steps[step]]) for r in there})
    if rank is not None and rank not in ranks:
        there = describe(ranks, "rank") if ranks else "no rank with a whole step"
        raise TraceError(f"{trace.path} has no rank {rank}; it has {there}")
