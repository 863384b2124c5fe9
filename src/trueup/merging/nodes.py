"""A whole tensor as a tree over its parts: joined along a dim, terms of a sum, or copies of one another.

Every node tells its shape, its summary, and its values where all parts have them stored. Nothing is read
before it is asked for, and nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from trueup.merging.summary import Summary, joined, summed
from trueup.numerics.dtypes import DTYPES, float64_from_array
from trueup.types.arrays import Array, Ints
from trueup.types.codes import MergingCode
from trueup.types.placement import Segments
from trueup.types.reason import Reason, reason

Values = Array


class Unfit(Exception):
    """Parts that do not fit together as the layout says; ``reason`` tells how."""

    def __init__(self, code: MergingCode, cause: Reason | None = None, **facts: int | str) -> None:
        self.reason = reason(code, *(() if cause is None else (cause,)), **facts)
        super().__init__(self.reason.code.value, self.reason.facts)


class Node(Protocol):
    """See the module's docstring."""

    shape: tuple[int, ...]

    def summary(self) -> Summary:
        """What is known without values."""

    def values(self) -> Values | None:
        """Storage of the dtype, of ``shape``; None where some part has none."""

    def owners(self) -> Ints | None:
        """Of ``shape``: the rank that recorded each element; None where several made it together, or where it
        is not known which."""


class RankPart:
    """What one rank has recorded."""

    def __init__(self, rank: int, summary: Summary, read: Callable[[], Values | None] | None) -> None:
        self.rank, self.shape = rank, summary.shape
        self._summary, self._read = summary, read

    @property
    def stored(self) -> bool:
        """Whether its values were kept."""
        return self._read is not None

    def seen(self, shape: tuple[int, ...]) -> RankPart:
        """The same in another shape; its digest is no longer one."""
        return RankPart(self.rank, replace(self._summary, shape=shape, digest=None), self._read)

    def forget_sketch(self) -> None:
        """It was not taken at the part's place in the whole."""
        if self._summary.sketch is not None:
            self._summary = replace(self._summary, sketch=None)

    def summary(self) -> Summary:
        """As recorded."""
        return self._summary

    def values(self) -> Values | None:
        """As stored."""
        found = None if self._read is None else self._read()
        return None if found is None else found.reshape(self.shape)

    def owners(self) -> Ints:
        """The rank."""
        return np.full(self.shape, self.rank, np.int64)


class Join:
    """Disjoint parts along ``dim``, each with its segments of the whole; None: in an order unknown."""

    def __init__(self, children: Sequence[Node], dim: int, segments: Sequence[Segments] | None) -> None:
        self._children, self._segments = children, segments
        first = children[0].shape
        if not -len(first) <= dim < len(first):
            raise Unfit(MergingCode.NO_SUCH_DIM, dim=dim, shape=str(list(first)))
        self._dim = dim % len(first)
        for child in children[1:]:
            if len(child.shape) != len(first) or any(
                a != b for d, (a, b) in enumerate(zip(child.shape, first, strict=True)) if d != self._dim
            ):
                raise Unfit(
                    MergingCode.SHAPES_DIFFER,
                    one=str(list(first)),
                    other=str(list(child.shape)),
                    dim=self._dim,
                )
        lengths = [child.shape[self._dim] for child in children]
        if segments is not None and [sum(n for _, n in one) for one in segments] != lengths:
            raise Unfit(MergingCode.LENGTHS_DIFFER, lengths=str(lengths), dim=self._dim)
        self.shape = (*first[: self._dim], sum(lengths), *first[self._dim + 1 :])

    def summary(self) -> Summary:
        """Statistics add; the digest where each part is in one piece."""
        parts = [child.summary() for child in self._children]
        starts = None
        if self._segments is not None and all(len(one) <= 1 for one in self._segments):
            starts = [one[0][0] if one else 0 for one in self._segments]
        whole = joined(parts, self.shape, starts, self._dim)
        if self._segments is None:
            whole.digest = whole.sketch = None
        return whole

    def values(self) -> Values | None:
        """Put together."""
        return self._put_together(child.values() for child in self._children)

    def owners(self) -> Ints | None:
        """Put together."""
        return self._put_together(child.owners() for child in self._children)

    def _put_together(self, parts: Iterable[Array | None]) -> Array | None:
        if self._segments is None:
            return None
        out: Array | None = None
        for part, segments in zip(parts, self._segments, strict=True):
            if part is None:
                return None
            if out is None:
                out = np.empty(self.shape, part.dtype)
            at = 0
            before = (slice(None),) * self._dim
            for start, length in segments:
                place = (*before, slice(start, start + length))
                held = (*before, slice(at, at + length))
                out[place] = part[held]
                at += length
        return out


class Sum:
    """Terms, or with ``factor`` 1/n their mean."""

    def __init__(self, children: Sequence[Node], factor: float = 1.0) -> None:
        self._children, self._factor = children, factor
        self.shape = children[0].shape
        for child in children:
            if child.shape != self.shape:
                raise Unfit(MergingCode.TERMS_DIFFER, one=str(list(self.shape)), other=str(list(child.shape)))

    def summary(self) -> Summary:
        """What is linear."""
        return summed([child.summary() for child in self._children], self._factor)

    def values(self) -> Values | None:
        """Summed in float64, rounded once."""
        dtype = self._children[0].summary().dtype
        total: Values | None = None
        for child in self._children:
            part = child.values()
            if part is None:
                return None
            wide: Values = float64_from_array(part, dtype) if part.dtype.kind != "c" else part
            total = wide if total is None else total + wide
        return None if total is None else rounded(np.asarray(total * self._factor), dtype)

    def owners(self) -> Ints | None:
        """None of a sum of several."""
        return self._children[0].owners() if len(self._children) == 1 else None


class Scaled(Sum):
    """One tensor times a factor: its statistics too."""

    def __init__(self, child: Node, factor: float) -> None:
        super().__init__([child], factor)

    def summary(self) -> Summary:
        """Everything but the digest."""
        found, known = super().summary(), self._children[0].summary()
        for name in ("minimum", "maximum", "l2_norm", "smallest_nonzero"):
            number = getattr(known, name)
            setattr(found, name, None if number is None else number * self._factor)
        for name in ("num_nan", "num_posinf", "num_neginf", "num_zero"):
            setattr(found, name, getattr(known, name))
        return found


class Seen:
    """The same elements in another shape; coordinates change, so a digest does not survive."""

    def __init__(self, child: Node, shape: tuple[int, ...]) -> None:
        self._child, self.shape = child, shape
        if int(np.prod(child.shape)) != int(np.prod(shape)):
            raise Unfit(MergingCode.SIZE_DIFFERS, one=str(list(child.shape)), other=str(list(shape)))

    def summary(self) -> Summary:
        """That of the elements, in the new shape."""
        found = self._child.summary()
        digest = found.digest if self.shape == self._child.shape else None
        return replace(found, shape=self.shape, digest=digest)

    def values(self) -> Values | None:
        """Reshaped."""
        found = self._child.values()
        return None if found is None else found.reshape(self.shape)

    def owners(self) -> Ints | None:
        """Reshaped."""
        found = self._child.owners()
        return None if found is None else found.reshape(self.shape)


def rounded(values: Values, dtype: str) -> Values:
    """float64 in the storage of a dtype, rounded to nearest; float8 is not written."""
    entry = DTYPES[dtype]
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype == "bfloat16":
            bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
            nearest = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
            return np.asarray(np.where(np.isnan(values), np.uint64(0x7FC0), nearest).astype(np.uint16))
        if dtype.startswith("float8"):
            raise Unfit(MergingCode.SUM_NOT_ROUNDED, dtype=dtype)
        return np.asarray(values.astype(np.dtype(entry.storage)))
