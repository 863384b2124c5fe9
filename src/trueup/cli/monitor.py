"""``trueup monitor``: a run that is watched, while it trains or afterwards."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from trueup.cli.printing import note_line
from trueup.errors import ConfigError


def _without_nan(value: Any) -> Any:
    """Numbers that JSON does not know, as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _without_nan(one) for key, one in value.items()}
    return [_without_nan(one) for one in value] if isinstance(value, list) else value


def command(
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="Folder of trueup capture --monitor.")
    ] = None,
    rank: Annotated[int | None, typer.Option(help="Which rank. Default: the first.")] = None,
    names: Annotated[
        str, typer.Option("--list", metavar="NAME", help="Only what has this in its name.")
    ] = "",
    rows: Annotated[int, typer.Option(min=1, help="Rows of each table.")] = 10,
    once: Annotated[bool, typer.Option("--once", help="Print it as it is now, and end.")] = False,
    every: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="How often the screen is drawn.")
    ] = 2.0,
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write every number as TensorBoard events, and end.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The last numbers and all alarms on standard output, and end.")
    ] = False,
) -> None:
    """Show a monitored run: loss, norms, weights, alarms; live until Ctrl-C.

    Where the output is no terminal it is printed once. Ends with 1 where there
    was an alarm, with 0 where there was none.
    """
    from trueup.monitoring.reader import open_run, state_of

    if run is None:
        raise ConfigError(
            "RUN is missing: trueup monitor RUN, the folder given to trueup capture --monitor -o"
        )
    watched = open_run(run, rank=rank)
    if tensorboard is not None:
        from trueup.monitoring.tensorboard import export_tensorboard

        if tensorboard.is_file():
            raise ConfigError(f"--tensorboard {tensorboard} is a file; give a folder")
        path = export_tensorboard(watched, tensorboard)
        note_line(f"{len(watched.lines):,} steps in {path}; next: tensorboard --logdir {tensorboard}")
        return
    if as_json:
        state = state_of(watched)
        print(json.dumps(_without_nan(state), ensure_ascii=False, allow_nan=False, indent=2))
        raise typer.Exit(1 if state["alarms"] else 0)
    from rich.console import Console

    from trueup.reporting.monitor import View, print_run, watch

    console, view = Console(highlight=False), View(names=names, rows=rows)
    if once or not console.is_terminal:
        raise typer.Exit(print_run(watched, console, view))
    raise typer.Exit(watch(watched, console, view, every=every))
