"""Weights that lie as raw bytes in files: mapped when read, so that memory never grows with the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trueup.errors import WeightsError
from trueup.weights.plan import Values
from trueup.weights.weight_set import Table, WeightInfo, known, values_from_bytes

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteRange:
    """Bytes ``begin`` to ``end`` of one file."""

    path: Path
    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """A weight and where its row-major, little-endian bytes are: one span, or several in a row."""

    info: WeightInfo
    spans: tuple[ByteRange, ...]


class MappedWeights:
    """A ``WeightSet`` over spans of files."""

    def __init__(self, path: Path, located: Sequence[Located], *, remarks: Sequence[str] = ()) -> None:
        self.path = path
        self.remarks = tuple(remarks)
        self._located: Mapping[str, Located] = {entry.info.name: entry for entry in located}
        self.table: Table = {name: entry.info for name, entry in self._located.items()}
        self._mapped: tuple[Path, Bytes] | None = None

    def read(self, name: str) -> Values:
        """Values of one weight: a view of the mapped file where it lies there in one piece and aligned."""
        entry = self._located[known(self, name)]
        parts = [self._bytes(span) for span in entry.spans]
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else np.zeros(0, np.uint8)
        return values_from_bytes(whole, entry.info)

    def _bytes(self, span: ByteRange) -> Bytes:
        if span.begin == span.end:
            return np.zeros(0, np.uint8)
        if self._mapped is None or self._mapped[0] != span.path:
            self._mapped = span.path, mapped_file(span.path)
        return self._mapped[1][span.begin : span.end]


def mapped_file(path: Path) -> Bytes:
    """The bytes of ``path``, uint8 of shape (size,), not yet read.

    Raises:
        WeightsError: missing, a folder, not to be read, or empty.
    """
    try:
        if path.stat().st_size == 0:
            raise WeightsError(f"{path} is empty; was it written to the end?")
        mapped = np.memmap(path, dtype=np.uint8, mode="r")
    except FileNotFoundError:
        raise WeightsError(f"no such file: {path}") from None
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error.strerror or error}") from error
    return np.asarray(mapped)


def checked_span(path: Path, info: WeightInfo, begin: int, end: int, size: int) -> ByteRange:
    """A span that lies within ``size`` bytes and is as long as the weight.

    Raises:
        WeightsError: it is not; says the numbers.
    """
    if not 0 <= begin <= end <= size:
        raise WeightsError(
            f"{path}: {info.name} should be at bytes {begin} to {end}, but the file ends at {size}: "
            "it was cut off"
        )
    if end - begin != info.nbytes:
        raise WeightsError(
            f"{path}: {info.name} is {info.dtype} {list(info.shape)}, which is {info.nbytes} bytes, but "
            f"{end - begin} are there"
        )
    return ByteRange(path=path, begin=begin, end=end)
