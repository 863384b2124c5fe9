"""Kinds of weights: those that stand at the same place of every layer, or expert, by the numbers in names.

``blk.3.ffn.w1.weight`` of all layers is one kind; so is a weight that holds all layers, or all experts, along
its first dimension, where the other side has them one by one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

Shape = tuple[int, ...]
_COMPONENT = re.compile(r"(?P<word>.*?)_?(?P<number>\d+)")
_LAYER_WORDS = re.compile(r"(.*_)?(layers?|l|blocks?|blk|h|groups?|stages?|experts?|expert)_?", re.IGNORECASE)
_LEAVES = ("weight", "bias")
"""of which there may be one an expert: ``linear_fc1.weight0``"""
_FEWEST_BELOW = 3
"""weights below a number that makes a word a layer: a norm ``ln_1`` has at most two"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One weight of a kind: a stored one, or what it holds at ``at`` of its leading dimensions."""

    name: str
    at: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightKind:
    """Weights of one shape at the same place of each layer, layers (and experts in them) in order."""

    places: tuple[Place, ...]
    shape: Shape

    @property
    def name(self) -> str:
        """The first one's."""
        return self.places[0].name

    @property
    def size(self) -> tuple[int, Shape]:
        """How many, and of which shape."""
        return len(self.places), self.shape

    def by_name(self) -> list[tuple[str, tuple[int, ...]]]:
        """Stored weights in order, each with the numbers of its ``places``."""
        numbered = groupby(range(len(self.places)), key=lambda at: self.places[at].name)
        return [(name, tuple(numbers)) for name, numbers in numbered]


def kinds_of(shapes: Mapping[str, Shape]) -> list[WeightKind]:
    """The weights of one side by kind; a kind whose shapes differ is one a shape.

    Example:
        >>> [kind.size for kind in kinds_of({"h.0.w": (2, 3), "h.1.w": (2, 3), "norm.w": (3,)})]
        [(2, (2, 3)), (1, (3,))]
    """
    found: dict[tuple[str, Shape], list[tuple[tuple[int, ...], str]]] = {}
    for name, (template, numbers) in _templates(list(shapes)).items():
        found.setdefault((template, shapes[name]), []).append((numbers, name))
    return [
        WeightKind(places=tuple(Place(name=name) for _, name in sorted(those)), shape=shape)
        for (_, shape), those in found.items()
    ]


def _templates(names: Sequence[str]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Each name with a star for each number that counts layers or experts, and those numbers."""
    words = {name: name.split(".") for name in names}
    done: dict[str, list[str]] = {name: [] for name in names}
    numbers: dict[str, list[int]] = {name: [] for name in names}
    for depth in range(max(map(len, words.values()), default=0)):
        here = {name: its[depth] for name, its in words.items() if len(its) > depth}
        below: dict[tuple[str, ...], dict[int, list[str]]] = {}
        for name, word in here.items():
            if found := _COMPONENT.fullmatch(word):
                key = (*done[name], found["word"])
                rest = ".".join(words[name][depth + 1 :])
                below.setdefault(key, {}).setdefault(int(found["number"]), []).append(_without_numbers(rest))
        for name, word in here.items():
            found = _COMPONENT.fullmatch(word)
            key = (*done[name], found["word"]) if found else ()
            if found and _counts(found["word"], below[key]):
                numbers[name].append(int(found["number"]))
                word = f"{found['word']}*"
            done[name] = [*done[name], word]
    return {name: (".".join(done[name]), tuple(numbers[name])) for name in names}


def _without_numbers(rest: str) -> str:
    """Of experts all alike, that a layer with fewer of them is as others are."""
    return re.sub(r"(?<=\.)\d+(?=\.)", "*", rest)


def _counts(word: str, below: Mapping[int, Sequence[str]]) -> bool:
    """Whether the numbers behind ``word`` count layers or experts, by what stands below each."""
    if len(below) < 2:
        return False
    most = max(map(len, below.values()))
    if not word:
        is_row = max(below) - min(below) == len(below) - 1
        return (is_row or most >= _FEWEST_BELOW) and _are_alike(below)
    if _LAYER_WORDS.fullmatch(word):
        return _are_alike(below)
    if word in _LEAVES:
        return min(below) == 0
    return min(below) == 0 and most >= _FEWEST_BELOW and _are_alike(below)


def _are_alike(below: Mapping[int, Sequence[str]]) -> bool:
    """Whether half of what stands below each number stands below others too: T5's ``layer.0`` and
    ``layer.1`` are attention and MLP."""
    numbers = Counter(name for names in below.values() for name in set(names))
    return all(
        2 * sum(numbers[name] > 1 for name in set(names)) >= len(set(names)) for names in below.values()
    )


def with_stacks_apart(
    own: Sequence[WeightKind], other: Sequence[WeightKind]
) -> tuple[list[WeightKind], list[WeightKind]]:
    """Both sides with each weight that holds several along its first dimension taken apart, where the other
    side has as many one by one, or in another layout, and none of the whole shape."""
    first, second = list(own), list(other)
    for _ in range(2):  # layers, then experts
        taken = [_all_apart(first, second), _all_apart(second, first)]
        first, second = taken
    return first, second


def _all_apart(own: Sequence[WeightKind], other: Sequence[WeightKind]) -> list[WeightKind]:
    counts = {len(kind.places) for kind in other}
    counts |= {len(kind.places) * kind.shape[0] for kind in other if len(kind.shape) > 2}
    return [_apart(kind) if _is_stack(kind, counts, own, other) else kind for kind in own]


def _is_stack(
    kind: WeightKind, counts: Collection[int], own: Sequence[WeightKind], other: Sequence[WeightKind]
) -> bool:
    if len(kind.shape) < 2 or kind.shape[0] < 2:
        return False
    alike, there = (sum(fits(kind.size, its.size) for its in kinds) for kinds in (own, other))
    if alike == there:
        return False
    num, rest = len(kind.places) * kind.shape[0], kind.shape[1:]
    deep = len(kind.shape) > 2 and num in counts
    return deep or any(fits((num, rest), its.size) for its in other)


def _apart(kind: WeightKind) -> WeightKind:
    return WeightKind(
        places=tuple(
            Place(name=place.name, at=(*place.at, at)) for place in kind.places for at in range(kind.shape[0])
        ),
        shape=kind.shape[1:],
    )


def fits(one: tuple[int, Shape], other: tuple[int, Shape]) -> bool:
    """As many, and of the same shape or that shape transposed."""
    return one[0] == other[0] and (one[1] == other[1] or (len(one[1]) == 2 and one[1] == other[1][::-1]))
