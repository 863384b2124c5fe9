"""A run under checks: its steps, read once and shared by all checks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from trueup.diagnosing.checks.outcome import CheckedSite
from trueup.numerics.dtypes import DTYPES
from trueup.store import StepView, TraceSource
from trueup.types.arrays import Array
from trueup.types.reason import Reason
from trueup.types.site import shown_name
from trueup.types.trace import ParameterFacts, RankFacts, ScalarLine, SummaryRow

_KEPT_STEPS = 4


def site_of(row: Mapping[str, Any]) -> str:
    """``layers.0.attn · torch.matmul[1] · output.0`` of one row of ``StepView.frame``."""
    name = shown_name(row["name"] or "")
    if row["kind"] in ("api", "collective") and row["module"] is not None:
        name = f"{shown_name(row['module'] or '')} · {name}"
    ordinal = f"[{row['ordinal']}]" if row["ordinal"] else ""
    mode = f" ({row['mode']})" if row["mode"] in ("eval", "recompute") else ""
    words = {"backward": "gradient of ", "param_grad": "gradient ", "optimizer": "after update "}
    return f"{name}{ordinal}{mode} · {words.get(row['phase'], '')}{row['slot']}"


def place_of(view: StepView, row: Mapping[str, Any], detail: Reason | None = None) -> CheckedSite:
    """The place of one row of ``StepView.frame``."""
    return CheckedSite(
        site=site_of(row),
        step=view.step,
        rank=view.rank,
        source=view.innermost_frame(row["call"]),
        detail=detail,
    )


@dataclass(slots=True)
class CheckedRun:
    """A trace, and a second one of the same program where there is one."""

    source: TraceSource
    again: TraceSource | None = None
    steps: dict[int, list[int]] = field(init=False)
    """whole steps -> ranks"""
    _views: OrderedDict[tuple[bool, int, int], StepView] = field(init=False, default_factory=OrderedDict)
    _facts: dict[int, RankFacts] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.steps = self.source.steps()

    @property
    def ranks(self) -> list[int]:
        """Ranks that have any whole step."""
        return sorted({rank for there in self.steps.values() for rank in there})

    @property
    def world_size(self) -> int:
        """As the manifest says, else as many ranks as there are."""
        return int(self.source.manifest.get("world_size") or len(self.ranks))

    def view(self, step: int, rank: int, *, again: bool = False) -> StepView:
        """One step of one rank; of the second run where ``again``."""
        key = again, step, rank
        if key not in self._views:
            source = self.again if again and self.again is not None else self.source
            self._views[key] = StepView(source, source.read(step, rank))
            while len(self._views) > _KEPT_STEPS * max(2, len(self.ranks)):
                self._views.popitem(last=False)
        return self._views[key]

    def facts(self, rank: int) -> RankFacts:
        """What one rank says of itself."""
        if rank not in self._facts:
            self._facts[rank] = self.source.rank_facts(rank)
        return self._facts[rank]

    def parameters(self, rank: int) -> list[ParameterFacts]:
        """The parameter table, one row a tensor: tied names are left out."""
        return [p for p in self.facts(rank).get("parameters") or [] if not p.get("tied_to")]

    def scalars(self, rank: int) -> dict[int, ScalarLine]:
        """Scalars by step."""
        return {int(line["step"]): line for line in self.source.scalars(rank) if "step" in line}

    def line(self, step: int, rank: int) -> ScalarLine:
        """Scalars of one step; empty where there are none."""
        return self.scalars(rank).get(step, ScalarLine())

    def values(self, step: int, rank: int, row: Mapping[str, object]) -> Array | None:
        """Stored values of a record of integers, bool or float32/64, shaped; None where there are none."""
        stored = self.source.tensor(step, rank, cast("SummaryRow", row))
        if stored is None or stored.dtype not in DTYPES:
            return None
        storage = np.dtype("bool" if stored.dtype == "bool" else DTYPES[stored.dtype].storage)
        return np.asarray(stored.data).view(storage).reshape(stored.shape)

    def groups(self, kind: str) -> list[list[int]]:
        """Captured ranks that by the program's own wrapper hold the same ``weights`` or ``experts``, or read
        different ``batches``; empty where not every rank says so.
        """
        recorded = {rank: (self.facts(rank).get("groups") or {}).get(kind) for rank in self.ranks}
        if not recorded or None in recorded.values():
            return []
        groups = {
            tuple(one for one in group if one in recorded) for group in recorded.values() if group is not None
        }
        return [list(group) for group in sorted(groups)]

    @property
    def replicated(self) -> bool:
        """Every rank holds the same weights, by the program's own wrapper."""
        if groups := self.groups("weights"):
            return len(self.ranks) > 1 and groups == [self.ranks]
        wrapped = [self.facts(rank).get("wrapped_by") or [] for rank in self.ranks]
        return len(self.ranks) > 1 and all("DistributedDataParallel" in names for names in wrapped)

    def has_api_calls(self) -> bool:
        """API calls are among the sites."""
        return str(self.source.manifest.get("level")) in ("L1", "mix")
