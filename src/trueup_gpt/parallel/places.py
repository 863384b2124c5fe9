"""Which part of each parameter a process has, by the layout table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from trueup import Placement, Shard, part_of
from trueup_gpt.parallel.layout import Layout
from trueup_gpt.parallel.mesh import Mesh


class Sliced(Protocol):
    """A tensor of either framework, or an array."""

    def __getitem__(self: SlicedT, place: tuple[slice, ...], /) -> SlicedT: ...


SlicedT = TypeVar("SlicedT", bound=Sliced)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
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


def place_of(fqn: str, shape: Sequence[int], layout: Layout, mesh: Mesh) -> Place:
    """The part of the parameter ``fqn``, ``shape`` as a whole, that this process has."""
    placements = layout.of(fqn)
    offset, size = [0] * len(shape), list(shape)
    for axis, placement in placements.items():
        if isinstance(placement, Shard):
            dim = placement.dim
            start, size[dim] = part_of(size[dim], mesh.size(axis), mesh.coordinate(axis))
            offset[dim] += start
    return Place(fqn=fqn, shape=tuple(shape), offset=tuple(offset), size=tuple(size), placements=placements)
