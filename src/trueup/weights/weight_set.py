"""What every source of weights looks like: a table of names, dtypes and shapes, and one weight at a time.

Values are numpy arrays in the storage of ``numerics.dtypes``: bfloat16 travels as uint16 and fp8 as uint8
holding the raw bits, with the name of the dtype in the table. Nothing here rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Protocol

import numpy as np

from trueup.errors import WeightsError
from trueup.numerics.dtypes import DTYPES
from trueup.weights.plan import Values


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightInfo:
    """One weight without its values. ``dtype`` is a name of ``numerics.dtypes``."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its values."""
        return prod(self.shape) * DTYPES[self.dtype].itemsize


Table = Mapping[str, WeightInfo]
"""Weights by name, in the order of their file."""


class WeightSet(Protocol):
    """Weights that are read one at a time."""

    @property
    def path(self) -> Path:
        """The file or folder they are in."""

    @property
    def table(self) -> Table:
        """Every weight by name; known without reading values."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences a person should see: above all what is left out, being no weight that can be read."""

    def read(self, name: str) -> Values:
        """Values of one weight, of the shape and dtype of the table; perhaps a view of a mapped file."""


def rows_of_vocabulary(weights: WeightSet) -> int | None:
    """Rows of the embedding that are no padding, where the source says it, as Megatron's arguments do."""
    rows: int | None = getattr(weights, "vocabulary", None)
    return rows


class MemoryWeights:
    """Weights from arrays at hand, for callers that have no file.

    Args:
        arrays: by name; any layout, either byte order.
        dtypes: names for arrays that hold bits of a dtype numpy lacks, such as ``{"w": "bfloat16"}``.
        path: what errors call them.

    Raises:
        WeightsError: a dtype that is not supported.

    Example:
        >>> MemoryWeights({"w": np.zeros((2, 3), "float32")}).table["w"].shape
        (2, 3)
    """

    def __init__(
        self,
        arrays: Mapping[str, Values],
        *,
        dtypes: Mapping[str, str] | None = None,
        path: Path | None = None,
    ) -> None:
        self.path = path or Path("memory")
        self.remarks: tuple[str, ...] = ()
        self._arrays = {name: in_storage(array) for name, array in arrays.items()}
        named = dtypes or {}
        self.table: Table = {
            name: WeightInfo(
                name=name,
                dtype=checked_dtype(named.get(name, array.dtype.name), name, self.path),
                shape=array.shape,
            )
            for name, array in self._arrays.items()
        }

    def read(self, name: str) -> Values:
        """The array of that name."""
        return self._arrays[known(self, name)]


def in_storage(array: Values) -> Values:
    """``array`` in little-endian byte order; values stay, and so does the shape of a 0-d array."""
    return array.astype(array.dtype.newbyteorder("<")) if array.dtype.byteorder == ">" else array


def checked_dtype(dtype: str, name: str, path: Path) -> str:
    """``dtype`` itself.

    Raises:
        WeightsError: nothing here can hold it.
    """
    if dtype not in DTYPES:
        raise WeightsError(f"{path}: {name} is of dtype {dtype}; supported are {', '.join(DTYPES)}")
    return dtype


def known(weights: WeightSet, name: str) -> str:
    """``name`` itself.

    Raises:
        WeightsError: there is no such weight; names that look like it are given.
    """
    if name in weights.table:
        return name
    from difflib import get_close_matches

    near = get_close_matches(name, list(weights.table), n=3, cutoff=0.6)
    there = ", ".join(near or list(weights.table)[:3]) or "none"
    raise WeightsError(f"{weights.path} has no weight {name!r}; {'nearest' if near else 'there'}: {there}")


def values_from_bytes(data: Values, info: WeightInfo) -> Values:
    """Raw bytes, uint8 of shape (nbytes,), as the values of ``info``; copied only where not aligned."""
    dtype = np.dtype(DTYPES[info.dtype].storage)
    aligned = data if data.ctypes.data % dtype.itemsize == 0 else data.copy()
    return aligned.view(dtype).reshape(info.shape)


def raw_bytes(values: Values) -> memoryview:
    """Row-major bytes of ``values``; a copy only where they are not contiguous."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def same_bits(one: Values, other: Values) -> bool:
    """Whether two arrays of one shape hold the same bytes: -0 is not 0, a NaN equals itself."""
    if one.shape != other.shape or one.dtype.itemsize != other.dtype.itemsize:
        return False
    word = f"u{one.dtype.itemsize}" if one.dtype.itemsize <= 8 else "V16"
    return bool(np.array_equal(np.ascontiguousarray(one).view(word), np.ascontiguousarray(other).view(word)))
