"""Stored tensor values: safetensors files, each written in one sweep while the step runs and mapped when read.

The header room is reserved in front and padded with spaces, as the safetensors format allows, so that values go
from the training program's memory to the page cache in one copy and no chunk is ever held in memory.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import IO, Any

import numpy as np

from trueup.errors import TraceError
from trueup.store.layout import chunk_name

_HEADER_ROOM_BYTES = 1 << 18
_CHUNK_BYTES = 1 << 29

SAFETENSORS_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
    "complex64": "C64",
}
"""Other dtypes are stored as their raw bytes (``U8``, last dimension in bytes); the summary keeps the true dtype."""


class ChunkWriter:
    """Appends tensors to ``tensors/chunk_NNNNN.safetensors`` in one step's temporary folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._chunk = -1
        self._file: IO[bytes] | None = None
        self._header: dict[str, Any] = {}
        self._header_bytes = 0
        self._size_bytes = 0

    def write(self, name: str, dtype: str, shape: tuple[int, ...], data: memoryview) -> int:
        """Append one contiguous tensor and return the number of the chunk that holds it.

        Raises:
            OSError: the disk is full or the folder has gone.
        """
        entry_bytes = len(name) + 24 * (len(shape) + 4)
        full = self._size_bytes and self._size_bytes + data.nbytes > _CHUNK_BYTES
        if self._file is None or full or self._header_bytes + entry_bytes > _HEADER_ROOM_BYTES - 64:
            self._next_chunk()
        assert self._file is not None
        stored = SAFETENSORS_DTYPES.get(dtype)
        self._header[name] = {
            "dtype": stored or "U8",
            "shape": list(shape) if stored else [data.nbytes],
            "data_offsets": [self._size_bytes, self._size_bytes + data.nbytes],
        }
        self._file.write(data)
        self._header_bytes += entry_bytes
        self._size_bytes += data.nbytes
        return self._chunk

    def close(self) -> None:
        """Write the pending header; the folder then holds only whole safetensors files."""
        if self._file is None:
            return
        header = json.dumps(self._header, separators=(",", ":")).encode()
        self._file.seek(0)
        self._file.write(struct.pack("<Q", _HEADER_ROOM_BYTES) + header.ljust(_HEADER_ROOM_BYTES))
        self._file.close()
        self._file = None

    def abandon(self) -> None:
        """Close without a header: the step is being given up."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _next_chunk(self) -> None:
        self.close()
        self._chunk += 1
        self._header, self._header_bytes, self._size_bytes = {}, 0, 0
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file = (self._folder / chunk_name(self._chunk)).open("wb", buffering=0)
        self._file.write(b"\0" * (8 + _HEADER_ROOM_BYTES))


class ChunkReader:
    """Maps the chunks of one step; a tensor's bytes are read when touched."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._chunks: dict[int, tuple[np.memmap[Any, Any], dict[str, Any]]] = {}

    def raw(self, chunk: int, name: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The bytes of one tensor, uint8 of shape (nbytes,), mapped.

        Raises:
            TraceError: the file is missing or damaged, or holds no such tensor.
        """
        if chunk not in self._chunks:
            self._chunks[chunk] = self._open(self._folder / chunk_name(chunk))
        data, header = self._chunks[chunk]
        if name not in header:
            raise TraceError(f"{self._folder / chunk_name(chunk)} holds no tensor named {name!r}")
        begin, end = header[name]["data_offsets"]
        return data[begin:end]

    @staticmethod
    def _open(path: Path) -> tuple[np.memmap[Any, Any], dict[str, Any]]:
        try:
            mapped = np.memmap(path, dtype=np.uint8, mode="r")
            (length,) = struct.unpack("<Q", mapped[:8].tobytes())
            header = json.loads(mapped[8 : 8 + length].tobytes())
            return mapped[8 + length :], header
        except (OSError, ValueError, struct.error) as error:
            raise TraceError(f"{path} is not a readable safetensors file: {error}") from error
