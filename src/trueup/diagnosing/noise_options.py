"""What a person can choose about a noise profile."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from trueup.capture.options import StepSet
from trueup.errors import ConfigError
from trueup.types.option import Option, check_options

_MOST_RERUNS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseOptions:
    """How often the program is run again.

    Raises:
        ConfigError: a number below 0, or no rerun at all.
    """

    num_perturbed: Annotated[
        int,
        Option(
            "Reruns with rounding-sized changes of weights and inputs.",
            "-k --perturbed",
            least=0,
            most=_MOST_RERUNS,
        ),
    ] = 3
    num_repeats: Annotated[
        int,
        Option("Plain reruns, without determinism from outside.", "--repeats", least=0, most=_MOST_RERUNS),
    ] = 1
    steps: Annotated[
        StepSet | None,
        Option(
            "Only these steps, such as 0,1.",
            "--steps",
            default="all steps of the reference",
            read=StepSet.parse,
        ),
    ] = None
    first_seed: Annotated[
        int, Option("Seed of the first perturbed rerun; the next ones follow it.", "--seed", least=0)
    ] = 0
    keep: Annotated[Path | None, Option("Keep the traces of the reruns in this folder.", "--keep DIR")] = None

    @property
    def seeds(self) -> list[int | None]:
        """One entry a rerun, None for a plain repeat."""
        perturbed = range(self.first_seed, self.first_seed + self.num_perturbed)
        return [*[None] * self.num_repeats, *perturbed]

    def __post_init__(self) -> None:
        check_options(self)
        if not self.num_perturbed + self.num_repeats:
            raise ConfigError("0 perturbed reruns and 0 repeats: expected at least one rerun")
