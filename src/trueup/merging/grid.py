"""Sequences cut among some ranks while others read other rows (context beside data parallelism): a mesh of
two axes, of which a program need not say anything. The token ids that its ranks and one process were given
tell it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

import numpy as np

from trueup.merging.assembling import alike
from trueup.merging.dealt import Dealt, given_to_calls, rows_of
from trueup.merging.infer import (
    DATA,
    NEAR,
    InferredLayout,
    Slot,
    passed_back,
    say_their_place,
    summaries_by_key,
    summaries_of,
)
from trueup.merging.ranks import RankStep
from trueup.merging.step import RecordKey
from trueup.merging.summary import Summary
from trueup.store import TraceSource, step_view
from trueup.types.arrays import Ints
from trueup.types.layout import Layout, LayoutRow
from trueup.types.placement import Invariant, Partial, Placement, Shard, Unknown

CONTEXT = "cp"
"""the axis along which sequences are cut"""
Given = Mapping[str, Ints]
Calls = Sequence[tuple[int, Given]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """How ranks share out the rows of a batch and the tokens of each row."""

    mesh: Mapping[str, int]
    """as ranks are numbered"""
    order: Shard
    """of the pieces of a sequence"""
    dealt: Dealt
    """whole rows, each by the first rank that has a piece of it"""
    own: tuple[int, int]
    """rows and tokens of a rank's first microbatch"""
    whole: tuple[int, int]
    """of one process's first microbatch"""

    @property
    def layout(self) -> Layout:
        """The mesh alone."""
        return Layout(mesh=self.mesh, batch=(DATA,), source="inferred")


def grid_beside(parts: TraceSource, whole: TraceSource, step: int) -> Grid | None:
    """How the ranks of ``parts`` share out what the one process of ``whole`` is given: the way in which
    most rows are found again, token by token. None where that is less than half, or where the ids were not
    kept.

    No other cut gives a whole sequence by chance; a sequence that no cut gives differs in its tokens.
    """
    held = parts.steps().get(step, [])
    one = given_to_calls(step_view(whole, step, 0))
    rows = Counter(row for _, given in one for row in rows_of(given))
    calls = [given_to_calls(step_view(parts, step, rank)) for rank in held]
    if held != list(range(len(held))) or not rows or not calls[0] or len({len(own) for own in calls}) > 1:
        return None
    found, best = max(_grids(calls, one, rows), key=itemgetter(0), default=(0, None))
    return best if 2 * found >= rows.total() else None


def _grids(calls: Sequence[Calls], one: Calls, rows: Counter[bytes]) -> Iterator[tuple[int, Grid]]:
    """Every way to share out that gives some rows again, with how many."""
    held = range(len(calls))
    for layout in _meshes(len(calls)):
        if layout.mesh[CONTEXT] == len(calls) and len(calls[0]) == len(one):
            continue  # one sequence cut among all: told record by record
        groups = [layout.group(rank, [CONTEXT]) for rank in held if not layout.coordinate(rank)[CONTEXT]]
        for order in _orders(_width(calls[0])):
            found = _dealt(calls, groups, order, rows)
            if found is not None and found[0]:
                own, other = (_tokens(of[0][1]).shape for of in (calls[0], one))
                yield found[0], Grid(mesh=layout.mesh, order=order, dealt=found[1], own=own, whole=other)


def _meshes(size: int) -> Iterator[Layout]:
    """Every way to cut sequences among ranks: those that share one are neighbours, or stand far apart."""
    for cut in (count for count in range(2, size + 1) if size % count == 0):
        yield Layout(mesh={DATA: size // cut, CONTEXT: cut})
        if cut < size:
            yield Layout(mesh={CONTEXT: cut, DATA: size // cut})


def _orders(width: int) -> Iterator[Shard]:
    yield Shard(1)
    yield Shard(1, zigzag=True)
    yield from (Shard(1, blocks=count) for count in range(2, width + 1) if width % count == 0)


def _tokens(given: Given) -> Ints:
    return next((ids for slot, ids in given.items() if "mask" not in slot), next(iter(given.values())))


def _width(calls: Calls) -> int:
    return int(_tokens(calls[0][1]).shape[1])


def _dealt(
    calls: Sequence[Calls], groups: Sequence[Sequence[int]], order: Shard, rows: Counter[bytes]
) -> tuple[int, Dealt] | None:
    """How many rows of the groups are rows of the one process, each counted once, and the rows of every
    group; None where there are more or fewer rows."""
    made: Counter[bytes] = Counter()
    parts: dict[tuple[int, int], frozenset[bytes]] = {}
    for group in groups:
        for at, (microbatch, _) in enumerate(calls[group[0]]):
            joined = _joined([calls[rank][at][1] for rank in group], order)
            own = [] if joined is None else rows_of(joined)
            if not own:
                return None
            made.update(own)
            place = group[0], microbatch
            parts[place] = parts.get(place, frozenset()) | frozenset(own)
    return ((made & rows).total(), Dealt(parts=parts)) if made.total() == rows.total() else None


def _joined(pieces: Sequence[Given], order: Shard) -> Given | None:
    """What the ranks of a group are given, as one would be."""
    found = {}
    for slot, first in pieces[0].items():
        held = [piece[slot] for piece in pieces if slot in piece and piece[slot].shape == first.shape]
        if len(held) != len(pieces):
            return None
        whole = _put_together(held, order)
        if whole is None:
            return None
        found[slot] = whole
    return found


def _put_together(pieces: Sequence[Ints], order: Shard) -> Ints | None:
    rows, length = pieces[0].shape
    out = np.empty((rows, length * len(pieces)), np.int64)
    for at, piece in enumerate(pieces):
        segments = order.segments(out.shape[1], len(pieces), at)
        if sum(size for _, size in segments) != length:
            return None
        out[:, np.concatenate([np.arange(start, start + size) for start, size in segments])] = piece
    return out


# -- placements ------------------------------------------


def infer_grid(parts: TraceSource, whole: TraceSource, step: int, grid: Grid) -> InferredLayout | None:
    """The layout of ``parts``; None where ranks hold other weights, so that more than rows and tokens is cut.

    Along ``cp`` a tensor is what the shapes of its parts and of the whole say; along ``dp`` ranks read other
    microbatches. How many times a rank's gradients are those of the whole (the ranks' losses are means over
    their own tokens, or not) is told by what backward passes back.
    """
    mesh = grid.layout
    ranks = [RankStep(step_view(parts, step, rank), mesh, 1) for rank in range(mesh.size)]
    one = RankStep(step_view(whole, step, 0), Layout(mesh={DATA: 1}), 1)
    held = summaries_by_key(ranks)
    there: dict[Slot, Summary] = {}
    for _, slot, summary in summaries_of(one):
        there.setdefault(slot, summary)
    size = grid.mesh[CONTEXT]
    cut: dict[Slot, Cut] = {}
    for slot, summaries in held.values():
        if slot.kind not in ("parameter", "api") and slot not in cut and len(summaries) == size:
            cut[slot] = _cut(summaries, there.get(slot), grid)
    factor = _factor(ranks, one, cut, grid)
    divided = {DATA: factor in (grid.mesh[DATA], mesh.size), CONTEXT: factor in (size, mesh.size)}
    if grid.mesh[DATA] == size == factor:
        divided[CONTEXT] = False
    weights = _weights(held, ranks, mesh, divided)
    if weights is None:
        return None
    rows, out = [], InferredLayout(mesh)
    for slot, found in cut.items():
        placements, along = dict(found.placements), found.placements[CONTEXT]
        if slot.phase == "backward" and isinstance(along, Shard):
            placements[CONTEXT] = replace(along, divided=divided[CONTEXT])
            placements |= {DATA: Shard(0, divided=True)} if divided[DATA] else {}
        if isinstance(along, Unknown):
            out.unknown.append(f"{slot.name or '(root)'} {slot.phase} {slot.slot}")
        else:
            out.counts[str(placements[CONTEXT])] += 1
        rows.append(LayoutRow(slot.name, placements, slot.slot, slot.phase, found.split))
    out.layout = Layout(
        mesh=grid.mesh, batch=(DATA,), source="inferred", parameters=tuple(weights), tensors=tuple(rows)
    )
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Where the parts of a tensor that the ranks of one group have lie in the whole."""

    placements: Mapping[str, Placement]
    split: tuple[int, ...] | None = None
    """how dim 0 is to be seen before dims are counted"""


def _cut(parts: Sequence[Summary], whole: Summary | None, grid: Grid) -> Cut:
    first = parts[0]
    order = grid.order
    if whole is not None and all(part.shape == first.shape for part in parts):
        dim = _cut_dim(first.shape, whole.shape, grid)
        if dim is not None:
            return Cut(placements={CONTEXT: replace(order, dim=dim)})
        flat = first.shape[:1] == (math.prod(grid.own),) and whole.shape[:1] == (math.prod(grid.whole),)
        if flat and first.shape[1:] == whole.shape[1:]:
            return Cut(placements={CONTEXT: order}, split=(grid.own[0], -1))
    if all(alike(first, part) for part in parts[1:]):
        return Cut(placements={CONTEXT: Invariant()})
    if whole is not None and first.shape == whole.shape == ():
        return Cut(placements=_of_number(parts, whole, grid))
    return Cut(placements={CONTEXT: Unknown()})


def _of_number(parts: Sequence[Summary], whole: Summary, grid: Grid) -> dict[str, Placement]:
    """Numbers of a group (losses) add up or are averaged, and count 1/n where every group's is a mean of
    its own rows: whichever brings them near the whole's, if any does."""
    means = [part.mean for part in (*parts, whole)]
    unknown: dict[str, Placement] = {CONTEXT: Unknown()}
    if grid.own[0] != grid.whole[0] or None in means or not whole.mean:
        return unknown  # rows are put together before they are compared: placed with all of them
    total = sum(part.mean or 0.0 for part in parts) / whole.mean
    size, groups = grid.mesh[CONTEXT], grid.mesh[DATA]
    options: dict[float, dict[str, Placement]] = {
        size * groups: {CONTEXT: Partial(mean=True), DATA: Shard(0, divided=True)},
        groups: {CONTEXT: Partial(), DATA: Shard(0, divided=True)},
        size: {CONTEXT: Partial(mean=True)},
        1: {CONTEXT: Partial()},
    }
    best = min(options, key=lambda times: abs(total / times - 1))
    return options[best] if abs(total / best - 1) < NEAR else unknown


def _cut_dim(part: tuple[int, ...], whole: tuple[int, ...], grid: Grid) -> int | None:
    """The dim that counts a rank's tokens where the whole's counts all; rows may be fewer along another."""
    (rows, tokens), (all_rows, all_tokens) = grid.own, grid.whole
    fits = []
    for dim, length in enumerate(part):
        if len(part) != len(whole) or (length, whole[dim]) != (tokens, all_tokens):
            continue
        others = [(a, b) for at, (a, b) in enumerate(zip(part, whole, strict=True)) if at != dim and a != b]
        if others in ([], [(rows, all_rows)]):
            fits.append(dim)
    return 1 if 1 in fits else next(iter(fits), None)


def _factor(
    ranks: Sequence[RankStep],
    one: RankStep,
    cut: Mapping[Slot, Cut],
    grid: Grid,
) -> int:
    """How many times the gradients that backward passes back are those of one process: one of 1, the sizes of
    both axes and all ranks, whichever is nearest."""
    own, other = [passed_back(rank) for rank in ranks], passed_back(one)
    places = {(slot.name, slot.slot) for slot, of in cut.items() if isinstance(of.placements[CONTEXT], Shard)}
    ratios = [
        math.sqrt(sum(held[place] for held in own) / other[place])
        for place in other
        if place in places and other[place] > 0 and all(place in held for held in own)
    ]
    known = sorted({1, *grid.mesh.values(), math.prod(grid.mesh.values())})
    middle = float(np.median(ratios)) if ratios else 1.0
    return min(known, key=lambda size: abs(math.log(max(middle, 1e-9) / size)))


def _weights(
    held: Mapping[RecordKey, tuple[Slot, list[Summary]]],
    ranks: Sequence[RankStep],
    mesh: Layout,
    divided: Mapping[str, bool],
) -> list[LayoutRow] | None:
    """Rows of what belongs to weights; None where ranks do not start from the same."""
    terms_of = {axis: Partial(mean=divided[axis]) for axis in mesh.mesh}
    rows = [LayoutRow("*", terms_of, "local", "param_grad")]
    placed = say_their_place(ranks[0])
    for slot, summaries in held.values():
        if slot.kind != "parameter" or slot.slot == "local" or slot.name in placed:
            continue
        apart = [axis for axis in mesh.mesh if not _same_along(axis, summaries, mesh)]
        if apart and (slot.phase, slot.slot) == ("param", "value"):
            return None
        if slot.slot == "accumulated":
            placements: dict[str, Placement] = {
                axis: terms_of[axis] if axis in apart else Invariant() for axis in mesh.mesh
            }
            rows.append(LayoutRow(slot.name, placements, slot.slot, slot.phase))
    return rows


def _same_along(axis: str, summaries: Sequence[Summary], mesh: Layout) -> bool:
    if len(summaries) != mesh.size:
        return False
    groups = {mesh.group(rank, [axis]) for rank in range(mesh.size)}
    return all(alike(summaries[group[0]], summaries[rank]) for group in groups for rank in group[1:])
