"""From the parts that ranks recorded of one tensor to the whole one: one rule for every axis.

Axes cut a tensor in the mesh's order, so parts are put together from the last axis to the first; what a
distributed tensor, or a flat piece of an optimizer, says of itself comes before all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from trueup.merging.nodes import Join, Node, RankPart, Scaled, Seen, Sum, Unfit
from trueup.merging.summary import Summary
from trueup.numerics.dtypes import DTYPES
from trueup.types.codes import MergingCode
from trueup.types.layout import BATCH, Layout, Placed
from trueup.types.placement import At, Partial, Placement, Replicate, Scattered, Segments, Shard, Unknown

SAME = 16.0
"""unit roundoffs within which copies count as the same: a kernel may round otherwise from run to run"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPlace:
    """What a part says of its place itself: it is one of several along ``axes``."""

    axes: tuple[str, ...]
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    """that all of them make together"""
    partial: bool = False
    flat: bool = False
    """the part is a run of the flattened tensor; ``offset`` is one number"""


@dataclass(slots=True, kw_only=True)
class Member:
    """A part and where it comes from."""

    part: RankPart
    coordinate: Mapping[str, int]
    """mesh axes, and ``batch``"""
    stage: int = 0
    own: OwnPlace | None = None
    sketched: int = 0
    """elements of the whole in which its sketch was taken"""


class DifferingCopies(NamedTuple):
    """Ranks along one axis whose copy is not the first one's."""

    axis: str
    ranks: tuple[int, ...]
    rel_l2: float | None
    """of the farthest one"""


@dataclass(slots=True)
class Copies:
    """Copies that were compared in one tensor."""

    differing: list[DifferingCopies] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Copies of one tensor along an axis; the first is taken."""

    axis: str
    children: Sequence[Node]
    groups: Sequence[Sequence[Member]]
    """the parts of each"""


def assembled(members: Sequence[Member], placed: Placed, layout: Layout) -> tuple[Node, Copies]:
    """The whole tensor.

    Raises:
        Unfit: the parts do not fit together as the layout says.
    """
    kept = _of_stage(members, placed.placements, layout)
    own = kept[0].own
    if placed.split is not None and own is None:
        for member in kept:
            member.part = _split(member.part, placed.split)
    axes = [BATCH, *layout.mesh]
    if own is not None:
        axes = [axis for axis in axes if axis not in own.axes]
    alternatives: list[Alternatives] = []
    whole = _built(kept, axes, placed.placements, layout, alternatives)
    if placed.split is not None and own is None:
        sizes = whole.shape
        lead = int(np.prod(sizes[: len(placed.split)]))
        whole = Seen(whole, (lead, *sizes[len(placed.split) :]))
    numel = math.prod(whole.shape)
    for member in kept:
        if member.sketched != numel:
            member.part.forget_sketch()
    copies = Copies()
    for one in alternatives:
        _note_differing(one, copies)
    return whole, copies


def _of_stage(
    members: Sequence[Member], placements: Mapping[str, Placement], layout: Layout
) -> Sequence[Member]:
    place = placements.get(layout.pipeline)
    if not isinstance(place, At):
        return members
    wanted = place.stage % layout.num_stages
    kept = [member for member in members if member.stage == wanted]
    if not kept:
        raise Unfit(MergingCode.STAGE_WITHOUT_RANK, stage=wanted)
    return kept


def _split(part: RankPart, split: tuple[int, ...]) -> RankPart:
    known = int(np.prod([size for size in split if size > 0]))
    if not part.shape or part.shape[0] % known:
        raise Unfit(MergingCode.NOT_DIVISIBLE, shape=str(list(part.shape)), split=str(list(split)))
    return part.seen((*(part.shape[0] // known if size < 0 else size for size in split), *part.shape[1:]))


# In one piece: one branch a placement, at one axis of a recursion.
def _built(
    members: Sequence[Member],
    axes: Sequence[str],
    placements: Mapping[str, Placement],
    layout: Layout,
    alternatives: list[Alternatives],
) -> Node:
    if not axes:
        return _own(members, alternatives)
    axis, rest = axes[0], axes[1:]
    groups: dict[int, list[Member]] = {}
    for member in members:
        groups.setdefault(member.coordinate.get(axis, 0), []).append(member)
    indices = sorted(groups)
    children = [_built(groups[index], rest, placements, layout, alternatives) for index in indices]
    placement = placements.get(axis, Replicate())
    size = len(children) if axis == BATCH else layout.mesh[axis]
    is_divided = isinstance(placement, (Shard, Scattered)) and placement.divided
    if axis in layout.batch and is_divided and len(children) == 1:
        return Scaled(children[0], 1.0 / size)  # of one of the microbatches that ranks read
    if isinstance(placement, (Shard, Scattered)) and len(children) < size:
        raise Unfit(MergingCode.PARTS_MISSING, parts_found=len(children), parts_expected=size, axis=axis)
    if len(children) == 1:
        return children[0]
    if isinstance(placement, Unknown):
        first = children[0].summary()
        if all(alike(first, child.summary()) for child in children[1:]):
            return children[0]
        raise Unfit(MergingCode.PLACEMENT_UNKNOWN, axis=axis)
    number = children[0].shape == ()
    if axis == BATCH and isinstance(placement, Shard) and children[0].shape[:1] in ((), (1,)):
        first = children[0].summary()
        if all(alike(first, one.summary()) for one in children[1:]):
            return children[0]  # of no sample: positions, and what is made of them
    if isinstance(placement, Shard) and not number:
        join = Join(children, placement.dim, _segments(children, placement))
        return Scaled(join, 1.0 / len(children)) if is_divided else join
    if isinstance(placement, Scattered) and not number:
        join = Join(children, placement.dim, None)
        return Scaled(join, 1.0 / len(children)) if is_divided else join
    if isinstance(placement, Partial):
        return Sum(children, 1.0 / len(children) if placement.mean else 1.0)
    alternatives.append(Alternatives(axis, children, [groups[index] for index in indices]))
    return children[0]


def _segments(children: Sequence[Node], shard: Shard) -> list[Segments]:
    ndim = len(children[0].shape)
    if not -ndim <= shard.dim < ndim:
        raise Unfit(MergingCode.NO_SUCH_DIM, dim=shard.dim, shape=str(list(children[0].shape)))
    lengths = [child.shape[shard.dim] if len(child.shape) == ndim else 0 for child in children]
    if shard.zigzag or shard.blocks > 1:
        total = sum(lengths)
        return [shard.segments(total, len(children), at) for at in range(len(children))]
    starts = accumulate(lengths, initial=0)
    return [((start, length),) if length else () for start, length in zip(starts, lengths, strict=False)]


def _note_differing(one: Alternatives, copies: Copies) -> None:
    """Note the copies that differ from the first by more than rounding."""
    first = one.children[0].summary()
    unit = DTYPES[first.dtype].eps if first.dtype in DTYPES else 0.0
    ranks: set[int] = set()
    farthest: float | None = None
    for child, group in zip(one.children[1:], one.groups[1:], strict=True):
        if _are_copies(first, child.summary(), unit):
            continue
        far = how_far(first, child.summary())
        ranks |= _not_copies(group, one.groups[0], one.axis, unit)
        farthest = far if farthest is None else max(farthest, far or 0.0)
    if ranks:
        copies.differing.append(DifferingCopies(one.axis, tuple(sorted(ranks)), farthest))


def _are_copies(one: Summary, other: Summary, unit: float) -> bool:
    """Whether they are the same, or differ by no more than rounding."""
    if alike(one, other):
        return True
    far = how_far(one, other)
    return far is not None and bool(unit) and far <= SAME * unit


def _not_copies(group: Sequence[Member], first: Sequence[Member], axis: str, unit: float) -> set[int]:
    """Ranks whose own part is not that of the rank at their place in the first group; all where none is known
    to be: of the parts of a whole that differs, the others may be the same."""

    def place_of(member: Member) -> tuple[tuple[str, int], ...]:
        return tuple(sorted((name, at) for name, at in member.coordinate.items() if name != axis))

    there = {place_of(member): member.part.summary() for member in first}
    apart = {
        member.part.rank
        for member in group
        if (other := there.get(place_of(member))) is None
        or not _are_copies(other, member.part.summary(), unit)
    }
    return apart or {member.part.rank for member in group}


def alike(one: Summary, other: Summary) -> bool:
    """Whether two summaries may be of the same values: the digest decides where both have one."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.digest is not None and other.digest is not None:
        return one.digest == other.digest
    if one.sketch is not None and other.sketch is not None:
        return bool(np.array_equal(one.sketch, other.sketch))
    return one.l2_norm == other.l2_norm and one.mean == other.mean


def how_far(one: Summary, other: Summary) -> float | None:
    """Relative distance by the sketches, else by the norms."""
    if one.sketch is not None and other.sketch is not None:
        norm = float(np.linalg.norm(one.sketch))
        return float(np.linalg.norm(one.sketch - other.sketch)) / norm if norm else None
    if one.l2_norm and other.l2_norm is not None:
        return abs(one.l2_norm - other.l2_norm) / one.l2_norm
    return None


def _own(members: Sequence[Member], alternatives: list[Alternatives]) -> Node:
    """Parts that say themselves where they lie; of others the first, as a rank says it only once."""
    own = members[0].own
    if own is None:
        return members[0].part
    places: dict[tuple[int, ...], list[Member]] = {}
    for member in members:
        assert member.own is not None
        if member.part.summary().numel or len(members) == 1:
            places.setdefault(member.own.offset, []).append(member)
    if own.flat and members[0].part.shape == ():  # a number beside the piece: the same for all
        return _at(members, own, alternatives)
    nodes = {offset: _at(some, own, alternatives) for offset, some in places.items()}
    whole = _along(nodes, 0)
    wanted = (int(np.prod(own.shape)),) if own.flat else own.shape
    if whole.shape != wanted:
        raise Unfit(MergingCode.PIECES_INCOMPLETE, found=str(list(whole.shape)), expected=str(list(wanted)))
    return Seen(whole, own.shape) if own.flat else whole


def _at(members: Sequence[Member], own: OwnPlace, alternatives: list[Alternatives]) -> Node:
    children: list[Node] = [member.part for member in members]
    if len(children) == 1:
        return children[0]
    if own.partial:
        return Sum(children)
    alternatives.append(Alternatives(own.axes[0], children, [[member] for member in members]))
    return children[0]


def _along(nodes: Mapping[tuple[int, ...], Node], dim: int) -> Node:
    """Boxes at their offsets, joined dim by dim."""
    if len(nodes) == 1:
        return next(iter(nodes.values()))
    groups: dict[int, dict[tuple[int, ...], Node]] = {}
    for offset, node in nodes.items():
        groups.setdefault(offset[dim], {})[offset] = node
    children = [(start, _along(groups[start], dim + 1)) for start in sorted(groups)]
    if len(children) == 1:
        return children[0][1]
    segments: list[Segments] = [((start, child.shape[dim]),) for start, child in children]
    return Join([child for _, child in children], dim, segments)
