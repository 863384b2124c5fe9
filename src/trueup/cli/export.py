"""``trueup export``: a trace in another tool's format, its gradients as plain arrays, or its batches."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from trueup.cli.printing import note_line, warning_line
from trueup.cli.shared import Quiet
from trueup.errors import ConfigError
from trueup.types.option import Option

if TYPE_CHECKING:
    from trueup.batches.exporting import ExportedBatches


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What is written, and where to."""

    run: Annotated[Path, Option("A trace of trueup.", argument="RUN")]
    destination: Annotated[Path, Option("A new or empty folder.", argument="DIR")]
    format: Annotated[
        Literal["msprobe", "grads", "batches", "megatron"],
        Option(
            "msprobe: a dump its tools read; grads: grad_1.npy, ... of the first captured step; batches: "
            "step_N/rank_R/ with tokens.npy, labels.npy and masks; megatron: .bin and .idx.",
            "--format <format>",
        ),
    ] = "msprobe"
    per: Annotated[
        Literal["microbatch", "row"] | None,
        Option("With --format batches: what one step_N holds.", "--per", default="microbatch"),
    ] = None
    quiet: Quiet = False


def command(options: ExportOptions) -> int:
    """Write a trace as a dump that msprobe's own tools read, or its gradients or batches as plain files."""
    destination = options.destination
    if options.per is not None and options.format != "batches":
        raise ConfigError("--per has no effect without --format batches")
    if destination.is_file() or (destination.is_dir() and any(destination.iterdir())):
        problem = "is a file" if destination.is_file() else "is not empty"
        raise ConfigError(f"{destination} {problem}; expected a new or empty folder")
    note = _EXPORTS[options.format](options)
    if not options.quiet:
        note_line(note)
    return 0


def _export_msprobe(options: ExportOptions) -> str:
    from trueup.capture.launch.folder import make_writable
    from trueup.importers import open_trace
    from trueup.importers.msprobe.export import export_msprobe

    trace, destination = open_trace(options.run), options.destination
    make_writable(destination)
    export_msprobe(trace, destination)
    step = min(trace.steps(), default=0)
    return f"wrote {destination}; next: msprobe compare -tp {destination}/step{step} -gp OTHER -o OUT"


def _export_gradients(options: ExportOptions) -> str:
    from trueup.capture.launch.folder import make_writable
    from trueup.diagnosing.gradients import export_gradients
    from trueup.importers import open_trace

    trace, destination = open_trace(options.run), options.destination
    make_writable(destination)
    number = export_gradients(trace, destination)
    return (
        f"wrote {number} gradients to {destination}, in the order of the optimizer (grads.json names them); "
        f"next: trueup replay --gradients {destination} --reference {options.run} -o OUT -- COMMAND"
    )


def _export_batches(options: ExportOptions) -> str:
    """The dataset section goes to standard output, everything else to standard error."""
    from trueup.batches.exporting import export_batches, export_megatron
    from trueup.importers import open_trace

    trace, destination = open_trace(options.run), options.destination
    if options.format == "megatron":
        exported = export_megatron(trace, destination)
    else:
        exported = export_batches(trace, destination, by_row=options.per == "row")
    for sentence in () if options.quiet else exported.notes:
        warning_line(sentence)
    if exported.yaml is not None and not options.quiet:
        sys.stdout.write(exported.yaml)
    return f"{_summary(exported, destination)}; in a program: trueup.ReplayDataset({str(destination)!r})"


_EXPORTS = {
    "msprobe": _export_msprobe,
    "grads": _export_gradients,
    "batches": _export_batches,
    "megatron": _export_batches,
}


def _summary(exported: ExportedBatches, destination: Path) -> str:
    from trueup.capture.launch.outcome import describe

    place = (
        str(destination) if exported.prefix is None else f"{exported.prefix}.bin and .idx ({exported.dtype})"
    )
    number = f"{exported.num_batches:,} microbatch{'' if exported.num_batches == 1 else 'es'}"
    source = f"{describe(list(exported.steps), 'step')} of {describe(list(exported.ranks), 'rank')}"
    return f"wrote {number} of {source} to {place}"
