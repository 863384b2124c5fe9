"""``trueup export``: a trace in another tool's format, its gradients as plain arrays, or its batches."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trueup.cli.printing import note_line, warning_line
from trueup.errors import ConfigError

if TYPE_CHECKING:
    from trueup.batches.exporting import ExportedBatches
    from trueup.store import TraceSource

_FORMATS = ("msprobe", "grads", "batches", "megatron")
_PER = ("microbatch", "row")


def command(
    source: Annotated[Path, typer.Argument(metavar="RUN", help="A trace of trueup.")],
    destination: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
    to: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="<format>",
            help="msprobe: a dump its tools read; grads: grad_1.npy, ... of the first captured step; "
            "batches: step_N/rank_R/ with tokens.npy, labels.npy and masks; megatron: .bin and .idx.",
        ),
    ] = "msprobe",
    per: Annotated[
        str | None,
        typer.Option(
            metavar="microbatch|row",
            help="With --format batches: what one step_N holds. Default: microbatch.",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
) -> None:
    """Write a trace as a dump that msprobe's own tools read, its gradients or its batches as plain files."""
    _check(to, per, destination)
    from trueup.capture.launch.folder import make_writable
    from trueup.importers import export_msprobe, open_trace

    trace = open_trace(source)
    if to in ("batches", "megatron"):
        _export_batches(trace, destination, to=to, by_row=per == "row", quiet=quiet)
        return
    make_writable(destination)
    if to == "grads":
        from trueup.diagnosing.gradients import export_gradients

        number = export_gradients(trace, destination)
        if not quiet:
            note_line(
                f"wrote {number} gradients to {destination}, in the order of the optimizer (grads.json names "
                f"them); next: trueup replay --gradients {destination} --reference {source} -o OUT -- COMMAND"
            )
        return
    export_msprobe(trace, destination)
    if not quiet:
        step = min(trace.steps(), default=0)
        note_line(f"wrote {destination}; next: msprobe compare -tp {destination}/step{step} -gp OTHER -o OUT")


def _check(to: str, per: str | None, destination: Path) -> None:
    if to not in _FORMATS:
        raise ConfigError(f"--format {to!r}: there is {', '.join(_FORMATS)}")
    if per is not None and to != "batches":
        raise ConfigError("--per goes with --format batches")
    if per is not None and per not in _PER:
        raise ConfigError(f"--per {per!r}: one of {', '.join(_PER)} is wanted")
    if destination.is_file():
        raise ConfigError(f"{destination} is a file; a new or empty folder is wanted")
    if destination.is_dir() and any(destination.iterdir()):
        raise ConfigError(f"{destination} is not empty; give a new or empty folder")


def _export_batches(trace: TraceSource, destination: Path, *, to: str, by_row: bool, quiet: bool) -> None:
    """Write; the dataset section goes to standard output, all else that is said to standard error."""
    from trueup.batches.exporting import export_batches, export_megatron

    if to == "megatron":
        done = export_megatron(trace, destination)
    else:
        done = export_batches(trace, destination, by_row=by_row)
    if quiet:
        return
    for note in done.notes:
        warning_line(note)
    note_line(f"{_summary(done, destination)}; in a program: trueup.ReplayDataset({str(destination)!r})")
    if done.yaml is not None:
        sys.stdout.write(done.yaml)


def _summary(done: ExportedBatches, destination: Path) -> str:
    from trueup.capture.launch.outcome import describe

    where = str(destination) if done.prefix is None else f"{done.prefix}.bin and .idx ({done.dtype})"
    num = f"{done.num_batches:,} microbatch{'' if done.num_batches == 1 else 'es'}"
    held = f"{describe(list(done.steps), 'step')} of {describe(list(done.ranks), 'rank')}"
    return f"wrote {num} of {held} to {where}"
