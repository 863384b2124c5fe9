"""Finds how the numbers of one tensor were laid out anew to give another, and says it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from trueup.diagnosing.kinds.fitting import close
from trueup.diagnosing.kinds.thresholds import (
    FINEST_ROUNDOFF,
    NEARLY,
    NEARLY_ALL,
    PROBED_LAYOUT,
    SUMMED_ROUNDINGS,
)
from trueup.types.arrays import Floats
from trueup.types.codes.kinds import OrderCode
from trueup.types.reason import Reason, reason

Indices = NDArray[np.int64]

_SEED = 20260117


def same_numbers(t: Floats, r: Floats, rounding: float) -> bool:
    """Whether both hold the same numbers in any order: moments first, then both sorted."""
    a, b = t.ravel(), r.ravel()
    if a.size != b.size or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        rms = float(np.sqrt(np.mean(b * b)))
        slack = rms * (FINEST_ROUNDOFF + 4 * rounding / np.sqrt(a.size) + rounding / 8)
        if abs(a.mean() - b.mean()) > slack or abs(float(np.sqrt(np.mean(a * a))) - rms) > slack:
            return False
    if _order_free(a) == _order_free(b):
        return True
    narrow = np.float32 if rounding >= 2.0**-24 else np.float64
    with np.errstate(over="ignore"):
        a, b = np.sort(a.astype(narrow)), np.sort(b.astype(narrow))
    return float(close(a.astype(np.float64), b.astype(np.float64), rounding).mean()) > NEARLY_ALL


def _order_free(values: Floats) -> int:
    """A sum of mixed bits, the same in every order."""
    bits = np.ascontiguousarray(values + 0.0).view(np.uint64)
    mixed = (bits ^ (bits >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    return int(mixed.sum(dtype=np.uint64))


def along(t: Floats, r: Floats, dim: int, rounding: float) -> Indices | None:
    """The permutation p with ``t[i] = r[p[i]]`` along one dimension, None where there is none or it is the
    identity.

    Slices are told apart by their product with a fixed random vector, then compared whole.
    """
    a = np.moveaxis(t, dim, 0).reshape(t.shape[dim], -1)
    b = np.moveaxis(r, dim, 0).reshape(r.shape[dim], -1)
    if not len(a) or not a.size:
        return None
    direction = np.random.default_rng(_SEED).standard_normal(a.shape[1])
    projected = a @ direction, b @ direction
    order_t, order_r = (np.argsort(one, kind="stable") for one in projected)
    scale = np.sqrt(np.square(b).sum(axis=1).max(initial=0.0))
    apart = max(SUMMED_ROUNDINGS * rounding, FINEST_ROUNDOFF) * scale
    if not np.allclose(projected[0][order_t], projected[1][order_r], rtol=0, atol=apart):
        return None
    found = np.empty(len(a), np.int64)
    found[order_t] = order_r
    if (found == np.arange(len(found))).all():
        return None
    return found if float(close(a, b[found], rounding).mean()) > NEARLY_ALL else None


def described(p: Indices) -> Reason:
    """What a permutation is: rolled, reversed, blocks in another order, read as another matrix."""
    num = len(p)
    count = np.arange(num)
    if (p == count[::-1]).all():
        return reason(OrderCode.REVERSED)
    shift = int(p[0])
    if (p == (count + shift) % num).all():
        if 2 * shift == num:
            return reason(OrderCode.HALVES_SWAPPED)
        return reason(OrderCode.ROLLED, shift=shift if shift <= num // 2 else shift - num)
    for columns in _divisors(num):
        if (p == count.reshape(-1, columns).T.ravel()).all():
            return _as_matrix(num // columns, columns)
    blocks = _blocks(p)
    if blocks is not None:
        return blocks
    return reason(OrderCode.REORDERED, moved=int((p != count).sum()), indices=num)


def _as_matrix(rows: int, columns: int) -> Reason:
    if rows == 2:
        return reason(OrderCode.HALVES_INTERLEAVED)
    if columns == 2:
        return reason(OrderCode.PAIRS_TAKEN_APART)
    return reason(OrderCode.READ_AS_MATRIX, rows=rows, columns=columns)


def _blocks(p: Indices) -> Reason | None:
    """Blocks moved as wholes, or the same order within every block."""
    num = len(p)
    for size in reversed(_divisors(num)):
        rows = p.reshape(-1, size)
        if (rows == rows[:, :1] + np.arange(size)).all() and (rows[:, 0] % size == 0).all():
            order = (rows[:, 0] // size).tolist()
            return reason(OrderCode.BLOCKS, size=size, order=[str(one) for one in order])
    for size in _divisors(num):
        rows = p.reshape(-1, size)
        inner = rows - size * np.arange(num // size)[:, None]
        if (inner == inner[0]).all() and inner.min() >= 0 and inner.max() < size:
            return reason(OrderCode.WITHIN_BLOCKS, described(inner[0]), size=size)
    return None


def _divisors(num: int) -> list[int]:
    return [d for d in range(2, num) if num % d == 0]


def layouts(r: Floats, shape: tuple[int, ...]) -> Iterator[tuple[Reason, Floats]]:
    """Other layouts of the reference of a wanted shape: dimensions transposed, viewed instead of transposed,
    split into heads."""
    dims = range(r.ndim)
    if r.ndim <= 4:
        for order in permutations(dims):
            if order == tuple(dims):
                continue
            turned = r.transpose(order)
            order_facts = {"order": [str(dim) for dim in order]}
            if turned.shape == shape:
                yield reason(OrderCode.DIMENSIONS, **order_facts), turned
            elif turned.size == r.size:
                yield (
                    reason(OrderCode.DIMENSIONS_VIEWED, **order_facts, shape=[str(n) for n in shape]),
                    turned,
                )
    if r.shape == shape and 2 <= r.ndim <= 3:
        yield from _heads(r)


def _heads(r: Floats) -> Iterator[tuple[Reason, Floats]]:
    """(..., T, D) with heads and positions mixed up: a transpose between the two left out or one too many."""
    *lead, length, width = r.shape
    for heads in _divisors(width):
        split = r.reshape(*lead, length, heads, width // heads)
        yield reason(OrderCode.HEADS_NOT_TRANSPOSED, heads=heads), np.swapaxes(split, -3, -2)
        other = r.reshape(*lead, heads, length, width // heads)
        yield reason(OrderCode.HEADS_TRANSPOSED_TWICE, heads=heads), np.swapaxes(other, -3, -2)


def equal_layout(t: Floats, candidate: Floats, rounding: float) -> bool:
    """Whether a candidate laid out flat gives the target; a look at a few elements first."""
    flat = t.ravel()
    contiguous = candidate.flags.c_contiguous
    probe = candidate.ravel()[:PROBED_LAYOUT] if contiguous else candidate.flat[:PROBED_LAYOUT]
    if float(close(flat[:PROBED_LAYOUT], np.asarray(probe), rounding).mean()) < NEARLY:
        return False
    return float(close(flat, candidate.ravel(), rounding).mean()) > NEARLY_ALL
