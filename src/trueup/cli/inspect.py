"""``trueup inspect``: what a trace holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from trueup.cli.printing import table_width
from trueup.cli.shared import Limit
from trueup.errors import ConfigError, TraceError
from trueup.types.option import Option

if TYPE_CHECKING:
    from trueup.store import TraceSource


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectOptions:
    """A trace, and the records to list."""

    run: Annotated[Path, Option("A trace, or a dump of msprobe or MindSpore.", argument="RUN")]
    find: Annotated[str | None, Option("Only sites with this text in name, type or slot.", "--find TEXT")] = (
        None
    )
    step: Annotated[int | None, Option("Sites of this step.", "--step", least=0)] = None
    rank: Annotated[int | None, Option("Only this rank.", "--rank", least=0)] = None
    limit: Limit = 60


def command(options: InspectOptions) -> int:
    """List the steps, ranks, sites and sizes of a trace; with --find or --step, its records."""
    from rich.console import Console

    from trueup.cli import inspect_tables as tables
    from trueup.importers import open_trace

    if options.find is not None and not options.find.strip():
        raise ConfigError("--find: expected a part of a name, such as layers.0 or gelu (got none)")
    trace = open_trace(options.run)
    steps = trace.steps()
    _check_exists(trace, steps, options.step, options.rank)
    console = Console(highlight=False, width=table_width())
    if options.find is None and options.step is None:
        tables.print_overview(trace, steps, console, rank=options.rank)
        return 0
    if not steps:
        raise TraceError(f"{options.run} has no complete step: there is nothing to list")
    step = next(iter(steps)) if options.step is None else options.step
    rank = steps[step][0] if options.rank is None else options.rank
    if not tables.print_records(trace, console, step=step, rank=rank, find=options.find, limit=options.limit):
        raise TraceError(
            f"{options.run}: no site of step {step} has {options.find!r} in its name, type or slot"
        )
    return 0


def _check_exists(
    trace: TraceSource, steps: dict[int, list[int]], step: int | None, rank: int | None
) -> None:
    from trueup.capture.launch.outcome import describe

    if step is not None and step not in steps:
        existing = describe(list(steps), "step") if steps else "no complete step"
        raise TraceError(f"{trace.path} has no step {step}; it has {existing}")
    ranks = sorted({r for present in (steps.values() if step is None else [steps[step]]) for r in present})
    if rank is not None and rank not in ranks:
        existing = describe(ranks, "rank") if ranks else "no rank with a complete step"
        raise TraceError(f"{trace.path} has no rank {rank}; it has {existing}")
