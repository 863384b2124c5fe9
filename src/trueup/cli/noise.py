"""``trueup noise``: how far a run is from itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trueup.capture.options import StepSet
from trueup.cli.printing import note_line
from trueup.errors import ConfigError

CAPTURED = "reference"
"""where the run that is trusted goes if it is not there yet"""


def command(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND", help="The reference's training command.")
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(
            "--reference",
            help="The trace of the run that is trusted. Default: the program is captured first, into "
            f"./{CAPTURED}, as with --preset diagnose.",
        ),
    ] = None,
    perturbed: Annotated[
        int, typer.Option("-k", "--perturbed", min=0, help="Reruns with rounding-sized changes.")
    ] = 3,
    repeats: Annotated[int, typer.Option("--repeats", min=0, help="Plain reruns.")] = 1,
    steps: Annotated[
        str | None, typer.Option(help="Only these steps, such as 0,1. Default: all the reference holds.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first perturbed rerun.")] = 0,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="DIR", help="Leave the reruns' traces here.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
) -> None:
    """Run the reference's program again and again, and keep how far each of its numbers moves.

    The profile lies beside the trace, in REFERENCE/noise; trueup compare uses it from then on.
    """
    from trueup.diagnosing.noise import NoiseOptions, capture_reference, measure_noise

    if not command:
        given = "" if reference is None else f" --reference {reference}"
        raise ConfigError(f"say how to run it, after two dashes: trueup noise{given} -- python train.py")
    options = NoiseOptions(
        num_perturbed=perturbed,
        num_repeats=repeats,
        steps=None if steps is None else StepSet.parse(steps),
        first_seed=seed,
        keep=keep,
    )
    say = (lambda _: None) if quiet else note_line
    if reference is None:
        reference = Path(CAPTURED)
        say(f"no --reference: the program is captured first, into {reference}")
        capture_reference(command, reference)
    profile = measure_noise(reference, command, options, say=say)
    if not quiet:
        for sentence in profile.sentences():
            note_line(sentence)
