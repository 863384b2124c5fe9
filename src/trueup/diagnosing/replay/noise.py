"""How far a replay is from its reference where nothing is wrong: measured by replaying a benign variant."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trueup.diagnosing.replay.plan import PLAN, read_plan
from trueup.errors import ConfigError, TraceError
from trueup.store import Trace
from trueup.store.places import places

Site = tuple[str, str, str]
"""place of the reference's call, phase, slot"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteNoise:
    """The most that was seen at one site."""

    rel_l2: float
    bias_z: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayNoise:
    """Noise by site; a site that is not here was not measured.

    Example:
        >>> noise = ReplayNoise.measured([Path("runs/benign")], Trace(Path("ref")))  # doctest: +SKIP
    """

    sites: Mapping[Site, SiteNoise] = field(default_factory=dict)

    def at(self, site: Site) -> SiteNoise | None:
        """What was measured at a site."""
        return self.sites.get(site)

    @classmethod
    def measured(cls, replays: Iterable[Path], reference: Trace) -> ReplayNoise:
        """The largest over several replays against one reference.

        Raises:
            ConfigError: a folder holds no replay, or one against another reference.
        """
        found: dict[Site, SiteNoise] = {}
        for path in replays:
            for site, seen in _sites(path, reference):
                known = found.get(site, seen)
                found[site] = SiteNoise(
                    rel_l2=max(known.rel_l2, seen.rel_l2), bias_z=max(known.bias_z, seen.bias_z)
                )
        return cls(sites=found)


def _sites(path: Path, reference: Trace) -> Iterable[tuple[Site, SiteNoise]]:
    try:
        replay, plan = Trace(path), read_plan(path / "plan")
    except TraceError as error:
        raise ConfigError(f"--noise-replay {path}: no replay in there ({error})") from error
    if plan.reference.resolve() != reference.path.resolve():
        raise ConfigError(
            f"--noise-replay {path} was made against {plan.reference}, not against {reference.path}: "
            "replay the benign variant against this reference"
        )
    for one in plan.steps:
        tables = reference.read(one.reference_step, one.reference_rank)
        where, calls = places(tables.calls), tables.records["call"].to_list()
        columns = ("reference_record", "phase", "slot", "state", "difference", "norm", "bias_z")
        for record, phase, slot, state, difference, norm, z in (
            replay.forced(one.step, one.rank).select(*columns).iter_rows()
        ):
            if record is None:
                continue
            if state == "equal":
                yield (where[calls[record]], phase, slot), SiteNoise(rel_l2=0.0, bias_z=0.0)
            elif difference is not None and norm and math.isfinite(difference):
                seen = SiteNoise(rel_l2=difference / norm, bias_z=abs(z) if z is not None else 0.0)
                yield (where[calls[record]], phase, slot), seen


__all__ = ["PLAN", "ReplayNoise", "SiteNoise"]
