"""Stored tensor values: safetensors files, each written in one sweep while the step runs and mapped when
read.

The header room is reserved in front and padded with spaces, as the safetensors format allows, so that values
go from the training program's memory to the page cache in one copy and no chunk is ever held in memory.
"""

from __future__ import annotations

import contextlib
import json
import queue
import struct
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, TypedDict

import numpy as np

from trueup.errors import TraceError
from trueup.store.files import refuse_irregular
from trueup.store.layout import chunk_name
from trueup.types.arrays import Bytes

_HEADER_ROOM_BYTES = 1 << 18
_CHUNK_BYTES = 1 << 29
_WAITING_BYTES = 1 << 28

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
"""Other dtypes are stored as their raw bytes (``U8``, last dimension in bytes); the summary keeps the true
dtype."""


class ChunkWriter:
    """Appends tensors to ``tensors/chunk_NNNNN.safetensors`` in one step's temporary folder.

    Values are copied when passed in and written by a thread of its own, so that the disk works while the
    program computes; ``close`` waits for it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._chunk = -1
        self._header: dict[str, object] = {}
        self._header_bytes = 0
        self._size_bytes = 0
        self._drain = _Drain()

    def write(self, name: str, dtype: str, shape: tuple[int, ...], data: memoryview) -> int:
        """Append one contiguous tensor and return the number of the chunk that holds it.

        Raises:
            OSError: the disk is full or the folder has gone (perhaps found out on a later call).
        """
        stored = SAFETENSORS_DTYPES.get(dtype)
        entry_bytes = len(json.dumps(name)) + 24 * (len(shape) + 4)
        full = self._size_bytes and self._size_bytes + data.nbytes > _CHUNK_BYTES
        if self._chunk < 0 or full or self._header_bytes + entry_bytes > _HEADER_ROOM_BYTES - 64:
            self._next_chunk()
        self._header[name] = {
            "dtype": stored or "U8",
            "shape": list(shape) if stored else [data.nbytes],
            "data_offsets": [self._size_bytes, self._size_bytes + data.nbytes],
        }
        self._drain.write(bytes(data))
        self._header_bytes += entry_bytes
        self._size_bytes += data.nbytes
        return self._chunk

    def close(self) -> None:
        """Write the pending header; the folder then holds only whole safetensors files.

        Raises:
            OSError: something could not be written.
        """
        self._finish_chunk()
        self._drain.close()

    def abandon(self) -> None:
        """Close without a header: the step is being given up."""
        with contextlib.suppress(OSError):
            self._drain.close()

    def _finish_chunk(self) -> None:
        if self._chunk >= 0:
            header = json.dumps(self._header, separators=(",", ":")).encode()
            self._drain.finish(struct.pack("<Q", _HEADER_ROOM_BYTES) + header.ljust(_HEADER_ROOM_BYTES))

    def _next_chunk(self) -> None:
        self._finish_chunk()
        self._chunk += 1
        self._header, self._header_bytes, self._size_bytes = {}, 0, 0
        self._folder.mkdir(parents=True, exist_ok=True)
        self._drain.start(self._folder / chunk_name(self._chunk))


class _Drain:
    """A thread that writes one file after another; holds at most ``_WAITING_BYTES`` not yet written."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._room = threading.Condition()
        self._waiting_bytes = 0
        self._error: Exception | None = None
        """the first error; nothing is whole after it"""
        self._file: IO[bytes] | None = None
        self._thread: threading.Thread | None = None

    def start(self, path: Path) -> None:
        """Open the next file, leaving room for its header."""

        def work() -> None:
            self._file = path.open("wb", buffering=0)
            _write_all(self._file, bytes(8 + _HEADER_ROOM_BYTES))

        self._put(work)

    def write(self, data: bytes) -> None:
        """Append to the file; waits while too much is unwritten."""
        with self._room:
            self._room.wait_for(lambda: self._waiting_bytes < _WAITING_BYTES)
            self._waiting_bytes += len(data)

        def work() -> None:
            try:
                if self._error is None and self._file is not None:
                    _write_all(self._file, data)
            finally:
                with self._room:
                    self._waiting_bytes -= len(data)
                    self._room.notify()

        self._put(work)

    def finish(self, header: bytes) -> None:
        """Write the header and close the file."""

        def work() -> None:
            if self._file is not None:
                self._file.seek(0)
                _write_all(self._file, header)
                self._file.close()
                self._file = None

        self._put(work)

    def close(self) -> None:
        """Wait until everything is written.

        Raises:
            OSError: something could not be.
        """
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
        if self._file is not None:
            self._file.close()
            self._file = None
        self._raise()

    def _put(self, work: Callable[[], None]) -> None:
        self._raise()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="trueup-writer", daemon=True)
            self._thread.start()
        self._queue.put(work)

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work()
            except Exception as error:
                self._error = self._error or error

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error


def _write_all(file: IO[bytes], data: bytes) -> None:
    """One system call writes at most 2 GiB."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


class _Entry(TypedDict):
    data_offsets: tuple[int, int]


class ChunkReader:
    """Maps the chunks of one step; a tensor's bytes are read when touched."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._chunks: dict[int, tuple[Bytes, Mapping[str, _Entry]]] = {}

    def raw(self, chunk: int, name: str) -> Bytes:
        """The bytes of one tensor, uint8 of shape (nbytes,), mapped.

        Raises:
            TraceError: the file is missing or damaged, or holds no such tensor.
        """
        if chunk not in self._chunks:
            self._chunks[chunk] = self._open(self._folder / chunk_name(chunk))
        data, header = self._chunks[chunk]
        if name not in header:
            raise TraceError(f"{self._folder / chunk_name(chunk)} holds no tensor named {name!r}")
        try:
            begin, end = header[name]["data_offsets"]
            held = 0 <= begin <= end <= data.size
        except (KeyError, TypeError, ValueError):
            held = False
        if not held:
            raise TraceError(
                f"{self._folder / chunk_name(chunk)}: tensor {name} does not lie in the file, which "
                "was cut off or damaged; leave the step out with --steps"
            )
        return data[begin:end]

    @staticmethod
    def _open(path: Path) -> tuple[Bytes, Mapping[str, _Entry]]:
        try:
            refuse_irregular(path)
            mapped = np.memmap(path, dtype=np.uint8, mode="r")
            (length,) = struct.unpack("<Q", mapped[:8].tobytes())
            header = json.loads(mapped[8 : 8 + length].tobytes())
            if not isinstance(header, dict):
                raise ValueError("its header is no JSON object")
            return mapped[8 + length :], header
        except (OSError, ValueError, struct.error, OverflowError, RecursionError) as error:
            raise TraceError(f"{path} is not a readable safetensors file: {error}") from error
