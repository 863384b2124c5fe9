"""Megatron's indexed dataset, ``PREFIX.bin`` and ``PREFIX.idx``, read and written without Megatron.

``.bin`` is the token ids of all sequences, one after the other. ``.idx``, little-endian: 9 bytes ``MMIDIDX``
and two zeros; version, uint64, 1; dtype code, uint8; number of sequences and of document marks, uint64 each;
then a length (int32) and a byte offset in ``.bin`` (int64) for each sequence, and the marks (int64): the
number of the sequence each document begins with, and at the end the number of sequences. A multimodal file
has one int8 more a sequence, which is not looked at. (Megatron-core 0.16, ``core.datasets.indexed_dataset``.)
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trueup.errors import ConfigError, TraceError
from trueup.types.arrays import Array, Dtype

MAGIC = b"MMIDIDX\x00\x00"
_HEAD = struct.Struct("<QBQQ")
_VERSION = 1
_DTYPES: dict[int, Dtype] = {
    1: np.dtype("u1"),
    2: np.dtype("i1"),
    3: np.dtype("<i2"),
    4: np.dtype("<i4"),
    5: np.dtype("<i8"),
    8: np.dtype("<u2"),
}
"""code -> dtype; 6 and 7 are floating-point, which no token id is"""
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_UINT16_IDS = 65500
"""vocabulary from which on Megatron stores int32"""


def dtype_for(largest_id: int) -> Dtype:
    """uint16 where every id fits as Megatron judges that (below 65500), else int32.

    Example:
        >>> dtype_for(50256), dtype_for(128255)
        (dtype('uint16'), dtype('int32'))
    """
    return np.dtype("<u2") if largest_id < _UINT16_IDS else np.dtype("<i4")


def prefix_of(path: Path) -> Path:
    """The prefix, given it or one of the two files."""
    return path.with_suffix("") if path.suffix in (".bin", ".idx") else path


def files_of(prefix: Path) -> tuple[Path, Path]:
    """Its ``.bin`` and its ``.idx``; a prefix may have dots."""
    return Path(f"{prefix}.bin"), Path(f"{prefix}.idx")


class IndexedDataset:
    """Sequences of token ids, read from a mapped file.

    ``sizes`` int32 (N,), ``documents`` int64 (D + 1,): document d is sequences ``documents[d]`` up to, not
    including, ``documents[d + 1]``.

    Example:
        >>> IndexedDataset(Path("corpus_text_document"))[0]      # doctest: +SKIP
        array([464, 2068, 7586], dtype=uint16)

    Raises:
        TraceError: a file is missing, damaged, of another format or version, or holds no integers.
    """

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        tokens, index = files_of(prefix)
        try:
            data = index.read_bytes()
            size = tokens.stat().st_size
        except OSError as error:
            raise TraceError(f"{error.filename} cannot be read: {error.strerror or error}") from error
        self.dtype, num_sequences, num_marks = _head(data, index)
        at = len(MAGIC) + _HEAD.size
        if len(data) < at + 12 * num_sequences + 8 * num_marks:
            raise TraceError(f"{index} ends too early for its {num_sequences} sequences: is it whole?")
        self.sizes = np.frombuffer(data, "<i4", num_sequences, at)
        self._offsets = np.frombuffer(data, "<i8", num_sequences, at + 4 * num_sequences)
        self.documents = np.frombuffer(data, "<i8", num_marks, at + 12 * num_sequences)
        self._check(index, tokens, size)
        self._ends = np.cumsum(self.sizes.astype(np.int64))
        self._tokens: Array = np.memmap(tokens, self.dtype, "r") if size else np.zeros(0, self.dtype)

    def _check(self, index: Path, tokens: Path, num_bytes: int) -> None:
        ends = self._offsets + self.sizes.astype(np.int64) * self.dtype.itemsize
        if (self.sizes < 0).any() or (self._offsets < 0).any() or (self._offsets % self.dtype.itemsize).any():
            raise TraceError(f"{index} is damaged: a sequence has a negative length or begins within a token")
        if num_bytes % self.dtype.itemsize or (len(ends) and ends.max() > num_bytes):
            wanted = int(ends.max()) if len(ends) else 0
            raise TraceError(
                f"{tokens} has {num_bytes} bytes, {index.name} speaks of {wanted}: another file, or cut?"
            )
        marks = self.documents
        if len(marks) and (marks[0] != 0 or marks[-1] != len(self.sizes) or (np.diff(marks) < 0).any()):
            raise TraceError(
                f"{index} is damaged: its documents do not cover its {len(self.sizes)} sequences"
            )

    def __len__(self) -> int:
        """Number of sequences."""
        return len(self.sizes)

    def __getitem__(self, number: int) -> Array:
        """The ids of one sequence, (length,), of the file's dtype."""
        start = int(self._offsets[number]) // self.dtype.itemsize
        return self._tokens[start : start + int(self.sizes[number])]

    @property
    def num_tokens(self) -> int:
        """Of all sequences."""
        return int(self.sizes.astype(np.int64).sum())

    def stream(self, start: int, stop: int) -> Array:
        """Tokens ``start`` to ``stop`` of all sequences end to end, (stop - start,), of the file's dtype."""
        ends = self._ends
        first, last = (int(np.searchsorted(ends, at, side="right")) for at in (start, stop - 1))
        parts = [self[number] for number in range(first, last + 1)]
        begins = int(ends[first]) - int(self.sizes[first])
        return np.concatenate(parts)[start - begins : stop - begins]


def _head(data: bytes, index: Path) -> tuple[Dtype, int, int]:
    if not data.startswith(MAGIC):
        raise TraceError(f"{index} is no index of an indexed dataset: it does not begin with MMIDIDX")
    try:
        version, code, num_sequences, num_marks = _HEAD.unpack_from(data, len(MAGIC))
    except struct.error:
        raise TraceError(f"{index} ends within its head: is it whole?") from None
    if version != _VERSION:
        raise TraceError(f"{index} is of version {version}; {_VERSION} is read")
    if code not in _DTYPES:
        kind = "floating-point numbers" if code in (6, 7) else f"dtype code {code}"
        raise TraceError(f"{index} holds {kind}, no token ids")
    return _DTYPES[int(code)], int(num_sequences), int(num_marks)


def write_indexed_dataset(
    prefix: Path,
    sequences: Sequence[Array],
    *,
    documents: Sequence[int] | None = None,
    dtype: Dtype | str | None = None,
) -> Dtype:
    """Write ``PREFIX.bin`` and ``PREFIX.idx``; returns the dtype they have.

    Args:
        prefix: where; its folder must be there.
        sequences: integers, (length,) each.
        documents: how many sequences each document has; default: each is one.
        dtype: of the ids; default: uint16 or int32, by the largest.

    Raises:
        ConfigError: an id does not fit the dtype, or the documents do not cover the sequences.
    """
    largest = max((int(one.max()) for one in sequences if one.size), default=0)
    least = min((int(one.min()) for one in sequences if one.size), default=0)
    kind = dtype_for(largest) if dtype is None else np.dtype(dtype).newbyteorder("<")
    if kind not in _CODES:
        raise ConfigError(f"dtype {kind}: expected one of {', '.join(str(known) for known in _CODES)}")
    limits = np.iinfo(kind)
    if least < limits.min or largest > limits.max:
        raise ConfigError(f"token ids from {least} to {largest} do not fit {kind}")
    counts = [1] * len(sequences) if documents is None else list(documents)
    if sum(counts) != len(sequences) or min(counts, default=0) < 0:
        raise ConfigError(f"documents of {sum(counts)} sequences, but there are {len(sequences)}")
    sizes = np.array([one.size for one in sequences], np.int64)
    tokens, index = files_of(prefix)
    with tokens.open("wb") as file:
        for one in sequences:
            file.write(np.ascontiguousarray(one, kind).tobytes())
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]]) * kind.itemsize if len(sizes) else sizes
    marks = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    head = MAGIC + _HEAD.pack(_VERSION, _CODES[kind], len(sizes), len(marks))
    parts = (sizes.astype("<i4"), offsets.astype("<i8"), marks.astype("<i8"))
    index.write_bytes(head + b"".join(part.tobytes() for part in parts))
    return kind
