"""``trueup seed-all``: what makes a run repeatable, as lines to paste."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from trueup.cli.printing import note_line


def command(
    framework: Annotated[
        str | None, typer.Option(metavar="torch|mindspore", help="One framework. Default: both.")
    ] = None,
    seed: Annotated[int, typer.Option(help="From 0 to 4294967295.")] = 1234,
    mode: Annotated[
        bool, typer.Option("--mode", help="Deterministic kernels and collectives too: slower.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but the recipe.")] = False,
) -> None:
    """Print the variables and lines by which a run draws the same numbers again, each with its reason.

    trueup.seed_all(seed, mode) does the same from one line in the program, trueup capture --seed N
    --deterministic without an edit.
    """
    from trueup.adapters import FRAMEWORKS
    from trueup.capture.seed_recipe import seed_recipe

    sys.stdout.write(seed_recipe(FRAMEWORKS if framework is None else [framework], seed=seed, mode=mode))
    if not quiet:
        asked = f"{seed}, mode=True" if mode else str(seed)
        flags = f"--seed {seed}" + (" --deterministic" if mode else "")
        note_line(f"the same in one line: trueup.seed_all({asked}); without an edit: trueup capture {flags}")
