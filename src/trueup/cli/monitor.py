"""``trueup monitor``: a monitored run, while it trains or afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from trueup.cli.printing import note_line, print_json
from trueup.errors import ConfigError
from trueup.types.option import Option

if TYPE_CHECKING:
    from trueup.monitoring.reader import MonitoredRun


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorView:
    """Which run, and what of it."""

    run: Annotated[Path, Option("Folder of trueup capture --monitor.", argument="RUN")]
    rank: Annotated[int | None, Option("Rank to show.", "--rank", default="the first")] = None
    names: Annotated[
        str,
        Option(
            "Only names that contain this.",
            "--list NAME",
            no_effect="with --json or --tensorboard",
            idle_with="as_json tensorboard",
        ),
    ] = ""
    rows: Annotated[
        int,
        Option(
            "Rows of each table.",
            "--rows",
            least=1,
            no_effect="with --json or --tensorboard",
            idle_with="as_json tensorboard",
        ),
    ] = 10
    once: Annotated[bool, Option("Print the current state, and exit.", "--once")] = False
    every: Annotated[
        float,
        Option(
            "How often the screen is drawn.",
            "--every SECONDS",
            unit="seconds",
            least=0.1,
            no_effect="with --once, --json or --tensorboard",
            idle_with="once as_json tensorboard",
        ),
    ] = 2.0
    tensorboard: Annotated[
        Path | None,
        Option(
            "Write every number as TensorBoard events, and exit.", "--tensorboard DIR", excludes="as_json"
        ),
    ] = None
    as_json: Annotated[
        bool, Option("Print the last numbers and all alarms as one JSON document, and exit.", "--json")
    ] = False


def command(options: MonitorView) -> int:
    """Show a monitored run: loss, norms, weights, alarms; live until Ctrl-C.

    If the output is not a terminal it is printed once. Exit status: 1 if there was an alarm, 0 if there was
    none.
    """
    from trueup.monitoring.reader import open_run, state_of

    run = open_run(options.run, rank=options.rank)
    if options.tensorboard is not None:
        from trueup.monitoring.tensorboard import export_tensorboard

        folder = options.tensorboard
        if folder.is_file():
            raise ConfigError(f"--tensorboard: expected a folder (got the file {folder})")
        path = export_tensorboard(run, folder)
        note_line(f"{len(run.lines):,} steps in {path}; next: tensorboard --logdir {folder}")
        return 0
    if options.as_json:
        state = state_of(run)
        print_json(state, non_finite="text")
        return 1 if state["alarms"] else 0
    from rich.console import Console

    from trueup.reporting.monitor import View, print_run, watch

    _check_names(run, options.names)
    console, view = Console(highlight=False), View(names=options.names, rows=options.rows)
    if options.once or not console.is_terminal:
        return print_run(run, console, view)
    return watch(run, console, view, every=options.every)


def _check_names(run: MonitoredRun, part: str) -> None:
    """Raise where no measured name contains ``part``; before the first step nothing is known.

    Raises:
        ConfigError: naming the nearest that is there.
    """
    from trueup.reporting.monitor import measured_names
    from trueup.types.option import unknown_key_message

    names = measured_names(run)
    if part and run.lines and not any(part in name for name in names):
        if not names:
            raise ConfigError(f"--list {part}: {run.root} has measured no weight, output or router by name")
        raise ConfigError(f"--list: {unknown_key_message(part, names, 'name')}")
