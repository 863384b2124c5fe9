"""``trueup export``: a trace in another tool's format, or its gradients as plain arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trueup.cli.printing import note_line
from trueup.errors import ConfigError

_FORMATS = ("msprobe", "grads")


def command(
    source: Annotated[Path, typer.Argument(metavar="RUN", help="A trace of trueup.")],
    destination: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
    to: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="msprobe|grads",
            help="A dump msprobe's tools read, or grad_1.npy, grad_2.npy, ... of the first captured step.",
        ),
    ] = "msprobe",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
) -> None:
    """Write a trace as a dump that msprobe's own tools read, or its gradients one file a parameter."""
    if to not in _FORMATS:
        raise ConfigError(f"--format {to!r}: there is {', '.join(_FORMATS)}")
    if destination.is_file():
        raise ConfigError(f"{destination} is a file; a new or empty folder is wanted")
    if destination.is_dir() and any(destination.iterdir()):
        raise ConfigError(f"{destination} is not empty; give a new or empty folder")
    from trueup.capture.launch.folder import make_writable
    from trueup.importers import export_msprobe, open_trace

    trace = open_trace(source)
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
