"""Strings as small integers shared by both traces, so that everything after is arithmetic on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trueup.types.arrays import Array

Codes = NDArray[np.int64]
Hashes = NDArray[np.uint64]

_LARGEST = np.iinfo(np.int64).max
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True)
class Shared:
    """One column of both traces as codes over one sorted list of words; null is -1."""

    codes: tuple[Codes, Codes]
    words: list[str]


def shared_codes(target: pl.Series, reference: pl.Series) -> Shared:
    """Codes of a string or categorical column of both traces."""
    vocabulary = sorted({*target.unique().to_list(), *reference.unique().to_list()} - {None})
    return Shared((_codes(target, vocabulary), _codes(reference, vocabulary)), vocabulary)


def _codes(column: pl.Series, vocabulary: list[str]) -> Codes:
    if not vocabulary:
        return np.full(len(column), -1, np.int64)
    return integers(column.cast(pl.String).cast(pl.Enum(vocabulary)).to_physical())


def integers(column: pl.Series) -> Codes:
    """An integer column as int64, null is -1."""
    column = column.cast(pl.Int64)
    return np.asarray((column.fill_null(-1) if column.null_count() else column).to_numpy(), np.int64)


def numbered(*columns: Codes) -> Codes:
    """For each row of several integer columns a number from 0, the same for equal rows, in their order."""
    key, width = np.zeros(len(columns[0]), np.int64), 1
    for column in columns if len(key) else ():
        low, span = int(column.min()), int(column.max()) - int(column.min()) + 1
        if span > int(_LARGEST) // width:  # too wide to lie beside each other
            (key, width), (column, span), low = _ranked(key), _ranked(column), 0
        key, width = key * span + (column - low), width * span
    return _ranked(key)[0]


def _ranked(values: Codes) -> tuple[Codes, int]:
    """The place of each value among the distinct ones, and how many those are."""
    distinct, ranks = np.unique(values, return_inverse=True)
    return np.asarray(ranks.reshape(-1), np.int64), len(distinct)


def mix(*parts: Array) -> Hashes:
    """A 64-bit hash of several integers per row (splitmix64 over a running sum); equal rows have equal
    hashes."""
    state: object = np.uint64(0)
    with np.errstate(over="ignore"):
        for part in parts:
            value = np.asarray(part)
            value = value if value.dtype == np.uint64 else value.astype(np.int64).view(np.uint64)
            state = (state + value + _GOLDEN) * _MIX_1
            state = (state ^ (state >> np.uint64(29))) * _MIX_2
            state = state ^ (state >> np.uint64(32))
    return np.asarray(state, dtype=np.uint64)


def sum_by(groups: Codes, hashes: Hashes, num_groups: int) -> Hashes:
    """Sum of hashes per group modulo 2^64; a group of nothing is 0."""
    total = np.zeros(num_groups, np.uint64)
    np.add.at(total, groups, hashes)
    return total


def shape_codes(shapes: Sequence[pl.Series]) -> tuple[list[Codes], list[tuple[int, ...]]]:
    """Code of each shape (a list column per trace) and the distinct shapes; null is -1."""
    hashed = [_shape_hashes(s) for s in shapes]
    every = np.concatenate([h for h, _ in hashed])
    _, first, inverse = np.unique(every, return_index=True, return_inverse=True)
    bounds = np.cumsum([0, *(len(h) for h, _ in hashed)])
    distinct: list[tuple[int, ...]] = []
    for row in first:
        which = int(np.searchsorted(bounds, row, side="right")) - 1
        value = shapes[which][int(row - bounds[which])]
        distinct.append(() if value is None else tuple(value))
    codes = []
    for which, (_, null) in enumerate(hashed):
        code = inverse[bounds[which] : bounds[which + 1]].astype(np.int64)
        code[null] = -1
        codes.append(code)
    return codes, distinct


def _shape_hashes(column: pl.Series) -> tuple[Hashes, NDArray[np.bool_]]:
    lengths = column.list.len()
    null = lengths.is_null().to_numpy()
    counts = lengths.fill_null(0).to_numpy().astype(np.int64)
    kept = column.filter(lengths.fill_null(0) > 0)
    flat = kept.explode().to_numpy().astype(np.int64) if len(kept) else np.zeros(0, np.int64)
    row = np.repeat(np.arange(len(counts)), counts)
    position = np.arange(len(flat)) - np.repeat(np.cumsum(counts) - counts, counts)
    return sum_by(row, mix(flat, position), len(counts)) + counts.astype(np.uint64), null
