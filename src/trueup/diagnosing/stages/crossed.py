"""Weights of two implementations that hold the same numbers, each in another order than what is beside it.

Content pairs a weight with what it is made of in whatever order gives its values. A port may keep rows or
experts in an order of its own, but in one order: a bias goes with the rows of its matrix, and what is
numbered anew is numbered so in every layer, its router's rows included.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from trueup.diagnosing.stages.naming import kind_named, site_of
from trueup.matching.bridge import Bridge
from trueup.matching.families import weight_kind
from trueup.matching.names import like
from trueup.matching.weights import StepWeights
from trueup.matching.weights.places import made_alike
from trueup.store import StepView, TraceSource
from trueup.types.codes import WeightsCode as Weights
from trueup.types.finding import Basis, EvidenceRank, Finding, Stage
from trueup.types.reason import Reason, reason
from trueup.weights.plan import Permute, PlannedWeight, made

_FIRST = 4
"""modules or pieces that are named"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossed:
    """Modules that hold what others of their kind should, a weight of each, and how it is said."""

    weights: Mapping[str, str]
    """module -> one of its weights"""
    headline: Reason
    evidence: tuple[Reason, ...]
    cause: Weights

    def finding(self, book: StepView) -> Finding:
        """One finding for all its modules."""
        kind = kind_named(
            "transposed_or_permuted", EvidenceRank.FITTED, self.headline, causes=(reason(self.cause),)
        )
        module, *_ = self.weights
        return Finding(
            stage=Stage.WEIGHTS,
            headline=self.headline,
            module=module,
            site=site_of(list(self.weights.values()), "value"),
            phase="param",
            step=book.step,
            rank=book.rank,
            kinds=(kind,),
            basis=Basis.RECORDED,
            evidence=self.evidence,
            causes=kind.causes,
            next_note=reason(Weights.SAME_WEIGHTS),
        )

    def explains(self, module: str) -> str | None:
        """A weight because of which what a module computes differs: the module is one of these, inside one,
        or the innermost around one."""
        for one, weight in self.weights.items():
            if module == one or module.startswith(f"{one}."):
                return weight
            below = one.removeprefix(f"{module}." if module else "")
            if (below != one or not module) and sum(not word.isdigit() for word in below.split(".")) == 1:
                return weight
        return None


def crossed(bridge: Bridge, target: TraceSource, reference: TraceSource, rank: int) -> list[Crossed]:
    """Vectors in another order than the matrix beside them, and numbered modules that are exchanged."""
    tables = StepWeights(target, rank=rank), StepWeights(reference, rank=rank)
    return [*_vectors(bridge, *tables), *_exchanged(bridge)]


# -- a vector and the matrix beside it ------------------------------------------


def _vectors(bridge: Bridge, target: StepWeights, source: StepWeights) -> Iterator[Crossed]:
    """Vectors made of the same pieces as the matrix beside them, whose values come out in another order
    only."""
    entries = {entry.target: entry for entry in bridge.weights.entries if entry.how == "values"}
    owned: dict[str, list[PlannedWeight]] = defaultdict(list)
    for name, entry in entries.items():
        owned[name.rpartition(".")[0]].append(entry)
    beside = {(name.rpartition(".")[0], weight_kind(name)): name for name in source.names()}
    for name, entry in entries.items():
        if len(target.facts(name).shape) != 1 or len(entry.pieces) < 2:
            continue
        for matrix in owned[name.rpartition(".")[0]]:
            if len(target.facts(matrix.target).shape) < 2:
                continue
            wanted = made_alike(name, matrix, beside)
            if wanted is not None and {p.source for p in wanted.pieces} == {p.source for p in entry.pieces}:
                values, expected = target.read(name), _made(wanted, source)
                if values is not None and expected is not None and not np.array_equal(values, expected):
                    rows = (
                        reason(Weights.ROW_SOURCES, parameter=one.target, sources=_order(one))
                        for one in (entry, matrix)
                    )
                    headline = reason(Weights.ROWS_UNLIKE, parameter=name, beside=matrix.target)
                    yield Crossed(
                        weights={name.rpartition(".")[0]: name},
                        headline=headline,
                        evidence=tuple(rows),
                        cause=Weights.ROW_ORDER_CAUSE,
                    )
                break


def _made(entry: PlannedWeight, source: StepWeights) -> np.ndarray | None:
    values = {piece.source: source.read(piece.source) for piece in entry.pieces}
    known = {name: one for name, one in values.items() if one is not None}
    return made(entry, known.__getitem__) if len(known) == len(values) else None


def _order(entry: PlannedWeight) -> list[str]:
    """The sources in the order in which they follow each other, each once in a row."""
    names = [piece.source for piece in entry.pieces]
    return [one for at, one in enumerate(names) if not at or names[at - 1] != one][:_FIRST]


# -- modules with numbers ------------------------------------------


@dataclass(frozen=True, slots=True)
class _List:
    """Modules of the target under one name but for one number, and the other numbers around it."""

    target: str
    at: int
    around: tuple[str, ...]


def _exchanged(bridge: Bridge) -> Iterator[Crossed]:
    """Modules of one list whose weights are those of others of it, where those of other lists, or others of
    this one, keep their numbers, and nothing beside the list is reordered as they are."""
    lists = _lists(bridge)
    like_it: dict[tuple[str, int], list[Mapping[str, str]]] = defaultdict(list)
    for of, numbers in lists.items():
        like_it[of.target, of.at].append(numbers)
    reported = set()
    for of, numbers in lists.items():
        moved = {own: other for own, other in numbers.items() if own != other}
        if not moved or sorted(numbers) != sorted(numbers.values()):
            continue
        others = like_it[of.target, of.at]
        is_only_list = len(moved) < len(numbers) or any(other != numbers for other in others)
        names = [_module(of, number) for number in moved]
        if not is_only_list or tuple(names) in reported or _beside_reordered(bridge, names[0], len(numbers)):
            continue
        reported.add(tuple(names))
        weights = {
            module: next(
                name
                for atom in bridge.weights.atoms
                for name in atom.targets
                if name.startswith(f"{module}.")
            )
            for module in names
        }
        shown = [f"{_module(of, own)}: {other}" for own, other in moved.items()][:_FIRST]
        yield Crossed(
            weights=weights,
            headline=reason(Weights.EXCHANGED, modules=names[:_FIRST], num=len(names)),
            evidence=(reason(Weights.OTHER_NUMBERS, numbers=shown),),
            cause=Weights.CONVERTED_CAUSE,
        )


def _lists(bridge: Bridge) -> dict[_List, dict[str, str]]:
    """Of each list the number that each of its modules has in the reference, where content alone says so and
    for all its weights the same."""
    found: dict[_List, dict[str, str]] = defaultdict(dict)
    unclear: set[_List] = set()
    for atom in bridge.weights.atoms:
        numbers = {tuple(_numbers(name)) for name in atom.sources}
        if atom.how not in ("values", "content") or atom.confidence < 1 or len(numbers) != 1:
            continue
        (other,) = numbers
        for name in atom.targets:
            own = _numbers(name)
            for at in range(len(own)) if len(own) == len(other) else ():
                if (*own[:at], *own[at + 1 :]) == (*other[:at], *other[at + 1 :]):
                    of = _List(_prefix(name, at), at, (*own[:at], *own[at + 1 :]))
                    if found[of].setdefault(own[at], other[at]) != other[at]:
                        unclear.add(of)
    return {of: numbers for of, numbers in found.items() if of not in unclear}


def _numbers(name: str) -> list[str]:
    return [word for word in name.split(".") if word.isdigit()]


def _prefix(name: str, at: int) -> str:
    """The name up to its ``at``-th number, numbers before it left open."""
    words = name.split(".")
    place = [n for n, word in enumerate(words) if word.isdigit()][at]
    return like(".".join(words[: place + 1]))


def _module(of: _List, number: str) -> str:
    """The full name of the module of a number."""
    numbers = iter((*of.around[: of.at], number))
    return ".".join(next(numbers) if word == "*" else word for word in of.target.split("."))


def _beside_reordered(bridge: Bridge, module: str, num: int) -> bool:
    """Whether a weight beside the list, with a row or column for each of its modules, holds the reference's
    in another order: a router's rows go with its experts."""
    home = module.rpartition(".")[0].rpartition(".")[0]
    entries = {entry.target: entry for entry in bridge.weights.entries}
    for atom in bridge.weights.atoms:
        for name in atom.targets if len(atom.targets) == len(atom.sources) == 1 else ():
            inside = name.startswith(f"{home}.") if home else True
            if not inside or any(word.isdigit() for word in name.removeprefix(home).split(".")):
                continue
            entry = entries.get(name)
            if num in bridge.target_shapes.get(name, ()) and (entry is None or not _in_order(entry)):
                return True
    return False


def _in_order(entry: PlannedWeight) -> bool:
    steps = (*entry.pieces[0].steps, *entry.steps)
    return len(entry.pieces) == 1 and all(isinstance(step, Permute) for step in steps)
