"""Finds how the numbers of one tensor were laid out anew to give another, and says it in words."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from trueup.diagnosing.evidence.facts import Floats
from trueup.diagnosing.kinds.fitting import close

Indices = NDArray[np.int64]

_PROBE = 512
_SEED = 20260117


def same_numbers(t: Floats, r: Floats, rounding: float) -> bool:
    """Whether both hold the same numbers in whatever order: moments first, then both sorted."""
    a, b = t.ravel(), r.ravel()
    if a.size != b.size or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        rms = float(np.sqrt(np.mean(b * b)))
        slack = rms * (1e-9 + 4 * rounding / np.sqrt(a.size) + rounding / 8)
        if abs(a.mean() - b.mean()) > slack or abs(float(np.sqrt(np.mean(a * a))) - rms) > slack:
            return False
    if _order_free(a) == _order_free(b):
        return True
    narrow = np.float32 if rounding >= 2.0**-24 else np.float64
    with np.errstate(over="ignore"):
        a, b = np.sort(a.astype(narrow)), np.sort(b.astype(narrow))
    return float(close(a.astype(np.float64), b.astype(np.float64), rounding).mean()) > 0.999


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
    mine, theirs = a @ direction, b @ direction
    order_t, order_r = np.argsort(mine, kind="stable"), np.argsort(theirs, kind="stable")
    scale = np.sqrt(np.square(b).sum(axis=1).max(initial=0.0))
    if not np.allclose(mine[order_t], theirs[order_r], rtol=0, atol=max(16 * rounding, 1e-9) * scale):
        return None
    found = np.empty(len(a), np.int64)
    found[order_t] = order_r
    if (found == np.arange(len(found))).all():
        return None
    return found if float(close(a, b[found], rounding).mean()) > 0.999 else None


def described(p: Indices) -> str:
    """A permutation in words: rolled, reversed, blocks in another order, read as another matrix."""
    num = len(p)
    count = np.arange(num)
    if (p == count[::-1]).all():
        return "in reverse order"
    shift = int(p[0])
    if (p == (count + shift) % num).all():
        half = ": the halves are swapped" if 2 * shift == num else ""
        return f"rolled by {shift if shift <= num // 2 else shift - num}{half}"
    for columns in _divisors(num):
        matrix = count.reshape(-1, columns)
        if (p == matrix.T.ravel()).all():
            return _matrix_words(num // columns, columns)
    blocks = _blocks(p)
    if blocks is not None:
        return blocks
    moved = int((p != count).sum())
    return f"with {moved} of its {num} indices in another order"


def _matrix_words(rows: int, columns: int) -> str:
    if rows == 2:
        return "halves interleaved into pairs"
    if columns == 2:
        return "interleaved pairs taken apart into halves"
    return f"read as ({columns}, {rows}) where the reference reads ({rows}, {columns})"


def _blocks(p: Indices) -> str | None:
    """Blocks moved as wholes, or the same order within every block."""
    num = len(p)
    for size in reversed(_divisors(num)):
        rows = p.reshape(-1, size)
        if (rows == rows[:, :1] + np.arange(size)).all() and (rows[:, 0] % size == 0).all():
            order = (rows[:, 0] // size).tolist()
            shown = ", ".join(map(str, order[:8])) + (", ..." if len(order) > 8 else "")
            return f"blocks of {size} in the order {shown}"
    for size in _divisors(num):
        rows = p.reshape(-1, size)
        inner = rows - size * np.arange(num // size)[:, None]
        if (inner == inner[0]).all() and inner.min() >= 0 and inner.max() < size:
            return f"within every block of {size}: {described(inner[0])}"
    return None


def _divisors(num: int) -> list[int]:
    return [d for d in range(2, num) if num % d == 0]


def layouts(r: Floats, shape: tuple[int, ...]) -> Iterator[tuple[str, Floats]]:
    """Other layouts of the reference of a wanted shape: dimensions transposed, viewed instead of transposed,
    split into heads."""
    dims = range(r.ndim)
    if r.ndim <= 4:
        for order in permutations(dims):
            if order == tuple(dims):
                continue
            turned = r.transpose(order)
            if turned.shape == shape:
                yield f"dimensions in the order {_listed(order)}", turned
            elif turned.size == r.size:
                yield f"dimensions in the order {_listed(order)}, then viewed as {_listed(shape)}", turned
    if r.shape == shape and 2 <= r.ndim <= 3:
        yield from _heads(r)


def _heads(r: Floats) -> Iterator[tuple[str, Floats]]:
    """(..., T, D) with heads and positions mixed up: a transpose between the two left out or one too many."""
    *lead, length, width = r.shape
    for heads in _divisors(width):
        split = r.reshape(*lead, length, heads, width // heads)
        yield f"{heads} heads viewed without transposing them back", np.swapaxes(split, -3, -2)
        other = r.reshape(*lead, heads, length, width // heads)
        yield f"{heads} heads transposed once too often", np.swapaxes(other, -3, -2)


def equal_layout(t: Floats, candidate: Floats, rounding: float) -> bool:
    """Whether a candidate laid out flat gives the target; a look at a few elements first."""
    flat = t.ravel()
    probe = candidate.ravel()[:_PROBE] if candidate.flags.c_contiguous else candidate.flat[:_PROBE]
    if float(close(flat[:_PROBE], np.asarray(probe), rounding).mean()) < 0.99:
        return False
    return float(close(flat, candidate.ravel(), rounding).mean()) > 0.999


def _listed(values: tuple[int, ...]) -> str:
    return "(" + ", ".join(map(str, values)) + ")"
