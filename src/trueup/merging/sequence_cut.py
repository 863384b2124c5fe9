"""Sequences cut among ranks (context parallelism): what the model is given tells the order of the pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trueup.merging.ranks import RankStep
from trueup.merging.summary import Summary, joined
from trueup.store.given import root_inputs
from trueup.types.arrays import Array
from trueup.types.layout import LayoutRow
from trueup.types.placement import Placement, Scattered, Shard

NUM_DIMS = 2
"""of a batch of token ids"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceCut:
    """How the tokens of a batch are spread over ranks."""

    shape: tuple[int, ...]
    """of the whole batch of ids"""
    placement: Shard | Scattered
    """of the ids; scattered: their order is not known"""
    dim: int

    def row(self, row: LayoutRow, axis: str, whole: Summary | None) -> LayoutRow:
        """A tensor's own row, with the order of the ids where it holds the same tokens.

        A tensor whose first dim runs over all tokens of the batch is seen as (rows, tokens) before it is
        put together.
        """
        found = row.placements[axis]
        if not isinstance(found, Shard) or whole is None or not whole.shape:
            return row
        if whole.shape[found.dim] == self.shape[self.dim]:
            return replace(row, placements={axis: self._like(found)})
        flat = whole.shape[0] == self.shape[0] * self.shape[1] and found.dim == 0
        if not flat or self.dim == 0:
            return row
        return replace(row, placements={axis: self._like(replace(found, dim=1))}, split=(self.shape[0], -1))

    def _like(self, found: Shard) -> Placement:
        if isinstance(self.placement, Scattered):
            return Scattered(found.dim, divided=found.divided)
        return replace(found, zigzag=self.placement.zigzag, blocks=self.placement.blocks)


def sequence_cut(parts: Sequence[RankStep], whole: RankStep) -> SequenceCut | None:
    """How the first batch of token ids is cut along its sequences; None where it is not.

    Args:
        parts: of all ranks, in order.
        whole: of one process that reads the same batch.
    """
    held = [dict(_ids(part)) for part in parts]
    for slot, (record, there) in _ids(whole):
        pieces = [ids[slot] for ids in held if slot in ids]
        if len(pieces) != len(parts):
            continue
        summaries = [summary for _, summary in pieces]
        dims = [dim for dim in range(NUM_DIMS) if _is_cut_along(dim, summaries, there)]
        if len(dims) == 1:
            stored = [rank.view.raw(at) for rank, (at, _) in zip(parts, pieces, strict=True)]
            values = [one[1] for one in stored if one is not None]
            whole_values = whole.view.raw(record)
            expected = None if whole_values is None else whole_values[1]
            order = _order(summaries, there, dims[0], values, expected)
            return SequenceCut(shape=there.shape, dim=dims[0], placement=order)
    return None


def _ids(rank: RankStep) -> Iterator[tuple[str, tuple[int, Summary]]]:
    """Slots of the model's inputs that may be ids, with record and summary."""
    view = rank.view
    for _, slot, record in root_inputs(view):
        row = view.content[record]
        if row is not None:
            summary = rank.summary(row)[0]
            if len(summary.shape) == NUM_DIMS and summary.dtype.startswith(("int", "uint")):
                yield slot, (record, summary)


def _is_cut_along(dim: int, parts: Sequence[Summary], whole: Summary) -> bool:
    other = 1 - dim
    return all(
        len(part.shape) == NUM_DIMS and part.shape[other] == whole.shape[other] for part in parts
    ) and (
        len({part.shape[dim] for part in parts}) == 1
        and sum(part.shape[dim] for part in parts) == whole.shape[dim]
    )


def _order(
    parts: Sequence[Summary], whole: Summary, dim: int, stored: Sequence[Array], expected: Array | None
) -> Shard | Scattered:
    """One after the other, the i-th and i-th last of 2n pieces (which balances causal attention), or each
    rank's share of every block; by values bit for bit, without them by what no order changes."""
    length = parts[0].shape[dim]
    made = joined(parts, whole.shape, [length * at for at in range(len(parts))], dim)
    if made.digest == whole.digest:
        return Shard(dim)
    if expected is None or len(stored) != len(parts):
        extremes = (made.minimum, made.maximum) == (whole.minimum, whole.maximum)
        same = extremes and made.mean == whole.mean and made.l2_norm == whole.l2_norm
        return Scattered(dim) if same else Shard(dim)
    shares = (count for count in range(2, length + 1) if length % count == 0)
    for order in (Shard(dim, zigzag=True), *(Shard(dim, blocks=count) for count in shares)):
        out = np.empty_like(expected)
        for at, part in enumerate(stored):
            where = np.concatenate(
                [np.arange(a, a + n) for a, n in order.segments(whole.shape[dim], len(parts), at)]
            )
            if len(where) != length:
                break
            out[(slice(None),) * dim + (where,)] = part
        else:
            if np.array_equal(out, expected):
                return order
    return Shard(dim)
