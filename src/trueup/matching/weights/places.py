"""Weights whose content says nothing (norms of ones, biases of zeros), by where they stand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from trueup.errors import ConfigError
from trueup.matching.families import common_weights, weight_kind
from trueup.matching.weights.table import WeightTable
from trueup.weights.plan import Permute, PlannedWeight, Reshape, Slice, SourcePiece, made

if TYPE_CHECKING:
    from trueup.matching.weights.infer import InferredWeights

BY_SIBLING, BY_NAME, BY_NEIGHBOURS = 0.95, 0.9, 0.8
Found = Iterator[tuple[PlannedWeight, str]]


def by_siblings(target: WeightTable, source: WeightTable, found: InferredWeights) -> Found:
    """A bias beside a weight whose pieces are known: the same pieces of the biases beside them."""
    entries = {entry.target: entry for entry in found.entries}
    owned: dict[str, list[PlannedWeight]] = defaultdict(list)
    for entry in entries.values():
        owned[_owner(entry.target)].append(entry)
    source_of = {(_owner(name), weight_kind(name)): name for name in found.left_source}
    for name in list(found.left_target):
        for entry in owned[_owner(name)]:
            alike = made_alike(name, entry, source_of)
            if alike is not None and _fits(alike, target, source):
                yield alike, "place"
                break


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def made_alike(
    name: str, entry: PlannedWeight, reference: dict[tuple[str, str], str]
) -> PlannedWeight | None:
    """The entry of a vector beside a matrix: rows move as the matrix's do."""
    kind = weight_kind(name)
    pieces = []
    for piece in entry.pieces:
        beside = reference.get((_owner(piece.source), kind))
        steps = _of_rows(piece)
        if beside is None or steps is None:
            return None
        pieces.append(SourcePiece(source=beside, steps=steps))
    if entry.join == "stack" or entry.steps:
        return None
    return PlannedWeight(
        target=name,
        pieces=tuple(pieces),
        join=entry.join,
        padding=entry.padding,
        how="name",
        confidence=BY_SIBLING,
    )


def _of_rows(piece: SourcePiece) -> tuple[Reshape | Permute | Slice, ...] | None:
    """Steps on a matrix as steps on a vector beside it; None where they touch its columns."""
    out: list[Reshape | Permute | Slice] = []
    for step in piece.steps:
        if isinstance(step, Slice) and step.dim == 0:
            out.append(step)
        elif isinstance(step, Reshape):
            out.append(Reshape(shape=step.shape[:-1]))
        elif isinstance(step, Permute) and len(step.dims) > 2 and step.dims[-1] == len(step.dims) - 1:
            out.append(Permute(dims=step.dims[:-1]))
        elif not (isinstance(step, Permute) and step.dims == (1, 0)):
            return None
    return tuple(out)


def _fits(entry: PlannedWeight, target: WeightTable, source: WeightTable) -> bool:
    """Whether the pieces give the target's shape, and do not plainly hold something else."""

    def blank(name: str) -> np.ndarray:
        return np.broadcast_to(np.float32(0), source.facts(name).shape)

    own = target.facts(entry.target)
    for piece in entry.pieces:
        other = source.facts(piece.source)
        if None not in (own.uniform, other.uniform) and own.uniform != other.uniform:
            return False
        if len(entry.pieces) == 1 and (own.uniform is None) != (other.uniform is None) and own.content:
            return False
    try:
        return made(entry, blank).shape == own.shape
    except ConfigError:
        return False


def by_same_words(target: WeightTable, source: WeightTable, found: InferredWeights) -> Found:
    """The weight of the same words in the module that holds the same weights under the same words: of the
    innermost module around it that holds any, where all of these have one module for a partner."""
    homes: dict[str, set[str]] = defaultdict(set)
    for atom in found.atoms:
        if len(atom.targets) == len(atom.sources) == 1:
            for own, other in _homes(atom.targets[0], atom.sources[0]):
                homes[own].add(other)
    for name in list(found.left_target):
        words = name.split(".")
        around = (".".join(words[:at]) for at in range(len(words) - 1, 0, -1))
        home = next((one for one in around if one in homes), None)
        if home is None or len(homes[home]) > 1:
            continue
        (partner,) = homes[home]
        other = f"{partner}{name.removeprefix(home)}"
        entry = one_of(name, other, target, source, BY_NAME) if other in found.left_source else None
        if entry is not None:
            yield entry, "name"


def _homes(target: str, source: str) -> Iterator[tuple[str, str]]:
    """Modules around two weights within which both have the same name, innermost first."""
    own, other = target.split("."), source.split(".")
    for size in range(1, min(len(own), len(other))):
        if own[-size] != other[-size]:
            return
        yield ".".join(own[:-size]), ".".join(other[:-size])


def by_names(target: WeightTable, source: WeightTable, found: InferredWeights) -> Found:
    """The same common name where both sides' families are known; fused ones where their order is plain."""
    target_names, source_names = common_weights(target.names()), common_weights(source.names())
    by_part = {
        (whole, weight_kind(name)): name
        for name, common in source_names.items()
        if not common.parts
        for whole in common.wholes
    }
    for name in list(found.left_target):
        if name not in target_names or target_names[name].parts:
            continue
        other = by_part.get((target_names[name].name, weight_kind(name)))
        if other is None or other not in found.left_source:
            continue
        entry = one_of(name, other, target, source, BY_NAME)
        if entry is not None:
            yield entry, "name"


def one_of(
    name: str, other: str, target: WeightTable, source: WeightTable, confidence: float
) -> PlannedWeight | None:
    """An entry of one piece: as it is, or transposed where the shape says so."""
    target_facts, source_facts = target.facts(name), source.facts(other)
    if (
        target_facts.content
        and source_facts.content
        and target_facts.content != source_facts.content
        and target_facts.uniform != source_facts.uniform
    ):
        return None
    for steps in ((), (Permute(dims=(1, 0)),)) if len(source_facts.shape) == 2 else ((),):
        entry = PlannedWeight(
            target=name, pieces=(SourcePiece(source=other, steps=steps),), how="name", confidence=confidence
        )
        if _fits(entry, target, source):
            return entry
    return None


def by_neighbours(target: WeightTable, source: WeightTable, found: InferredWeights) -> Found:
    """The only weight of its shape, kind and one value between two weights that are paired, on both sides."""
    atom_t = {name: k for k, atom in enumerate(found.atoms) for name in atom.targets}
    atom_s = {name: k for k, atom in enumerate(found.atoms) for name in atom.sources}
    here = _between(target, target.names(), atom_t)
    there = _between(source, source.names(), atom_s)
    for place, names in here.items():
        others = there.get(place, [])
        if len(names) == len(others) == 1:
            entry = one_of(names[0], others[0], target, source, BY_NEIGHBOURS)
            if entry is not None:
                yield entry, "place"


Place = tuple[int, int, tuple[int, ...], float | None, str]


def _between(table: WeightTable, names: Sequence[str], atoms: dict[str, int]) -> dict[Place, list[str]]:
    out: dict[Place, list[str]] = defaultdict(list)
    after, following = -1, {}
    for name in reversed(names):
        following[name] = after
        after = atoms.get(name, after)
    before = -1
    for name in names:
        if name not in atoms:
            facts = table.facts(name)
            kind = weight_kind(name)
            place = before, following[name], tuple(sorted(facts.shape)), facts.uniform, kind
            out[place].append(name)
        before = atoms.get(name, before)
    return out
