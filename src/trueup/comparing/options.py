"""What a person can choose about a comparison; recorded in result.json."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from trueup.capture.options import numbers_from_text
from trueup.types.layout import Layout
from trueup.types.option import Option, check_options
from trueup.types.plain import fields_to_json

NoiseProfileOption = Annotated[
    Path | bool,
    Option(
        "Noise profile of the reference.",
        "--noise DIR",
        default="REFERENCE/noise, if it exists",
        off="--no-noise",
        off_help="Use the documented dtype tolerance, even if a noise profile exists.",
    ),
]
"""a folder; True: REFERENCE/noise where it exists; False: none"""
MappingOption = Annotated[
    Path | None,
    Option("Pairs to use, as trueup match -o writes them.", "--map YAML", default="matched automatically"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """Every choice that shapes a comparison.

    Raises:
        ConfigError: a factor that is not positive, or only one of ``target_step`` and ``reference_step``.
    """

    steps: Annotated[
        frozenset[int] | None,
        Option(
            "Only these steps, such as 0,5-8.",
            "--steps",
            default="all that both traces have",
            read=numbers_from_text,
            no_effect="with --target-step",
            idle_with="target_step",
        ),
    ] = None
    ranks: Annotated[
        frozenset[int] | None,
        Option(
            "Only these ranks.",
            "--ranks",
            default="all that both traces have",
            read=numbers_from_text,
            no_effect="with --target-rank",
            idle_with="target_rank",
        ),
    ] = None
    target_step: Annotated[
        int | None,
        Option(
            "Compare this step of the target with --reference-step.",
            "--target-step",
            least=0,
            together="reference_step",
        ),
    ] = None
    reference_step: Annotated[
        int | None, Option("See --target-step.", "--reference-step", least=0, together="target_step")
    ] = None
    target_rank: Annotated[
        int | None,
        Option(
            "Compare this rank of the target with --reference-rank.",
            "--target-rank",
            least=0,
            together="reference_rank",
        ),
    ] = None
    reference_rank: Annotated[
        int | None, Option("See --target-rank.", "--reference-rank", least=0, together="target_rank")
    ] = None
    tolerance_factor: Annotated[
        float, Option("Multiply every tolerance by this.", "--tolerance-factor", above=0)
    ] = 1.0
    read_values: Annotated[
        bool, Option("Read stored tensors where digests differ; otherwise judge by summaries alone.")
    ] = True
    read_equal_values: Annotated[
        bool,
        Option("Read stored tensors where digests are equal as well.", no_effect="without stored values"),
    ] = False
    noise: NoiseProfileOption = True
    arbiter: Annotated[
        Path | None,
        Option(
            "A float64 or float32 run of the program, to tell which side is less accurate.", "--arbiter TRACE"
        ),
    ] = None
    mapping: MappingOption = None
    merge: Annotated[
        bool | None,
        Option(
            "Merge tensors from all ranks, or compare rank by rank.",
            "--merge/--no-merge",
            default="merge where the layouts differ and no rank was chosen",
        ),
    ] = None
    target_layout: Annotated[
        Path | None,
        Option(
            "Layout of the target's tensors on its ranks.",
            "--target-layout YAML",
            default="as its program declared it",
        ),
    ] = None
    reference_layout: Annotated[Path | None, Option("See --target-layout.", "--reference-layout YAML")] = None
    num_threads: Annotated[
        int | None, Option("Threads that compare stored values.", default="the number of cores")
    ] = None

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def merging(self) -> bool | None:
        """``merge``; where ranks were chosen, they are compared as they are."""
        chosen = self.ranks is not None or self.target_rank is not None
        return False if self.merge is None and chosen else self.merge

    def layouts(self) -> tuple[Layout | None, Layout | None]:
        """Of target and reference, where a person gives them.

        Raises:
            ConfigError: a file is missing or not of that form.
        """
        both = self.target_layout, self.reference_layout
        if both == (None, None):
            return None, None
        from trueup.merging.layout_file import read_layout  # most comparisons do without

        target, reference = (None if path is None else read_layout(path) for path in both)
        return target, reference

    def to_json(self) -> dict[str, object]:
        """Plain values, for result.json."""
        return fields_to_json(self)
