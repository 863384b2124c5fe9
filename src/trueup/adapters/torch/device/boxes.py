"""Boxes of a tensor that torch operations take one at a time, and where each lies in the whole tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from trueup.numerics.digest import rebase

MAX_BOX = 1 << 20
"""real elements of a box: what operations on it leave in memory at once stays below 64 MB"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Part of a tensor: where it starts and its size in every dim."""

    start: tuple[int, ...]
    size: tuple[int, ...]

    @property
    def digest_factor(self) -> int:
        """What its digest is multiplied by in the tensor's."""
        return rebase(1, self.start)


def boxes_of(shape: Sequence[int], limit: int = MAX_BOX) -> Iterator[Box]:
    """Boxes that cover a tensor in row-major order, none of more than ``limit`` elements; none where it is
    empty.

    Example:
        >>> [box.size for box in boxes_of((3, 4), limit=8)]
        [(2, 4), (1, 4)]
    """
    numel = math.prod(shape)
    if numel == 0:
        return
    if numel <= limit:
        yield Box(start=(0,) * len(shape), size=tuple(shape))
        return
    cut = next(dim for dim in range(len(shape)) if math.prod(shape[dim + 1 :]) <= limit)
    rows, rest = limit // math.prod(shape[cut + 1 :]), len(shape) - cut - 1
    for outer in product(*(range(size) for size in shape[:cut])):
        for first in range(0, shape[cut], rows):
            taken = min(rows, shape[cut] - first)
            yield Box(
                start=(*outer, first, *(0,) * rest), size=(*(1,) * cut, taken, *shape[len(shape) - rest :])
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementRuns:
    """A box as rows of elements that follow one another in the whole tensor's row-major order.

    Attributes:
        first: row-major index, in the whole tensor, of the box's first element.
        length: elements of a row.
        steps: how many rows in each outer dim, and how far apart they start.
    """

    first: int
    length: int
    steps: tuple[tuple[int, int], ...]

    @property
    def last(self) -> int:
        """Index of the box's last element."""
        return self.first + self.length - 1 + sum((count - 1) * step for count, step in self.steps)


def runs_of(size: Sequence[int], whole: Sequence[int], offset: Sequence[int]) -> ElementRuns:
    """The rows of a box of this size that starts at ``offset`` in a tensor of shape ``whole``.

    Example:
        >>> runs_of((2, 3), (4, 5), (1, 2))
        Runs(first=7, length=3, steps=((2, 5),))
    """
    strides = [math.prod(whole[dim + 1 :]) for dim in range(len(whole))]
    first = sum(start * stride for start, stride in zip(offset, strides, strict=True))
    length = 1
    steps: list[tuple[int, int]] = []
    for count, stride in zip(reversed(size), reversed(strides), strict=True):
        if count == 1:
            continue
        if not steps and stride == length:
            length *= count
        else:
            steps.append((count, stride))
    return ElementRuns(first=first, length=length, steps=tuple(reversed(steps)))
