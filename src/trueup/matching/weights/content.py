"""Weights that hold the same values: one to one, or one as the pieces of others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from trueup.matching.names import like
from trueup.matching.weights.rows import row_hashes
from trueup.matching.weights.table import Values, WeightTable

Group = tuple[list[str], list[str]]
MASK = 0xFFFFFFFFFFFFFFFF
MOST_PIECES = 3
MOST_IN_UNIT = 40
SEEN_ROWS = 64
"""rows of a weight that are looked up before its pieces are searched in full"""


def content_classes(
    target: WeightTable, source: WeightTable, left: Sequence[str], right: Sequence[str]
) -> Iterator[Group]:
    """Weights of equal content, in order; several with one content only where both sides have as many."""
    here, there = _by_content(target, left), _by_content(source, right)
    for content in (c for c in here if c in there):
        targets, sources = here[content], there[content]
        if len(targets) == len(sources):
            yield targets, sources
        elif len(_untied(target, targets)) == len(_untied(source, sources)) == 1:
            count = min(len(targets), len(sources))
            yield targets[:count], sources[:count]


def _untied(table: WeightTable, names: list[str]) -> list[str]:
    return [name for name in names if table.facts(name).tied_to is None]


def _by_content(table: WeightTable, names: Sequence[str]) -> dict[int, list[str]]:
    out: dict[int, list[str]] = defaultdict(list)
    for name in names:
        facts = table.facts(name)
        if facts.content and facts.uniform is None:
            out[facts.content].append(name)
    return out


def pieces_by_values(
    target: WeightTable, source: WeightTable, left: Sequence[str], right: Sequence[str]
) -> list[Group]:
    """Weights whose rows are rows of others, gathered into groups that hold the same rows."""
    target_rows, source_rows = _rows_of(target, left), _rows_of(source, right)
    links: list[tuple[str, str]] = []
    for one, other, turn in ((target_rows, source_rows, False), (source_rows, target_rows, True)):
        index = _owners_of_rows(other)
        for name, options in one.items():
            owners = _owners(options, index)
            links += [(owner, name) if turn else (name, owner) for owner in owners]
    return [g for g in _joined(links) if _same_content(target, source, *g)]


def _rows_of(table: WeightTable, names: Sequence[str]) -> dict[str, list[np.ndarray]]:
    """Hashes of the rows of each weight, as it is and transposed."""
    out = {}
    for name in names:
        values = table.read(name)
        if values is not None and values.ndim >= 1 and not _uniform(values):
            out[name] = [row_hashes(matrix) for matrix in _matrices(values)]
    return out


def _uniform(values: Values) -> bool:
    return values.size == 0 or bool((values == values.reshape(-1)[0]).all())


def _matrices(values: Values) -> list[Values]:
    if values.ndim == 1:
        return [values.reshape(-1, 1)]
    swapped = np.swapaxes(values, -1, -2)
    return [values.reshape(-1, values.shape[-1]), swapped.reshape(-1, swapped.shape[-1])]


def _owners_of_rows(rows: dict[str, list[np.ndarray]]) -> dict[int, str | None]:
    """Row hash -> the weight it is of; None where two weights have such a row."""
    out: dict[int, str | None] = {}
    for name, options in rows.items():
        for hashes in options:
            for row in np.unique(hashes).tolist():
                out[row] = name if out.get(row, name) == name else None
    return out


def _owners(options: list[np.ndarray], index: dict[int, str | None]) -> list[str]:
    """The weights in which all nonzero rows are found; none where a row is in none or in several."""
    for hashes in options:
        rows = hashes[hashes != 0]
        seen = [index.get(row) for row in rows[:SEEN_ROWS].tolist()]
        if not len(rows) or None in seen:
            continue
        owners = [index.get(row) for row in rows.tolist()]
        if None not in owners:
            return list(dict.fromkeys(str(owner) for owner in owners))
    return []


def _joined(links: list[tuple[str, str]]) -> list[Group]:
    """Connected groups of (target, source) links."""
    group_of: dict[tuple[str, str], int] = {}
    groups: dict[int, Group] = {}
    for number, (t, s) in enumerate(links):
        keys = ("t", t), ("s", s)
        merged: Group = ([t], [s])
        for old in {group_of[k] for k in keys if k in group_of}:
            merged = merged[0] + groups[old][0], merged[1] + groups.pop(old)[1]
        merged = list(dict.fromkeys(merged[0])), list(dict.fromkeys(merged[1]))
        groups[number] = merged
        group_of.update({("t", name): number for name in merged[0]})
        group_of.update({("s", name): number for name in merged[1]})
    return list(groups.values())


def _same_content(target: WeightTable, source: WeightTable, targets: list[str], sources: list[str]) -> bool:
    sums = []
    for table, names in ((target, targets), (source, sources)):
        contents = [table.facts(name).content for name in names]
        if None in contents:
            return True
        sums.append(sum(c for c in contents if c is not None) & MASK)
    return sums[0] == sums[1]


def pieces_by_sum(
    target: WeightTable, source: WeightTable, left: Sequence[str], right: Sequence[str]
) -> Iterator[Group]:
    """Where only hashes are known: a weight whose hash is the sum of two or three of one layer, or of all
    experts'."""
    here, there = _by_content(target, left), _by_content(source, right)
    pieces = _sums(source, {n: c for c, names in there.items() for n in names if len(names) == 1})
    for content, names in here.items():
        if len(names) == 1 and content in pieces:
            yield names, list(pieces[content])
    pieces = _sums(target, {n: c for c, names in here.items() for n in names if len(names) == 1})
    for content, names in there.items():
        if len(names) == 1 and content in pieces:
            yield list(pieces[content]), names


def _sums(table: WeightTable, contents: dict[str, int]) -> dict[int, tuple[str, ...]]:
    """Sum of hashes -> the weights: two or three of a layer, or all that are alike but for a number."""
    units: dict[str, list[str]] = defaultdict(list)
    alike: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in contents:
        unit = _unit(name)
        units[unit].append(name)
        alike[unit, like(name)].append(name)
    sets: list[tuple[str, ...]] = []
    for names in units.values():
        if len(names) <= MOST_IN_UNIT:
            sets += [c for size in range(2, MOST_PIECES + 1) for c in combinations(names, size)]
    stacks = [tuple(names) for names in alike.values() if len(names) > MOST_PIECES]
    sets += stacks
    sets += [a + b for a, b in combinations(stacks, 2) if _unit(a[0]) == _unit(b[0])]
    return {sum(contents[n] for n in names) & MASK: names for names in sets}


def _unit(name: str) -> str:
    """The layer a weight is in: its name up to the first number."""
    parts = name.split(".")
    at = next((k for k, part in enumerate(parts) if part.isdigit()), -1)
    return ".".join(parts[: at + 1])
