"""What a person can choose about a comparison; recorded in result.json."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trueup.errors import ConfigError
from trueup.types.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """Every choice that shapes a comparison.

    Raises:
        ConfigError: a factor that is not positive, or only one of ``target_step`` and ``reference_step``.
    """

    steps: frozenset[int] | None = None
    """compare only these steps; None: all that both traces have"""
    ranks: frozenset[int] | None = None
    """compare only these ranks; None: all that both traces have"""
    target_step: int | None = None
    """with ``reference_step``: one step of each, whatever their numbers; ``steps`` then has no effect"""
    reference_step: int | None = None
    target_rank: int | None = None
    """with ``reference_rank``: one rank of each, whatever their numbers"""
    reference_rank: int | None = None
    tolerance_factor: float = 1.0
    """multiplies every tolerance; 1 is the dtype bound as documented"""
    read_values: bool = True
    """read stored tensors where digests differ; False judges by summaries alone"""
    read_equal_values: bool = False
    """also read tensors whose digests are equal; no effect without stored values"""
    noise: Path | bool = True
    """the reference's noise profile: its folder, or True: REFERENCE/noise where there is one, False: none"""
    arbiter: Path | None = None
    """a more exact run of the same program, to tell which of the two is the less accurate"""
    mapping: Path | None = None
    """pairs a person gives, as ``trueup match -o`` writes them; None: all are found"""
    merge: bool | None = None
    """whole tensors put together from all ranks; None: where the two runs have other layouts, and no rank was
    chosen"""
    target_layout: Path | None = None
    """a YAML file with the target's layout; None: as its program declared it"""
    reference_layout: Path | None = None
    num_threads: int | None = None
    """threads that compare stored values; None: as many as there are cores"""

    def __post_init__(self) -> None:
        if not 0 < self.tolerance_factor < float("inf"):
            raise ConfigError(f"tolerance_factor is {self.tolerance_factor}; it must be above 0, and finite")
        for what in ("step", "rank"):
            one, other = getattr(self, f"target_{what}"), getattr(self, f"reference_{what}")
            if (one is None) != (other is None):
                raise ConfigError(f"give both target_{what} and reference_{what}, or neither")

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

    def to_json(self) -> dict[str, Any]:
        """Plain values, for result.json."""
        plain = asdict(self)
        for key in ("steps", "ranks"):
            plain[key] = None if plain[key] is None else sorted(plain[key])
        plain["noise"] = self.noise if isinstance(self.noise, bool) else str(self.noise)
        for key in ("target_layout", "reference_layout"):
            plain[key] = None if plain[key] is None else str(plain[key])
        plain["mapping"] = None if self.mapping is None else str(self.mapping)
        plain["arbiter"] = None if self.arbiter is None else str(self.arbiter)
        return plain
