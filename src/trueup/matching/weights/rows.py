"""Where the rows of one matrix are in others, and what moves them there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations

import numpy as np

from trueup.matching.codes import Codes, Hashes
from trueup.numerics.content import scramble
from trueup.types.arrays import Array
from trueup.weights.plan import MovingStep, Permute, Reshape, Slice

MAX_PIECES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Some rows of one matrix, taken through ``steps``."""

    source: int
    steps: tuple[MovingStep, ...]


def row_hashes(matrix: Array) -> Hashes:
    """A hash of each row that sees order; a row of zeros is 0."""
    with np.errstate(over="ignore"):
        bits = (matrix.astype(np.float32) + np.float32(0)).view(np.uint32).astype(np.uint64)
        places = scramble(np.arange(1, bits.shape[1] + 1, dtype=np.uint64)) | np.uint64(1)
        return np.asarray((scramble(bits) * places).sum(axis=1, dtype=np.uint64))


def located(wanted: Array, among: list[Array]) -> tuple[list[Chunk], int] | None:
    """``wanted`` as rows of ``among`` put one after the other, and the number of zero rows at its end.

    None where a row is nowhere, or in two places, or the pieces would be too many.
    """
    hashes = row_hashes(wanted)
    nonzero = np.flatnonzero(hashes)
    if not len(nonzero):
        return None
    padding = len(hashes) - 1 - int(nonzero[-1])
    hashes = hashes[: len(hashes) - padding]
    every = np.concatenate([row_hashes(one) for one in among])
    order = np.argsort(every, kind="stable")
    at = np.minimum(np.searchsorted(every, hashes, sorter=order), len(every) - 1)
    if (every[order[at]] != hashes).any() or _twice(every, hashes):
        return None
    bounds = np.cumsum([0, *(len(one) for one in among)])
    rows = order[at]
    piece = np.searchsorted(bounds, rows, side="right") - 1
    chunks = _chunks(piece, rows - bounds[piece], among)
    return None if len(chunks) > MAX_PIECES else (chunks, padding)


def _twice(every: Hashes, wanted: Hashes) -> bool:
    words, counts = np.unique(every, return_counts=True)
    return bool(np.isin(words[counts > 1], wanted).any())


def _chunks(piece: Codes, row: Codes, among: list[Array]) -> list[Chunk]:
    out: list[Chunk] = []
    turns = np.flatnonzero(np.diff(_blocks(piece, row))) + 1
    for rows, source in zip(np.split(row, turns), piece[np.r_[0, turns]].tolist(), strict=True):
        total, width = among[source].shape
        low, high = int(rows.min()), int(rows.max()) + 1
        moved = _moving(rows - low, width) if high - low == len(rows) else None
        if moved is not None:
            out.append(Chunk(source=source, steps=(*_slice(low, high, total), *moved)))
            continue
        runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
        out += [Chunk(source=source, steps=_slice(int(r[0]), int(r[-1]) + 1, total)) for r in runs]
    return out


def _blocks(piece: Codes, row: Codes) -> Codes:
    """A number for each row: equal for the rows of one source between which no row is missing."""
    order = np.lexsort((row, piece))
    gap = (np.diff(piece[order]) != 0) | (np.diff(row[order]) > 1)
    block = np.empty(len(row), np.int64)
    block[order] = np.concatenate([[0], np.cumsum(gap)])
    return block


def _slice(start: int, stop: int, size: int) -> tuple[MovingStep, ...]:
    return () if (start, stop) == (0, size) else (Slice(dim=0, start=start, stop=stop),)


def _moving(order: Codes, width: int) -> tuple[MovingStep, ...] | None:
    """Steps on a matrix (len(order), width) that put its rows in ``order``; None where no few do."""
    found = _factored(order.tobytes())
    if found is None:
        return None
    shape, dims = found
    if not shape:
        return ()
    return (
        Reshape(shape=(*shape, width)),
        Permute(dims=(*dims, 3)),
        Reshape(shape=(len(order), width)),
    )


@lru_cache(maxsize=256)
def _factored(raw: bytes) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The (a, b, c) and the order of its dimensions that give a permutation; empty for none at all."""
    order = np.frombuffer(raw, np.int64)
    size = len(order)
    plain = np.arange(size)
    if (order == plain).all():
        return (), ()
    divisors = [d for d in range(1, size + 1) if size % d == 0]
    for a in divisors:
        for b in (d for d in divisors if (size // a) % d == 0):
            shape = (a, b, size // a // b)
            for dims in permutations(range(3)):
                if (plain.reshape(shape).transpose(dims).reshape(-1) == order).all():
                    return shape, dims
    return None
