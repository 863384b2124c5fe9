"""The weights of one model found again in those of another, by what they hold before what they are called.

Evidence, strongest first: equal content (transposed, moved, in pieces; from values, else from the order-free
hash that adds over pieces), names of known families, the place beside weights already found. Undecided beats
wrong: a weight with two equally good partners gets none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from trueup.matching.weights.analogy import by_analogy
from trueup.matching.weights.content import content_classes, pieces_by_sum, pieces_by_values
from trueup.matching.weights.moves import entry_from_values
from trueup.matching.weights.places import by_names, by_neighbours, by_same_words, by_siblings
from trueup.matching.weights.table import WeightTable
from trueup.weights.plan import ConversionPlan, Permute, PlannedWeight, SourcePiece

UNREAD_TRANSPOSE = 0.8
"""confidence of a transpose that only the shape and the order-free hash speak for"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Atom:
    """Weights of the target that hold the same numbers as weights of the source, all together."""

    targets: tuple[str, ...]
    sources: tuple[str, ...]
    how: str
    """``values``, ``content`` (their hashes), ``name``, ``place``, ``map``"""
    confidence: float = 1.0


@dataclass(slots=True)
class InferredWeights:
    """Atoms, the plan for those whose steps are known, and what was left."""

    atoms: list[Atom] = field(default_factory=list)
    entries: list[PlannedWeight] = field(default_factory=list)
    left_target: list[str] = field(default_factory=list)
    left_source: list[str] = field(default_factory=list)
    mapped_to_none: list[str] = field(default_factory=list)
    """without counterpart: a person said so"""

    def add(self, targets: Iterable[str], sources: Iterable[str], how: str, confidence: float) -> None:
        """Note that these hold the same numbers; none of them is looked at again."""
        atom = Atom(targets=tuple(targets), sources=tuple(sources), how=how, confidence=confidence)
        self.atoms.append(atom)
        self.left_target = [n for n in self.left_target if n not in atom.targets]
        self.left_source = [n for n in self.left_source if n not in atom.sources]

    def take(self, entry: PlannedWeight, how: str) -> None:
        """Note an entry, and that its weights hold the same numbers."""
        self.add([entry.target], dict.fromkeys(p.source for p in entry.pieces), how, entry.confidence)
        self.entries.append(entry)

    def plan(self) -> ConversionPlan:
        """The conversion plan: weights without known steps are left to a person."""
        made = {entry.target for entry in self.entries}
        used = {piece.source for entry in self.entries for piece in entry.pieces}
        targets = [
            *self.left_target,
            *self.mapped_to_none,
            *(t for a in self.atoms for t in a.targets if t not in made),
        ]
        sources = [*self.left_source, *(s for a in self.atoms for s in a.sources if s not in used)]
        return ConversionPlan(
            entries=tuple(self.entries),
            only_target=tuple(dict.fromkeys(targets)),
            only_source=tuple(dict.fromkeys(sources)),
        )


def infer_plan(target: WeightTable, source: WeightTable) -> ConversionPlan:
    """How each weight of ``target`` is made of the weights of ``source``, without a mapping file.

    Every entry that rests on values was carried out and gave the target's values exactly. A target weight
    without one certain origin is left to ``only_target``.

    Example:
        >>> infer_plan(TraceWeights(reference), TraceWeights(target)).entries[0]      # doctest: +SKIP
        Entry(target='decoder.layers.0.mlp.linear_fc1.weight', ...)
    """
    return infer(target, source).plan()


def infer(
    target: WeightTable, source: WeightTable, *, given: Mapping[str, tuple[str, ...]] | None = None
) -> InferredWeights:
    """The same with the weights that belong together though their steps are not known.

    ``given``: target weights whose origins a person has named; none for one that has no counterpart.
    """
    found = InferredWeights(left_target=list(target.names()), left_source=list(source.names()))
    _take_given(found, given or {})
    for targets, sources in content_classes(target, source, found.left_target, found.left_source):
        for one, other in zip(targets, sources, strict=True):
            found.add([one], [other], "content", 1.0 if len(targets) == 1 else 0.8)
    for targets, sources in pieces_by_values(target, source, found.left_target, found.left_source):
        found.add(targets, sources, "values", 1.0)
    for targets, sources in pieces_by_sum(target, source, found.left_target, found.left_source):
        found.add(targets, sources, "content", 0.95)
    _find_steps(found, target, source)
    by_analogy(target, source, found)
    for by_place in (by_siblings, by_same_words, by_names, by_neighbours):
        for entry, how in by_place(target, source, found):
            found.take(entry, how)
    return found


def _take_given(found: InferredWeights, given: Mapping[str, tuple[str, ...]]) -> None:
    """Atoms of what a person named; targets of common sources are one atom."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, sources in given.items():
        if name in found.left_target:
            groups.setdefault(sources, []).append(name)
    for sources, targets in groups.items():
        if sources:
            found.add(targets, sources, "map", 1.0)
        else:
            found.mapped_to_none += targets
            found.left_target = [n for n in found.left_target if n not in targets]


def _find_steps(found: InferredWeights, target: WeightTable, source: WeightTable) -> None:
    """Entries of the atoms whose values can be read, or whose digests agree."""
    for atom in found.atoms:
        values = {name: source.read(name) for name in atom.sources}
        known = {name: v for name, v in values.items() if v is not None}
        for name in atom.targets:
            wanted = target.read(name)
            if wanted is not None and len(known) == len(values):
                entry = entry_from_values(name, wanted, known)
            else:
                entry = _entry_unread(name, atom, target, source)
            if entry is not None:
                found.entries.append(entry)


def _entry_unread(name: str, atom: Atom, target: WeightTable, source: WeightTable) -> PlannedWeight | None:
    if len(atom.sources) != 1 or len(atom.targets) != 1:
        return None
    actual, expected = target.facts(name), source.facts(atom.sources[0])
    piece = SourcePiece(source=atom.sources[0])
    if actual.shape == expected.shape and actual.digest is not None and actual.digest == expected.digest:
        return PlannedWeight(target=name, pieces=(piece,), how="values")
    if len(actual.shape) == 2 and actual.shape == expected.shape[::-1] and actual.shape[0] != actual.shape[1]:
        turned = SourcePiece(source=piece.source, steps=(Permute(dims=(1, 0)),))
        return PlannedWeight(target=name, pieces=(turned,), how="values", confidence=UNREAD_TRANSPOSE)
    return None
