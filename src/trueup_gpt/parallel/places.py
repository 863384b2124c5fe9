"""Which part of each parameter a process has, by the layout table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from trueup import Invariant, Placement, Replicate, Shard, part_of
from trueup_gpt.parallel.layout import Layout
from trueup_gpt.parallel.mesh import Mesh


class Sliced(Protocol):
    """A tensor of either framework, or an array."""

    def __getitem__(self: SlicedT, place: tuple[slice, ...], /) -> SlicedT: ...


SlicedT = TypeVar("SlicedT", bound=Sliced)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterShare:
    """Which part of a parameter this process has."""

    fqn: str
    shape: tuple[int, ...]
    """of the whole"""
    offset: tuple[int, ...]
    """of the part"""
    size: tuple[int, ...]
    """of the part"""
    placements: Mapping[str, Placement]
    """axis -> placement"""

    def cut(self, whole: SlicedT) -> SlicedT:
        """The part, of the whole tensor."""
        return whole[tuple(slice(o, o + size) for o, size in zip(self.offset, self.size, strict=True))]

    def axes(self, kind: type[Placement]) -> tuple[str, ...]:
        """The axes along which it is placed so."""
        return tuple(axis for axis, placement in self.placements.items() if isinstance(placement, kind))

    def copies(self, mesh: Mesh, *, besides: Sequence[str] = ()) -> tuple[str, ...]:
        """Axes along which other processes have the same part, those of ``besides`` left out."""
        same = mesh.axes((*self.axes(Replicate), *self.axes(Invariant)))
        return tuple(axis for axis in same if axis not in besides)

    def partial(self, mesh: Mesh, among: Sequence[str]) -> tuple[str, ...]:
        """Those of the axes ``among`` over which its gradient is partial."""
        return mesh.axes([axis for axis in self.axes(Replicate) if axis in among])


def place_of(fqn: str, shape: Sequence[int], layout: Layout, mesh: Mesh) -> ParameterShare:
    """The part of the parameter ``fqn``, ``shape`` as a whole, that this process has."""
    placements = layout.of(fqn)
    offset, size = [0] * len(shape), list(shape)
    for axis, placement in placements.items():
        if isinstance(placement, Shard):
            dim = placement.dim
            start, size[dim] = part_of(size[dim], mesh.size(axis), mesh.coordinate(axis))
            offset[dim] += start
    return ParameterShare(
        fqn=fqn, shape=tuple(shape), offset=tuple(offset), size=tuple(size), placements=placements
    )


Range = tuple[tuple[int, ...], tuple[int, ...], tuple[int, int]]


def ranges(shape: Sequence[int], start: int, stop: int) -> Iterator[Range]:
    """Cut elements ``start`` to ``stop`` of a flattened tensor into boxes: offset, size, elements.

    Example:
        >>> [(offset, size) for offset, size, _ in ranges((3, 4), 2, 9)]
        [((0, 2), (1, 2)), ((1, 0), (1, 4)), ((2, 0), (1, 1))]
    """
    if len(shape) <= 1:
        yield (start,) * len(shape), (stop - start,) * len(shape), (start, stop)
        return
    row = math.prod(shape[1:])
    first, last = -(-start // row), stop // row
    if first > last:  # within one row
        yield from _within(shape, last, start, stop)
        return
    if start < first * row:
        yield from _within(shape, first - 1, start, first * row)
    if first < last:
        zeros = (0,) * (len(shape) - 1)
        yield (first, *zeros), (last - first, *shape[1:]), (first * row, last * row)
    if last * row < stop:
        yield from _within(shape, last, last * row, stop)


def _within(shape: Sequence[int], number: int, start: int, stop: int) -> Iterator[Range]:
    base = number * math.prod(shape[1:])
    for offset, size, (low, high) in ranges(shape[1:], start - base, stop - base):
        yield (number, *offset), (1, *size), (low + base, high + base)
