"""Labels beside the token ids they belong to: by how many places they are moved, and moving them."""

from __future__ import annotations

from collections import Counter

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
