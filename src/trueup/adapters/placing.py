"""Where a tensor of this rank lies in the whole one, as far as the program has declared it.

Its sketch is then taken at that place, so that the sketches of all ranks add up to the whole's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from trueup.types.layout import BATCH, Layout, Placed, bare_name
from trueup.types.placement import Segments, Shard, place, within
from trueup.types.trace import Root

Box = tuple[tuple[slice, ...], tuple[int, ...]]
"""which part of the local tensor, and where it starts in the whole"""


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Of one tensor."""

    text: str
    """for the column ``placement``, where the sketch is taken at this place"""
    held: str | None
    """for it elsewhere"""
    local: tuple[int, ...]
    """shape in which the local tensor is to be seen"""
    whole: tuple[int, ...]
    boxes: tuple[Box, ...]


WherePlaced = Callable[..., TensorPlace | None] | None
"""tells from its shape where a tensor lies in its whole; None: whole"""


class Placing:
    """Of all tensors of one rank; answers are remembered.

    Args:
        layout: as declared.
        rank: this one.
        roots: gives ``name`` and ``type`` of the roots known so far.
    """

    def __init__(self, layout: Layout, rank: int, roots: Callable[[], Sequence[Root]]) -> None:
        self._layout, self._roots = layout, roots
        self._coordinate = layout.coordinate(rank)
        self._names: dict[str, str] = {}
        self._known: dict[tuple[object, ...], TensorPlace | None] = {}

    def of(
        self,
        kind: str,
        name: str,
        phase: str,
        slot: str,
        shape: Sequence[int],
        held: Mapping[str, object] | None = None,
    ) -> TensorPlace | None:
        """The place of a tensor of this shape; None where it is whole here, or nothing is known.

        Args:
            kind: of the call.
            name: of the call.
            phase: of the record.
            slot: of the record.
            shape: of the local tensor.
            held: of a distributed tensor, what it says itself: ``global_shape`` and ``offset``.
        """
        key = kind, name, phase, slot, tuple(shape), None if held is None else str(held)
        if key not in self._known:
            self._known[key] = self._find(kind, name, phase, slot, tuple(shape), held)
        return self._known[key]

    # In one piece: one computation of a place; each part of it may not apply.
    def _find(
        self, kind: str, name: str, phase: str, slot: str, shape: tuple[int, ...], held: Any
    ) -> TensorPlace | None:
        if kind not in ("module", "parameter", "loss"):
            return None
        if name not in self._names:
            self._names[name] = bare_name(name, self._roots())
        of = self._layout.of_parameter if kind == "parameter" else self._layout.of_tensor
        found: Placed = of(self._names[name], phase, slot)
        seen = shape if held is None else tuple(held["global_shape"])
        if found.split is not None:
            seen = split_shape(seen, found.split)
        placements = {axis: one for axis, one in found.placements.items() if axis != BATCH}
        if held is not None:  # its own axes are accounted for by itself
            own = {axis for word in held["mesh"] for axis in str(word).split("_")}
            placements = {axis: one for axis, one in placements.items() if axis not in own}
        cuts = [axis for axis, one in placements.items() if isinstance(one, Shard)]
        if held is None and not any(self._layout.mesh.get(axis, 1) > 1 for axis in cuts):
            return None
        where = place(seen, placements, self._layout.mesh, self._coordinate)
        if where is None:
            return None
        whole, segments = where
        if held is not None:
            segments = tuple(
                within(one, start, size)
                for one, start, size in zip(segments, held["offset"], shape, strict=True)
            )
        local = tuple(sum(length for _, length in one) for one in segments)
        known = {} if held is None else dict(held)
        stated = {**known, "whole": list(whole), "where": [list(map(list, one)) for one in segments]}
        return TensorPlace(
            json.dumps(stated), json.dumps(known) if known else None, local, whole, tuple(_boxes(segments))
        )


def split_shape(shape: tuple[int, ...], split: tuple[int, ...]) -> tuple[int, ...]:
    """The shape with dim 0 split.

    Example:
        >>> split_shape((6, 4), (2, -1))
        (2, 3, 4)
    """
    known = 1
    for size in split:
        known *= size if size > 0 else 1
    return (*(shape[0] // known if size < 0 else size for size in split), *shape[1:])


def _boxes(where: Sequence[Segments]) -> list[Box]:
    """Every combination of the dims' segments."""
    dims = []
    for segments in where:
        starts, at = [], 0
        for first, length in segments:
            starts.append((slice(at, at + length), first))
            at += length
        dims.append(starts)
    return [(tuple(part for part, _ in one), tuple(first for _, first in one)) for one in product(*dims)]
