"""``trueup seed-all``: what makes a run repeatable, as lines to paste."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Literal

from trueup.cli.printing import note_line
from trueup.cli.shared import Quiet
from trueup.types.option import Option


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedOptions:
    """Framework and seed."""

    framework: Annotated[
        Literal["torch", "mindspore"] | None, Option("One framework.", "--framework", default="both")
    ] = None
    seed: Annotated[int, Option("Up to 4294967295.", "--seed", least=0, most=2**32 - 1)] = 1234
    mode: Annotated[bool, Option("Deterministic kernels and collectives as well: slower.", "--mode")] = False
    quiet: Quiet = False


def command(options: SeedOptions) -> int:
    """Print the environment variables and lines that make a run repeatable, each with its reason.

    trueup.seed_all(seed, mode) does the same from one line in the program, trueup capture --seed N
    --deterministic without an edit.
    """
    from trueup.adapters import FRAMEWORKS
    from trueup.capture.seed_recipe import seed_recipe

    frameworks = FRAMEWORKS if options.framework is None else (options.framework,)
    sys.stdout.write(seed_recipe(frameworks, seed=options.seed, mode=options.mode))
    if not options.quiet:
        arguments = f"{options.seed}, mode=True" if options.mode else str(options.seed)
        flags = f"--seed {options.seed}" + (" --deterministic" if options.mode else "")
        note_line(f"in one line: trueup.seed_all({arguments}); without an edit: trueup capture {flags}")
    return 0
