"""``trueup noise``: how far a run is from itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from trueup.cli.printing import note_line, notes
from trueup.cli.shared import Command, Quiet
from trueup.diagnosing.noise_options import NoiseOptions
from trueup.errors import ConfigError
from trueup.types.option import Option

CAPTURED = "reference"
"""folder of the reference run where none is given"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseRun:
    """The program, and its trace."""

    command: Command = ()
    reference: Annotated[
        Path | None,
        Option(
            "Trace of the reference.",
            "--reference TRACE",
            default=f"the program is captured first, into ./{CAPTURED}, with --preset diagnose",
        ),
    ] = None
    quiet: Quiet = False


def command(run: NoiseRun, options: NoiseOptions) -> int:
    """Run the program of the reference repeatedly, and measure how far each of its numbers moves.

    The profile is written beside the trace, to REFERENCE/noise; trueup compare uses it.
    """
    from trueup.diagnosing.noise import capture_reference, measure_noise
    from trueup.wording import text

    reference = run.reference
    if not run.command:
        given = "" if reference is None else f" --reference {reference}"
        raise ConfigError(f"the command is missing: trueup noise{given} -- python train.py")
    say = notes(quiet=run.quiet)
    if reference is None:
        reference = Path(CAPTURED)
        say(f"no --reference: the program is captured first, into {reference}")
        capture_reference(run.command, reference)
    profile = measure_noise(reference, run.command, options, say=say)
    for one in () if run.quiet else profile.summary():
        note_line(text(one))
    return 0
