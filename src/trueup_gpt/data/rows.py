"""Rows of token ids cut from one long stream: text, ``.npy``, Megatron's indexed dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np

from trueup.batches.indexed_dataset import IndexedDataset
from trueup.errors import ConfigError
from trueup.types.arrays import Array as Ids

_TEXTS = (".txt", ".md", ".rst", ".py", ".text")


class Stream(Protocol):
    """Token ids, one after the other."""

    @property
    def num_tokens(self) -> int:
        """How many."""

    def stream(self, start: int, stop: int) -> Ids:
        """Ids ``start`` up to ``stop``."""


class StreamRows:
    """Row r is tokens r * T to r * T + T, one more than T: inputs and labels."""

    def __init__(self, stream: Stream, seq_length: int) -> None:
        self._stream, self._length = stream, seq_length

    def __len__(self) -> int:
        return max(0, (self._stream.num_tokens - 1) // self._length)

    def __getitem__(self, number: int) -> Ids:
        start = number * self._length
        return self._stream.stream(start, start + self._length + 1)


class ArrayStream:
    """Ids in an array, in memory or mapped."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self.num_tokens = len(ids)

    def stream(self, start: int, stop: int) -> Ids:
        """See ``Stream``."""
        return self._ids[start:stop]


def rows_from_text(text: bytes, seq_length: int) -> StreamRows:
    """Bytes are the vocabulary."""
    return StreamRows(ArrayStream(np.frombuffer(text, np.uint8)), seq_length)


def text_of(path: Path, eos_token_id: int) -> bytes:
    """A text file, or all of a folder in the order of their names with ``eos_token_id`` between them.

    Raises:
        ConfigError: there is none.
    """
    if path.is_file():
        return path.read_bytes()
    files = sorted(one for one in path.rglob("*") if one.suffix in _TEXTS)
    if not files:
        raise ConfigError(
            f"{path} holds no data: text ({', '.join(_TEXTS)}), .npy, .bin with .idx, or recorded batches"
        )
    return bytes([eos_token_id % 256]).join(one.read_bytes() for one in files)


class ArrayRows:
    """Rows of a two-dimensional array."""

    def __init__(self, ids: Ids, seq_length: int) -> None:
        self._ids, self._length = ids, seq_length

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, number: int) -> Ids:
        return self._ids[number, : self._length + 1]


def rows_from_npy(path: Path, seq_length: int) -> StreamRows | ArrayRows:
    """Ids (tokens,) as a stream, or (rows, T + 1 or more) row by row.

    Raises:
        ConfigError: not such an array.
    """
    try:
        ids = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is no array: {error}") from error
    if not np.issubdtype(ids.dtype, np.integer) or ids.ndim not in (1, 2):
        raise ConfigError(
            f"{path} is {ids.dtype} {ids.shape}; expected integers, (tokens,) or (rows, tokens)"
        )
    if ids.ndim == 2 and ids.shape[1] <= seq_length:
        raise ConfigError(
            f"{path} has rows of {ids.shape[1]} tokens; seq_length {seq_length} needs one more than it"
        )
    return StreamRows(ArrayStream(ids), seq_length) if ids.ndim == 1 else ArrayRows(ids, seq_length)


def rows_from_indexed(prefix: Path, seq_length: int) -> StreamRows:
    """All sequences of a Megatron dataset, end to end."""
    return StreamRows(IndexedDataset(prefix), seq_length)
