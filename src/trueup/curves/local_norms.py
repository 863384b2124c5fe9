"""Local norms that both logs print, weight by weight."""

from __future__ import annotations

import math
from dataclasses import dataclass

import polars as pl

from trueup.curves.curve import Curve
from trueup.curves.thresholds import NORMS_APART

_LISTED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNorms:
    """The local norms of one step, farthest apart first."""

    step: int
    paired_by: str
    """``name`` or ``order``"""
    num_pairs: int
    num_beyond: int
    rows: tuple[tuple[str, float, float, float], ...]
    """name, target, reference, relative difference"""

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        rows = [
            {"name": name, "target": target, "reference": reference, "rel_diff": apart}
            for name, target, reference, apart in self.rows
        ]
        return {
            "step": self.step,
            "paired_by": self.paired_by,
            "num_pairs": self.num_pairs,
            "num_beyond": self.num_beyond,
            "rows": rows,
        }


def compare_local_norms(target: Curve, reference: Curve, step: int, offset: int) -> LocalNorms | None:
    """The norms of the logged step nearest to ``step`` (the target's numbers); None where either prints none,
    or as many that nothing tells which belongs to which.

    Pairs by name where both have names in common, else by order where both print as many.
    """
    if target.local_norms is None or reference.local_norms is None:
        return None
    theirs = reference.local_norms.with_columns(pl.col("step") + offset)
    shared = sorted(set(target.local_norms["step"]) & set(theirs["step"]))
    if not shared:
        return None
    at = min(shared, key=lambda s: (abs(s - step), s))
    mine, other = (frame.filter(pl.col("step") == at) for frame in (target.local_norms, theirs))
    named = mine["name"].null_count() == 0 and other["name"].null_count() == 0
    if named and set(mine["name"]) & set(other["name"]):
        pairs, how = mine.join(other, on="name", suffix="_reference"), "name"
    elif mine.height == other.height:
        pairs, how = mine.join(other, on="index", suffix="_reference"), "order"
    else:
        return None
    labels = [name or f"weight {index}" for name, index in zip(pairs["name"], pairs["index"], strict=True)]
    rows = [
        (label, a, b, _apart(a, b))
        for label, a, b in zip(labels, pairs["local_norm"], pairs["local_norm_reference"], strict=True)
    ]
    rows.sort(key=lambda row: -row[3])
    return LocalNorms(
        step=at,
        paired_by=how,
        num_pairs=len(rows),
        num_beyond=sum(row[3] > NORMS_APART for row in rows),
        rows=tuple(rows[:_LISTED]),
    )


def _apart(target: float, reference: float) -> float:
    if not (math.isfinite(target) and math.isfinite(reference)):
        return math.inf
    return abs(target - reference) / max(abs(reference), 1e-30)
