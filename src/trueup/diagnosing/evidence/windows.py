"""Which part of a large tensor is looked at: cut around the first difference, rows kept whole."""

from __future__ import annotations

import numpy as np

from trueup.diagnosing.evidence.facts import Known, Window

MAX_VALUES = 1 << 18
"""Of a larger tensor only a part of this size is widened to float64."""
MAX_WHOLE = 1 << 22
"""Even for what only the whole can show, a tensor is not widened beyond this."""
_LEAST_ROWS = 4
_CHUNK = 1 << 22


def window_of(target: Known | None, reference: Known | None, shape: tuple[int, ...]) -> Window | None:
    """A part of at most ``MAX_VALUES`` elements, None where the tensor is no larger.

    Leading dimensions are cut first, one after the other, the last one (a row) last, so that what works row
    by row still can.
    """
    sizes = list(shape)
    num = int(np.prod(sizes, dtype=np.int64))
    if num <= MAX_VALUES:
        return None
    for dim in range(len(sizes)):
        least = 1 if dim < len(sizes) - 2 else _LEAST_ROWS if dim == len(sizes) - 2 else 1
        rest = num // sizes[dim]
        sizes[dim] = min(sizes[dim], max(MAX_VALUES // rest, least))
        num = rest * sizes[dim]
        if num <= MAX_VALUES:
            break
    first = np.unravel_index(first_difference(target, reference), shape)
    return tuple(_around(int(at), size, full) for at, size, full in zip(first, sizes, shape, strict=True))


def _around(at: int, size: int, full: int) -> tuple[int, int]:
    start = min(max(at - size // 4, 0), full - size)
    return start, start + size


def first_difference(target: Known | None, reference: Known | None) -> int:
    """Row-major index of the first element whose bits differ, 0 where that is not known."""
    if (
        target is None
        or reference is None
        or (target.dtype, target.shape) != (reference.dtype, reference.shape)
    ):
        return 0
    if target.raw is None or reference.raw is None:
        return 0
    a, b = (k.raw.reshape(-1).view(np.uint8) for k in (target, reference) if k.raw is not None)
    for start in range(0, len(a), _CHUNK):
        different = a[start : start + _CHUNK] != b[start : start + _CHUNK]
        if different.any():
            return int(start + int(np.argmax(different))) // (len(a) // target.numel)
    return 0
