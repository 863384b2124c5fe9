"""``trueup capture``: run a training command and keep its numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from trueup.capture.options import CaptureOptions
from trueup.cli.printing import note_line, stdout_to_stderr, table_width, warning_line
from trueup.cli.shared import Command, Quiet
from trueup.monitoring.settings import PANEL, MonitorSettings
from trueup.types.option import GivenOptions, Option


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureCommand:
    """The command, and where its options come from."""

    command: Command = ()
    preset: Annotated[
        str | None,
        Option(
            "diagnose: level L0, steps 0-1, and the values a diagnosis needs. batches: every step, token ids "
            "and labels with their values, no gradients.",
            "--preset",
            panel="What to capture",
        ),
    ] = None
    config: Annotated[
        Path | None,
        Option(
            "msprobe's config.json; options on the command line take precedence.",
            "--config",
            panel="What to capture",
        ),
    ] = None
    overflow_nums: Annotated[
        int | None,
        Option(
            "With --task overflow_check: how many to keep, -1 for all.",
            "--overflow-nums",
            panel="How much of it",
            default="1",
        ),
    ] = None
    estimate: Annotated[
        bool,
        Option(
            "Run the first steps only, keep nothing, and say what the capture will take: tensors, bytes, "
            "host memory, seconds a step, and what to leave out where it does not fit.",
            "--estimate",
            panel="How much of it",
        ),
    ] = False
    monitor: Annotated[
        bool,
        Option(
            "Norms of weights and gradients at every step, and alarms; only the step after an alarm is "
            "captured, unless --steps is given. View it: trueup monitor RUN.",
            "--monitor",
            panel=PANEL,
        ),
    ] = False
    monitor_config: Annotated[
        Path | None, Option("All settings and thresholds.", "--monitor-config YAML", panel=PANEL)
    ] = None
    quiet: Quiet = False


def command(
    run: CaptureCommand, options: GivenOptions[CaptureOptions], monitor: GivenOptions[MonitorSettings]
) -> int:
    """Run a training command and keep its numbers; the script needs no edit.

    Exit status: the command's own, or 2 if nothing was captured.
    """
    from trueup.capture.request import CaptureRequest, capture_options
    from trueup.monitoring.launch import launch_with_monitor, with_monitor

    request = CaptureRequest(
        given=options, preset=run.preset, config=run.config, overflow_nums=run.overflow_nums
    )
    chosen, warnings = capture_options(request)
    for sentence in () if run.quiet else warnings:
        warning_line(sentence)
    if run.estimate:
        return _estimate(chosen, run)
    watching = run.monitor or run.monitor_config is not None
    chosen = with_monitor(
        chosen,
        monitor,
        file=run.monitor_config,
        active=watching,
        program=run.command,
        capture_all=not request.free_steps,
    )
    held: list[str] = []
    say = held.append if run.quiet else note_line
    status = launch_with_monitor(chosen, run.command, say=say, active=watching)
    for sentence in held if status else ():  # what went wrong is said in any case
        note_line(sentence)
    return status


def _estimate(options: CaptureOptions, run: CaptureCommand) -> int:
    from rich.console import Console

    from trueup.capture.estimating import estimate
    from trueup.reporting.estimate import estimate_report
    from trueup.reporting.render import show

    with stdout_to_stderr():
        found = estimate(options, run.command)
    show(estimate_report(found), Console(highlight=False, width=table_width()))
    return 0
