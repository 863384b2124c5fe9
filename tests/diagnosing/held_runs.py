"""Runs made by hand that are held in memory: what ``made_steps.run`` writes, without a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl

from tests.comparing.traces import Recorder
from trueup.numerics.summary import SUMMARY_DTYPE
from trueup.store import StepTables
from trueup.store.reader import StoredTensor
from trueup.store.writer import _TABLES


@dataclass(kw_only=True)
class HeldRun:
    """A trace of steps in memory (``store.TraceSource``)."""

    made: Mapping[tuple[int, int], Recorder]
    """step and rank -> what was recorded"""
    lines: Mapping[int, list[dict[str, Any]]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    manifest: Any = field(default_factory=dict)
    path: Path = Path("held")

    def steps(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for step, rank in sorted(self.made):
            found.setdefault(step, []).append(rank)
        return found

    def read(self, step: int, rank: int) -> StepTables:
        one = self.made[step, rank]
        rows = np.zeros(len(one._summaries), SUMMARY_DTYPE)
        for index, summary in enumerate(one._summaries):
            rows[index] = summary
        one.step.summaries = rows
        one.step.summary_tensor.update({row: (0, f"t{row}") for row in one.values})
        frames = {name: cast("pl.DataFrame", pl.from_arrow(_TABLES[name](one.step, {}))) for name in _NAMES}
        frames["summaries"] = frames["summaries"].with_row_index("summary").cast({"summary": pl.Int32})
        return StepTables(step=step, rank=rank, **frames)  # type: ignore[arg-type]

    def tensor(self, step: int, rank: int, summary: Any) -> StoredTensor | None:
        if summary.get("tensor") is None:
            return None
        array = self.made[step, rank].values[int(summary["tensor"][1:])]
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return StoredTensor(dtype=summary["dtype"], shape=tuple(summary["shape"]), data=data)

    def scalars(self, rank: int) -> list[Any]:
        return self.lines.get(rank, [])

    def rank_facts(self, rank: int) -> Any:
        return {"rank": rank, **self.facts}

    def missing(self, rank: int) -> list[str]:
        return []


_NAMES = ("calls", "records", "summaries", "stacks")


def held(
    *steps: Recorder | Sequence[Recorder],
    lines: Iterable[Mapping[str, Any]] = (),
    facts: Mapping[str, Any] | None = None,
    first: int = 0,
    **manifest: Any,
) -> HeldRun:
    """The run of these steps, of several ranks where a step is a sequence, numbered from ``first``; ``lines``
    of scalars are every rank's."""
    every = [[one] if isinstance(one, Recorder) else list(one) for one in steps]
    made = {(at, rank): one for at, ranks in enumerate(every, first) for rank, one in enumerate(ranks)}
    ranks = max((len(one) for one in every), default=1)
    kept = [{"step": at, **line} for at, line in enumerate(lines, first)]
    told = {"framework": "pytorch", "level": "mix", "task": "statistics", "world_size": ranks, **manifest}
    return HeldRun(made=made, lines=dict.fromkeys(range(ranks), kept), facts=facts or {}, manifest=told)
