"""What was found for one layer's weights holds for those of another layer that have the same names but for
numbers: a weight that differs in one layer alone still finds its partner."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trueup.matching.names import like
from trueup.matching.weights.table import WeightTable
from trueup.weights.plan import PlannedWeight

if TYPE_CHECKING:
    from trueup.matching.weights.infer import Atom, InferredWeights

BY_ANALOGY = 0.9


def by_analogy(target: WeightTable, source: WeightTable, found: InferredWeights) -> None:
    """Add the atoms, and their entries, that a weight's like in another layer has."""
    patterns: dict[str, Atom] = {}
    for atom in found.atoms:
        for name in atom.targets:
            patterns.setdefault(like(name), atom)
    entries = {entry.target: entry for entry in found.entries}
    for name in list(found.left_target):
        if like(name) not in patterns or name not in found.left_target:
            continue
        atom = patterns[like(name)]
        model = next(t for t in atom.targets if like(t) == like(name))
        renamed = _Renamed(_numbers(model), _numbers(name))
        targets, sources = (renamed.all(names) for names in (atom.targets, atom.sources))
        if targets is None or sources is None or not _there(targets, sources, found):
            continue
        if not (_alike(target, targets) and _alike(source, sources)):
            continue
        found.add(targets.values(), sources.values(), "place", BY_ANALOGY)
        for old in (entries[t] for t in atom.targets if t in entries):
            found.entries.append(_entry(old, targets, sources))


def _there(targets: Mapping[str, str], sources: Mapping[str, str], found: InferredWeights) -> bool:
    target, reference = set(targets.values()), set(sources.values())
    left = target <= set(found.left_target) and reference <= set(found.left_source)
    return left and len(reference) == len(sources)


def _alike(table: WeightTable, renamed: Mapping[str, str]) -> bool:
    return all(table.facts(a).shape == table.facts(b).shape for a, b in renamed.items())


class _Renamed:
    """Names of one layer as those of another; none where a number cannot be told."""

    def __init__(self, old: list[str], new: list[str]) -> None:
        self._to = dict(zip(old, new, strict=True))
        self._certain = len(set(old)) == len(old) or all(
            self._to[a] == b for a, b in zip(old, new, strict=True)
        )

    def all(self, names: Sequence[str]) -> dict[str, str] | None:
        """Old name -> new name. A number in which likes among ``names`` differ is an expert's, no layer's."""
        if not self._certain:
            return None
        likes: dict[str, list[list[str]]] = defaultdict(list)
        for name in names:
            likes[like(name)].append(_numbers(name))
        return {name: self._one(name, likes[like(name)]) for name in names}

    def _one(self, name: str, likes: Sequence[Sequence[str]]) -> str:
        common = iter(len(set(numbers)) == 1 for numbers in zip(*likes, strict=True))
        return ".".join(
            self._to.get(part, part) if part.isdigit() and next(common) else part for part in name.split(".")
        )


def _numbers(name: str) -> list[str]:
    return [part for part in name.split(".") if part.isdigit()]


def _entry(old: PlannedWeight, targets: Mapping[str, str], sources: Mapping[str, str]) -> PlannedWeight:
    pieces = tuple(replace(piece, source=sources[piece.source]) for piece in old.pieces)
    return replace(old, target=targets[old.target], pieces=pieces, how="name", confidence=BY_ANALOGY)
