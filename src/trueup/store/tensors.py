"""Stored tensor values: safetensors files, each written in one sweep while the step runs and mapped when
read.

The header room is reserved in front and padded with spaces, as the safetensors format allows, so that values
go from the training program's memory to the page cache in one copy and no chunk is ever held in memory.
"""

from __future__ import annotations

import json
import queue
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, TypedDict

import numpy as np

from trueup.errors import TraceError
from trueup.store.files import refuse_irregular
from trueup.store.layout import chunk_name
from trueup.types.arrays import Bytes
from trueup.types.pieces import PendingBytes, Pieces, await_disk

_HEADER_ROOM_BYTES = 1 << 18
HEADER_BYTES = 8 + _HEADER_ROOM_BYTES
"""of a chunk, before its values"""
_CHUNK_BYTES = 1 << 29
WAITING_BYTES = 1 << 28
"""bytes in host memory that are not on disk yet; the program waits while there are more"""
PROGRESS_SECONDS = 10.0
"""between two lines about a step that takes long to write"""

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


Progress = Callable[[int, int], None]
"""bytes of a step that are on disk, and that still wait"""


class ChunkWriter:
    """Appends tensors to ``tensors/chunk_NNNNN.safetensors`` in one step's temporary folder.

    Values are copied when passed in and written by a thread of its own, so that the disk works while the
    program computes; ``close`` waits for it.
    """

    def __init__(self, folder: Path, progress: Progress | None = None) -> None:
        self._folder = folder
        self.waited_seconds = 0.0
        """how long the program waited for the disk"""
        self._chunk = -1
        self._header: dict[str, object] = {}
        self._header_bytes = 0
        self._size_bytes = 0
        self._drain = _Drain(progress)

    def write(self, name: str, dtype: str, shape: tuple[int, ...], data: memoryview | Pieces) -> int:
        """Append one contiguous tensor and return the number of the chunk that holds it.

        Pieces are taken one by one, and written when they arrive.

        Raises:
            OSError: the disk is full or the folder has gone (perhaps found out on a later call).
        """
        stored = SAFETENSORS_DTYPES.get(dtype)
        entry_bytes = _entry_bytes(name, len(shape))
        if self._chunk < 0 or _is_full(self._size_bytes, data.nbytes, self._header_bytes + entry_bytes):
            self._next_chunk()
        begin = self._size_bytes
        if isinstance(data, memoryview):
            self.waited_seconds += self._drain.write(data)
            self._size_bytes += data.nbytes
        else:
            self._write_pieces(data)
        self._header[name] = {
            "dtype": stored or "U8",
            "shape": list(shape) if stored else [data.nbytes],
            "data_offsets": [begin, self._size_bytes],
        }
        self._header_bytes += entry_bytes
        return self._chunk

    def _write_pieces(self, pieces: Pieces) -> None:
        """A tensor of which a piece fails leaves bytes that no name stands for."""
        before = pieces.waited_seconds
        try:
            for piece in pieces:
                self._drain.write_piece(piece)
                self._size_bytes += piece.nbytes
        finally:
            self.waited_seconds += pieces.waited_seconds - before

    def close(self) -> None:
        """Write the pending header; the folder then holds only whole safetensors files.

        Raises:
            OSError: something could not be written.
        """
        self._finish_chunk()
        self._drain.close()

    def abandon(self) -> None:
        """The step is being given up; nothing is waited for."""
        self._drain.abandon()

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


def file_bytes(tensors: Iterable[tuple[str, int, int]]) -> int:
    """Bytes of the chunks that hold these tensors: name, number of dims and bytes of each."""
    total = size = header = 0
    num_chunks = 0
    for name, num_dims, num_bytes in tensors:
        entry = _entry_bytes(name, num_dims)
        if num_chunks == 0 or _is_full(size, num_bytes, header + entry):
            num_chunks, size, header = num_chunks + 1, 0, 0
        total, size, header = total + num_bytes, size + num_bytes, header + entry
    return total + num_chunks * HEADER_BYTES


def _entry_bytes(name: str, num_dims: int) -> int:
    """Of a tensor's line in the header, at most."""
    return len(json.dumps(name)) + 24 * (num_dims + 4)


def _is_full(size: int, more: int, header: int) -> bool:
    """Whether a chunk of ``size`` bytes takes no more."""
    return bool(size and size + more > _CHUNK_BYTES) or header > _HEADER_ROOM_BYTES - 64


class _Drain:
    """A thread that writes one file after another; holds at most ``WAITING_BYTES`` not yet written, and what
    is larger alone."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._written_bytes = 0
        self._reported_at = time.monotonic()
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
            _write_all(self._file, bytes(HEADER_BYTES))

        self._put(work)

    def write(self, data: memoryview) -> float:
        """Append a copy to the file; returns how many seconds it waited for room."""
        start = time.monotonic()
        with self._room:
            while self._waiting_bytes and self._waiting_bytes + data.nbytes > WAITING_BYTES:
                await_disk(self._room)
        waited, kept = time.monotonic() - start, memoryview(bytes(data))
        self._write_later(kept.nbytes, lambda: kept, lambda: None)
        return waited

    def write_piece(self, piece: PendingBytes) -> None:
        """Append to the file what arrives."""
        self._write_later(piece.nbytes, piece.arrived, piece.release)

    def _write_later(
        self, num_bytes: int, arrived: Callable[[], memoryview], release: Callable[[], None]
    ) -> None:
        with self._room:
            self._waiting_bytes += num_bytes

        def work() -> None:
            try:
                if self._error is None and self._file is not None:
                    _write_all(self._file, arrived())
            finally:
                release()
                with self._room:
                    self._waiting_bytes -= num_bytes
                    self._written_bytes += num_bytes
                    self._room.notify_all()

        self._put(work, release)

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
            with self._room:
                while self._waiting_bytes:
                    await_disk(self._room)
            self._thread.join()
            self._thread = None
        self._raise()

    def abandon(self) -> None:
        """Write no more; the thread ends by itself."""
        self._error = self._error or OSError("the step was given up")
        self._queue.put(None)

    def _put(self, work: Callable[[], None], otherwise: Callable[[], None] = lambda: None) -> None:
        try:
            self._raise()
        except Exception:
            otherwise()
            raise
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
            if self._progress is not None and time.monotonic() > self._reported_at + PROGRESS_SECONDS:
                self._reported_at = time.monotonic()
                self._progress(self._written_bytes, self._waiting_bytes)
        if self._file is not None:  # given up
            self._file.close()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error


def _write_all(file: IO[bytes], data: bytes | memoryview) -> None:
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
            mapped = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))  # each view of a memmap costs
            (length,) = struct.unpack("<Q", mapped[:8].tobytes())
            header = json.loads(mapped[8 : 8 + length].tobytes())
            if not isinstance(header, dict):
                raise ValueError("its header is no JSON object")
            return mapped[8 + length :], header
        except (OSError, ValueError, struct.error, OverflowError, RecursionError) as error:
            raise TraceError(f"{path} is not a readable safetensors file: {error}") from error
