"""Labels beside the token ids they belong to: by how many places they are moved, and moving them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trueup.types.arrays import Array

Ints = Array
Agreement = Counter[tuple[int, str]]
"""(shift, "equal" or "counted") -> positions; those of several batches are added"""

MAX_SHIFT = 4
IGNORE_INDEX = -100
"""the label that every framework leaves out of the loss unless it is told another"""
_SURE = 0.9
"""share of labels that must be the input so many places on; packed sequences break it at their seams"""
_ORDER = (1, 0, *(s for n in range(2, MAX_SHIFT + 1) for s in (n, -n)), -1)
"""where the ids repeat and several hold, the first: never one by which labels would be moved again"""


def agreement(labels: Ints, live: NDArray[np.bool_], tokens: Ints) -> Agreement:
    """How often ``labels[:, i] == tokens[:, i + shift]``, for each shift, over positions that are ``live``.

    Args:
        labels: integers, (B, W).
        live: which of them count in the loss, (B, W).
        tokens: integers, (B, T).
    """
    found: Agreement = Counter()
    for shift in _ORDER:
        first, last = max(0, -shift), min(labels.shape[1], tokens.shape[1] - shift)
        if last > first:
            counts = live[:, first:last]
            equal = labels[:, first:last] == tokens[:, first + shift : last + shift]
            found[shift, "equal"] += int((equal & counts).sum())
            found[shift, "counted"] += int(counts.sum())
    return found


def shift_of(found: Agreement) -> int | None:
    """The shift that holds best; None where none holds, or nothing counted.

    Example:
        >>> ids = np.arange(32).reshape(2, 16)
        >>> shift_of(agreement(ids + 1, ids >= 0, ids))
        1
    """
    best: tuple[float, int] | None = None
    for shift in _ORDER:
        counted = found[shift, "counted"]
        share = found[shift, "equal"] / counted if counted else 0.0
        if share >= _SURE and (best is None or share > best[0]):
            best = share, shift
    return None if best is None else best[1]


def laid_beside(labels: Ints, tokens: Ints, *, fill: float = IGNORE_INDEX) -> Ints | None:
    """Labels, or weights of the loss, as (B, T) beside tokens (B, T); None where they cannot be.

    They come flat, as (T, B), or one position a row short (a program that drops the last one); ``fill`` is
    put there.
    """
    rows, width = tokens.shape
    if labels.ndim == 2 and labels.shape == (width, rows) and rows != width:
        labels = labels.T
    if not rows or labels.size % rows or labels.size // rows not in (width, width - 1):
        return None
    laid = labels.reshape(rows, -1)
    if laid.shape[1] < width:
        laid = np.concatenate([laid, np.full((rows, 1), fill, laid.dtype)], axis=1)
    return np.ascontiguousarray(laid)


def whole_labels(parts: Sequence[Ints], tokens: Ints | None, *, ignore_index: int = IGNORE_INDEX) -> Ints:
    """The labels of a loss: its parts as one where they are pieces of one, else the first of them."""
    if len(parts) == 1 or tokens is None:
        return parts[0]
    rows = rows_of_parts(parts, tokens, ignore_index=ignore_index)
    whole = None if rows is None else join(parts, rows)
    return parts[0] if whole is None else whole


def rows_of_parts(parts: Sequence[Ints], tokens: Ints, *, ignore_index: int = IGNORE_INDEX) -> int | None:
    """By how many rows the parts of a loss lie side by side, for ``join``; None where they are not one whole.

    A loss worked out in chunks has its labels in several tensors: pieces of all tokens one after the other
    (1), or pieces of every row, flattened (B). Where both ways fit, the one whose labels are the tokens some
    places on. Labels of several depths, each as long as the tokens, are no pieces.

    Args:
        parts: in the order in which the program used them.
        tokens: (B, T).
        ignore_index: the label that does not count.
    """
    shares: dict[int, float] = {}
    for rows in {1, len(tokens)} if len(tokens) else ():
        whole = join(parts, rows)
        laid = None if whole is None else laid_beside(whole, tokens, fill=ignore_index)
        if laid is not None:
            found = agreement(laid, laid != ignore_index, tokens)
            shares[rows] = max(found[s, "equal"] / max(found[s, "counted"], 1) for s in _ORDER)
    return max(shares, key=lambda rows: (shares[rows], -rows)) if shares else None


def join(parts: Sequence[Ints], rows: int) -> Ints | None:
    """The parts, each as so many rows, side by side, flat; None where they are no whole rows.

    Example:
        >>> join([np.array([1, 2, 5, 6]), np.array([3, 4, 7, 8])], 2)
        array([1, 2, 3, 4, 5, 6, 7, 8])
    """
    if len(parts) == 1:
        return parts[0]
    if any(part.size % rows for part in parts):
        return None
    return np.concatenate([part.reshape(rows, -1) for part in parts], axis=1).ravel()


def same_parts(target: Sequence[Ints], reference: Sequence[Ints]) -> bool:
    """Whether the parts of both sides are the same numbers cut elsewhere: one after the other, or row by row.

    Example:
        >>> same_parts([np.array([1, 2, 5, 6]), np.array([3, 4, 7, 8])], [np.arange(1, 9)])
        True
    """
    if sum(part.size for part in target) != sum(part.size for part in reference):
        return False
    return not _wholes(target).isdisjoint(_wholes(reference))


def same_but_for_ignored(
    target: Sequence[Ints], reference: Sequence[Ints], *, ignore_index: int = IGNORE_INDEX
) -> bool:
    """Whether one side has the other's labels and, at the end of every row, some that do not count.

    A program that drops the last logits has one label a sequence less than one that ignores the last label.

    Example:
        >>> same_but_for_ignored([np.array([1, 2, 5, 6])], [np.array([1, 2, -100, 5, 6, -100])])
        True
    """
    if len(target) != 1 or len(reference) != 1:
        return False
    short, long = sorted((target[0].ravel(), reference[0].ravel()), key=len)
    more = len(long) - len(short)
    for columns in range(1, MAX_SHIFT + 1):
        rows = more // columns
        if not rows or more % columns or len(short) % rows:
            continue
        whole = long.reshape(rows, -1)
        rest, kept = whole[:, -columns:], whole[:, :-columns].ravel()
        if (rest == ignore_index).all() and np.array_equal(kept, short):
            return True
    return False


def _wholes(parts: Sequence[Ints]) -> set[bytes]:
    """Hashes of what the parts may be together: side by side as any number of rows that divides them all."""
    size = int(np.gcd.reduce([part.size for part in parts]))
    wholes = (
        [join(parts, rows) for rows in range(1, size + 1) if size % rows == 0] if len(parts) > 1 else parts
    )
    return {
        hashlib.blake2b(np.ascontiguousarray(whole, np.float64).tobytes()).digest()
        for whole in wholes
        if whole is not None
    }


def moved(array: Ints, places: int, *, fill: float) -> Ints:
    """``array[:, i + places]`` at ``i``, and ``fill`` where there is none.

    Example:
        >>> moved(np.array([[1, 2, 3]]), 1, fill=-100)
        array([[   2,    3, -100]])
    """
    out = np.full_like(array, fill)
    width = array.shape[1]
    if abs(places) < width:
        out[:, max(-places, 0) : width - max(places, 0)] = array[:, max(places, 0) : width + min(places, 0)]
    return out
