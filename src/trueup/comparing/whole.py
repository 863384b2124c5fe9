"""Parts of a fused weight whose values were not kept: the statistics of the whole, on both sides.

A fused weight is compared part by part where values are stored. Where they are not, its statistics are those
of all its parts together: the norms add as squares, the extremes are those of all. Each part's row then says
whether the whole agrees. Padding, whose zeros only one side has, is left out the same way.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from trueup.comparing.rows import COUNTS, Half, StepRows
from trueup.matching.codes import Codes
from trueup.types.arrays import Floats


def with_whole_statistics(rows: StepRows) -> StepRows:
    """The rows with such parts' statistics taken over the whole."""
    partial = np.array([not layout.whole for layout in rows.layouts] + [False])[rows.layout]
    at = np.flatnonzero(partial & rows.paired)
    if not len(at):
        return rows
    halves = {id(half): _copied(half) for half in (rows.target, rows.reference)}
    for group in _groups(rows, at):
        for half in (rows.target, rows.reference):
            _sum_over(halves[id(half)], group)
    sizes = np.minimum(halves[id(rows.target)].numel[at], halves[id(rows.reference)].numel[at])
    for half in halves.values():
        half.statistics["mean"][at] *= half.numel[at] / np.maximum(sizes, 1)
        half.numel[at] = sizes
    return replace(rows, target=halves[id(rows.target)], reference=halves[id(rows.reference)])


def _copied(half: Half) -> Half:
    statistics = {name: values.copy() for name, values in half.statistics.items()}
    return replace(half, statistics=statistics, numel=half.numel.copy())


def _groups(rows: StepRows, at: Codes) -> list[Codes]:
    """Rows of one fused record: those with a record in common on either side."""
    first: dict[tuple[str, int], int] = {}
    groups: dict[int, list[int]] = defaultdict(list)
    for row in at.tolist():
        keys = ("t", int(rows.target.record[row])), ("r", int(rows.reference.record[row]))
        home = next((first[key] for key in keys if key in first), row)
        first.update(dict.fromkeys(keys, home))
        groups[home].append(row)
    return [np.array(group, np.int64) for group in groups.values()]


def _sum_over(half: Half, group: Codes) -> None:
    """Statistics of the distinct records of a group, at each of its rows."""
    _, first = np.unique(half.record[group], return_index=True)
    parts = group[first]
    values = half.statistics
    size = half.numel[parts]
    whole: dict[str, float] = {name: float(values[name][parts].sum()) for name in COUNTS}
    whole["l2_norm"] = float(np.sqrt(_squared(values["l2_norm"][parts])))
    whole["minimum"] = float(values["minimum"][parts].min())
    whole["maximum"] = float(values["maximum"][parts].max())
    whole["mean"] = float((values["mean"][parts] * size).sum() / max(float(size.sum()), 1.0))
    for name, value in whole.items():
        values[name][group] = value
    half.numel[group] = size.sum()


def _squared(values: Floats) -> float:
    return float(np.square(values).sum())
