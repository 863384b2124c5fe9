"""Where the parts of a tensor lie along one axis of a mesh of processes, and what they are of the whole.

    replicate       each has the whole; of a gradient it has only its term of the sum
    invariant       each has the whole, and its whole gradient
    shard(d)        each has a part of dim d, in order; ``zigzag``: the i-th and the i-th last of 2n parts;
                    ``blocks=k``: a part of each of k blocks, as of gate and up projections in one weight
    partial         each has a term, the whole is the sum; ``partial(mean)``: the mean
    scattered       each has some of the elements, in an order that is not known
    unknown         nothing is known: parts that are not all the same are not put together
    at(s)           only pipeline stage s has it; ``at(-1)``: the last one

The gradient of a tensor is placed dually: replicate and partial change places, the others stay. (Replicate
and invariant are told apart as in JAX's ``shard_map``.)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trueup.errors import ConfigError

Segments = tuple[tuple[int, int], ...]
"""(start, length) in the whole, in the order in which a part has them"""


@dataclass(frozen=True, slots=True)
class Replicate:
    """The whole each, gradients terms of a sum."""

    def __str__(self) -> str:
        return "replicate"


@dataclass(frozen=True, slots=True)
class Invariant:
    """The whole each, gradients too."""

    def __str__(self) -> str:
        return "invariant"


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of ``dim`` each."""

    dim: int
    total: int | None = None
    """length of the whole, where parts are not equal; the first ones are then longer by one"""
    zigzag: bool = False
    mean: bool = False
    """each rank's loss is a mean over its own part: gradients count 1/n in those of the whole's mean"""
    divided: bool = False
    """what ``mean`` makes of it for gradients: parts count 1/n"""
    blocks: int = 1
    """equal blocks that the dim consists of, each cut into parts of its own"""

    def __str__(self) -> str:
        parts = [str(self.dim), *(name for name in ("zigzag", "mean", "divided") if getattr(self, name))]
        parts += [] if self.total is None else [f"total={self.total}"]
        return f"shard({','.join(parts + ([] if self.blocks == 1 else [f'blocks={self.blocks}']))})"

    def segments(self, total: int, parts: int, index: int) -> Segments:
        """Where part ``index`` lies in a dim of length ``total``.

        Example:
            >>> Shard(0, zigzag=True).segments(8, 2, 0)
            ((0, 2), (6, 2))
        """
        return cut(((0, total),), parts, index, zigzag=self.zigzag, blocks=self.blocks)


@dataclass(frozen=True, slots=True)
class Partial:
    """A term each."""

    mean: bool = False

    def __str__(self) -> str:
        return "partial(mean)" if self.mean else "partial"


@dataclass(frozen=True, slots=True)
class Scattered:
    """Some elements each along one dim, in no known order: their statistics add, nothing else can be told."""

    dim: int = 0
    divided: bool = False
    """parts count 1/n, as gradients of a mean over each rank's own part do"""

    def __str__(self) -> str:
        if self.divided:
            return f"scattered({self.dim},divided)"
        return f"scattered({self.dim})" if self.dim else "scattered"


@dataclass(frozen=True, slots=True)
class Unknown:
    """Not known: parts that are not all the same cannot be put together."""

    def __str__(self) -> str:
        return "unknown"


@dataclass(frozen=True, slots=True)
class At:
    """In one pipeline stage only."""

    stage: int

    def __str__(self) -> str:
        return f"at({self.stage})"


Placement = Replicate | Invariant | Shard | Partial | Scattered | Unknown | At

_WORDS: dict[str, Placement] = {
    "replicate": Replicate(),
    "invariant": Invariant(),
    "partial": Partial(),
    "partial(sum)": Partial(),
    "partial(mean)": Partial(mean=True),
    "scattered": Scattered(),
    "unknown": Unknown(),
}
_CALL = re.compile(
    r"(shard|at|scattered)\(\s*(-?\d+)\s*((?:,\s*(?:zigzag|mean|divided|total\s*=\s*\d+|blocks\s*=\s*[1-9]\d*)\s*)*)\)"
)

_MORE: dict[str, list[list[str]]] = {"at": [[]], "scattered": [[], ["divided"]]}
"""what may stand behind the number of a placement that is no shard"""


def placement_from(text: str) -> Placement:
    """A placement as ``str`` writes it.

    Example:
        >>> placement_from("shard(1,zigzag)")
        Shard(dim=1, total=None, zigzag=True, mean=False, divided=False, blocks=1)

    Raises:
        ConfigError: no such placement.
    """
    word = text.strip()
    if word in _WORDS:
        return _WORDS[word]
    found = _CALL.fullmatch(word)
    more = [] if found is None else [one.strip() for one in found[3].split(",")[1:]]
    if found is None or (found[1] != "shard" and more not in _MORE[found[1]]):
        raise ConfigError(
            f"{text!r} is not a placement; expected replicate, invariant, shard(DIM), shard(DIM,zigzag), "
            "shard(DIM,total=N), shard(DIM,blocks=K), partial, partial(mean), scattered, scattered(DIM), "
            "scattered(DIM,divided), unknown or at(STAGE)"
        )
    if found[1] == "at":
        return At(int(found[2]))
    if found[1] == "scattered":
        return Scattered(int(found[2]), divided="divided" in more)
    total = next((int(one.partition("=")[2]) for one in more if one.startswith("total")), None)
    blocks = next((int(one.partition("=")[2]) for one in more if one.startswith("blocks")), 1)
    flags = {name: name in more for name in ("zigzag", "mean", "divided")}
    return Shard(int(found[2]), total=total, blocks=blocks, **flags)


def gradient_of(placement: Placement) -> Placement:
    """The placement of a tensor's gradient."""
    if isinstance(placement, Replicate):
        return Partial()
    if isinstance(placement, Partial):
        return Replicate()
    if isinstance(placement, Shard) and placement.mean:
        return Shard(placement.dim, placement.total, placement.zigzag, divided=True, blocks=placement.blocks)
    return placement


def part_of(total: int, parts: int, index: int) -> tuple[int, int]:
    """Start and length of part ``index`` of ``total``; the first ones are longer by one where it is uneven.

    Example:
        >>> [part_of(10, 4, index) for index in range(4)]
        [(0, 3), (3, 3), (6, 2), (8, 2)]
    """
    short, longer = divmod(total, parts)
    return index * short + min(index, longer), short + (index < longer)


def cut(segments: Segments, parts: int, index: int, *, zigzag: bool = False, blocks: int = 1) -> Segments:
    """Part ``index`` of what some segments hold, end to end.

    Example:
        >>> cut(((0, 8),), 2, 0, zigzag=True)
        ((0, 2), (6, 2))
        >>> cut(((0, 8),), 2, 0, blocks=2)
        ((0, 2), (4, 2))
    """
    total = sum(length for _, length in segments)
    if blocks > 1:
        each = (within(segments, *part_of(total, blocks, at)) for at in range(blocks))
        return tuple(piece for block in each for piece in cut(block, parts, index, zigzag=zigzag))
    if not zigzag:
        return within(segments, *part_of(total, parts, index))
    first, second = (part_of(total, 2 * parts, at) for at in (index, 2 * parts - 1 - index))
    return (*within(segments, *first), *within(segments, *second))


def within(segments: Segments, start: int, length: int) -> Segments:
    """From ``start`` on ``length`` of what some segments hold, end to end."""
    found, at = [], 0
    for first, size in segments:
        low, high = max(start, at), min(start + length, at + size)
        if low < high:
            found.append((first + low - at, high - low))
        at += size
    return tuple(found)


def place(
    shape: Sequence[int],
    placements: Mapping[str, Placement],
    mesh: Mapping[str, int],
    coordinate: Mapping[str, int],
) -> tuple[tuple[int, ...], tuple[Segments, ...]] | None:
    """Shape of the whole, and where in it, dim by dim, a part of ``shape`` lies; None where that is unknown.

    Axes cut in the mesh's order: what the first leaves is cut by the next.
    """
    whole = list(shape)
    shards: list[tuple[str, int, Shard]] = []
    for axis, size in mesh.items():
        placement = placements.get(axis)
        if isinstance(placement, (Scattered, Unknown)):
            return None
        if isinstance(placement, Shard) and size > 1:
            if not -len(shape) <= placement.dim < len(shape):
                return None
            shards.append((axis, placement.dim % len(shape), placement))
    for axis, dim, shard in reversed(shards):
        whole[dim] = shard.total if shard.total is not None else whole[dim] * mesh[axis]
    where: list[Segments] = [((0, size),) for size in whole]
    for axis, dim, shard in shards:
        where[dim] = cut(where[dim], mesh[axis], coordinate[axis], zigzag=shard.zigzag, blocks=shard.blocks)
    if any(sum(n for _, n in one) != size for one, size in zip(where, shape, strict=True)):
        return None
    return tuple(whole), tuple(where)
