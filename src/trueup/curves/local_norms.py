"""Local norms that both logs print, weight by weight."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from trueup.curves.curve import Curve
from trueup.curves.thresholds import NORMS_ALIKE, NORMS_APART, NORMS_WEIGHTY
from trueup.types.codes import CurvesCode
from trueup.types.reason import Reason, reason

_LISTED = 8
Row = tuple[str, float, float, float]
"""name, target, reference, relative difference"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNorms:
    """The local norms of one step, farthest apart first."""

    step: int
    paired_by: str
    """``name``, ``order``, or ``value``: those nearest to each other first, the rest by order"""
    num_pairs: int
    num_beyond: int
    rows: tuple[Row, ...]
    finding: Row | None = None
    """the largest difference that counts beside the norm over all weights, where no weight was updated yet"""

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


def compare_local_norms(
    target: Curve, reference: Curve, step: int, offset: int, *, first: bool = False
) -> LocalNorms | None:
    """The norms of the logged step nearest to ``step`` (the target's numbers); None where either prints none,
    or as many that nothing tells which belongs to which.

    Pairs by name where both have names in common, else by order where both print as many; where the order
    does not fit, by value. ``first``: only of ``step`` itself, at which both runs have the same weights.
    """
    if target.local_norms is None or reference.local_norms is None:
        return None
    shifted = reference.local_norms.with_columns(pl.col("step") + offset)
    shared = sorted(set(target.local_norms["step"]) & set(shifted["step"]))
    if not shared or (first and step not in shared):
        return None
    at = min(shared, key=lambda s: (abs(s - step), s))
    own, other = (frame.filter(pl.col("step") == at).sort("index") for frame in (target.local_norms, shifted))
    paired = _paired(own, other)
    if paired is None:
        return None
    rows, how = paired
    rows.sort(key=lambda row: -row[3])
    total = math.sqrt(sum(row[2] ** 2 for row in rows if math.isfinite(row[2])))
    weighty = (r for r in rows if r[3] > NORMS_APART and not abs(r[1] - r[2]) < NORMS_WEIGHTY * total)
    return LocalNorms(
        step=at,
        paired_by=how,
        num_pairs=len(rows),
        num_beyond=sum(row[3] > NORMS_APART for row in rows),
        rows=tuple(rows[:_LISTED]),
        finding=next(weighty, None) if first else None,
    )


def _paired(target: pl.DataFrame, other: pl.DataFrame) -> tuple[list[Row], str] | None:
    named = target["name"].null_count() == 0 and other["name"].null_count() == 0
    if named and set(target["name"]) & set(other["name"]):
        pairs = target.join(other, on="name", suffix="_reference")
        values = zip(pairs["name"], pairs["local_norm"], pairs["local_norm_reference"], strict=True)
        return [(name, a, b, _apart(a, b)) for name, a, b in values], "name"
    if target.height != other.height:
        return None
    names = [
        own or names_there or f"weight {index}"
        for own, names_there, index in zip(target["name"], other["name"], target["index"], strict=True)
    ]
    a, b = target["local_norm"].to_list(), other["local_norm"].to_list()
    order = list(range(len(a)))
    nearest = _by_value(a, b)
    if _num_apart(a, b, nearest) + 1 < _num_apart(a, b, order):
        own = target["name"].to_list()
        names_there = [other["name"][at] for at in nearest]
        names = [x or y or f"weight {at}" for at, (x, y) in enumerate(zip(own, names_there, strict=True))]
        order, how = nearest, "value"
    else:
        how = "order"
    rows = [(name, x, b[at], _apart(x, b[at])) for name, x, at in zip(names, a, order, strict=True)]
    return rows, how


def _by_value(a: Sequence[float], b: Sequence[float]) -> list[int]:
    """Which of ``b`` each of ``a`` is: the same number but for little, nearest first; the rest by order."""
    near = sorted(
        (apart, i, j)
        for i, x in enumerate(a)
        for j, y in enumerate(b)
        if (apart := _apart(x, y)) <= NORMS_ALIKE
    )
    found: dict[int, int] = {}
    taken: set[int] = set()
    for _, i, j in near:
        if i not in found and j not in taken:
            found[i] = j
            taken.add(j)
    left = iter([j for j in range(len(b)) if j not in taken])
    return [found[i] if i in found else next(left) for i in range(len(a))]


def _num_apart(a: Sequence[float], b: Sequence[float], order: Sequence[int]) -> int:
    return sum(_apart(x, b[at]) > NORMS_APART for x, at in zip(a, order, strict=True))


def _apart(target: float, reference: float) -> float:
    if not (math.isfinite(target) and math.isfinite(reference)):
        return math.inf
    return abs(target - reference) / max(abs(reference), 1e-30)


def norm_notes(target: Curve, reference: Curve, found: LocalNorms | None) -> Iterator[Reason]:
    """Why local norms that a log prints are not compared."""
    read = [curve.local_norms is not None and curve.local_norms.height > 0 for curve in (target, reference)]
    if any(read) and not all(read):
        has, lacks = (target, reference) if read[0] else (reference, target)
        yield reason(CurvesCode.NORMS_ONE_SIDE, curve=has.name, other=lacks.name)
    target_norms, reference_norms = target.local_norms, reference.local_norms
    if all(read) and found is None and target_norms is not None and reference_norms is not None:
        yield reason(
            CurvesCode.NORMS_UNPAIRED,
            target=_num_weights(target_norms),
            reference=_num_weights(reference_norms),
        )


def _num_weights(norms: pl.DataFrame) -> int:
    return len(set(norms["index"]))
