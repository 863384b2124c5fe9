"""Modules of the target with the worst scores of their records."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl

from trueup.comparing.content import ModuleScore
from trueup.comparing.judgement import Judgement
from trueup.comparing.rows import StepRows
from trueup.matching.codes import Codes
from trueup.types.status import Status

_WORST = {
    "forward": "worst_forward",
    "loss": "worst_forward",
    "backward": "worst_backward",
    "param_grad": "worst_grad",
}
_MOST_WORRYING = (
    Status.ORIGIN,
    Status.AMPLIFIED,
    Status.PROPAGATED,
    Status.UNDECIDED,
    Status.UNMATCHED,
    Status.WITHIN_NOISE,
    Status.EQUAL,
)


@dataclass(slots=True)
class _Module:
    order: int
    type: str | None = None
    worst: dict[str, float] = field(default_factory=dict)
    seen: set[Status] = field(default_factory=set)


@dataclass(slots=True)
class ModuleTree:
    """Every module seen so far."""

    _modules: dict[str, _Module] = field(default_factory=dict)

    def add(self, rows: StepRows, judgement: Judgement, *, first: bool) -> None:
        """Take in one step of one rank; the first one gives the order."""
        frame = pl.DataFrame(
            {
                "module": _module_of_rows(rows),
                "phase": rows.phase,
                "score": np.where(np.isnan(judgement.score), -1.0, judgement.score),
                "status": judgement.attribution.status,
                "order": np.arange(len(rows)),
            }
        ).filter(pl.col("module") >= 0)
        grouped = frame.group_by("module", "phase", maintain_order=True).agg(
            pl.col("score").max(),
            pl.col("order").min(),
            *((pl.col("status") == status.code).any().alias(status.value) for status in Status),
        )
        types = _types_of_modules(rows)
        words = rows.match.words
        for row in grouped.iter_rows(named=True):
            entry = self._modules.setdefault(words.name[row["module"]], _Module(order=row["order"]))
            entry.type = entry.type or types.get(row["module"])
            if first:
                entry.order = min(entry.order, row["order"])
            worst = _WORST.get(words.phase[row["phase"]])
            if worst is not None and row["score"] >= 0:
                entry.worst[worst] = max(entry.worst.get(worst, 0.0), row["score"])
            entry.seen.update(status for status in Status if row[status.value])

    def scores(self) -> list[ModuleScore]:
        """Modules in execution order."""
        found = [
            ModuleScore(
                fqn=fqn,
                type=one.type,
                order=one.order,
                depth=fqn.count(".") + 1 if fqn else 0,
                worst_forward=one.worst.get("worst_forward"),
                worst_backward=one.worst.get("worst_backward"),
                worst_grad=one.worst.get("worst_grad"),
                status=next((s for s in _MOST_WORRYING if s in one.seen), Status.UNDECIDED),
            )
            for fqn, one in self._modules.items()
        ]
        return sorted(found, key=lambda module: (module.order, module.depth))


def _module_of_rows(rows: StepRows) -> Codes:
    """The module (code of its name) each row belongs to: itself, the enclosing one, or a parameter's."""
    side, words = rows.match.target, rows.match.words
    kinds = {word: code for code, word in enumerate(words.kind)}
    module = side.kind == kinds.get("module", -2)
    parent = np.maximum(side.parent, 0)
    owner = np.where(module, side.name, np.where((side.parent >= 0) & module[parent], side.name[parent], -1))
    codes = {word: code for code, word in enumerate(words.name)}
    for call in np.flatnonzero(side.kind == kinds.get("parameter", -2)).tolist():
        owner[call] = codes.get(words.name[side.name[call]].rpartition(".")[0], -1)
    if not len(owner):
        return np.full(len(rows), -1, np.int64)
    return np.where(rows.target.call >= 0, owner[np.maximum(rows.target.call, 0)], -1)


def _types_of_modules(rows: StepRows) -> dict[int, str]:
    side, words = rows.match.target, rows.match.words
    known = np.flatnonzero(side.type >= 0)
    return {int(side.name[c]): words.type[side.type[c]] for c in known[::-1].tolist()}
