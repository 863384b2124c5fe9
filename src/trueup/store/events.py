"""TensorBoard event files, written and read without TensorBoard or TensorFlow.

A file is records of length, checksum of the length, message (``tensorflow.Event``), checksum of the message
(CRC-32C, masked). Steps that have the same scalars have messages of the same length: they are filled into one
template, and their checksums are computed side by side.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trueup.store.protobuf import Damaged, field_bytes, fields, unsigned

_WALL_TIME, _STEP, _VERSION, _SUMMARY = 1, 2, 3, 5
_VALUE, _TAG, _SIMPLE, _TENSOR = 1, 1, 2, 8
_VARINT, _FIXED64, _FIXED32 = 0, 1, 5
_DTYPE, _CONTENT, _FLOATS, _DOUBLES = 1, 4, 5, 6
_FLOAT, _DOUBLE = 1, 2
_STEP_BYTES = 5
"""a step is written as a number of always so many bytes, its leading zeros included"""
VERSION = b"brain.Event:"

Bytes = NDArray[np.uint8]


class EventWriter:
    """A new file in ``folder``; TensorBoard shows the files of a folder as one run.

    Example:
        >>> board = EventWriter(Path("runs/a"))  # doctest: +SKIP
        >>> board.add(0, {"loss": 5.5})  # doctest: +SKIP
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        self._file = (folder / f"events.out.tfevents.{now:.0f}.{os.getpid()}").open("ab")
        self._write(version(now))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Scalars of a step, stored as float32; in the file at once."""
        numbers = np.asarray([list(values.values())], np.float64)
        self._write(events(list(values), np.asarray([step]), np.asarray([time.time()]), numbers))

    def _write(self, messages: Bytes) -> None:
        self._file.write(records(messages).tobytes())
        self._file.flush()

    def close(self) -> None:
        """Close the file; everything added is in it already."""
        self._file.close()


def events(
    tags: Sequence[str], steps: NDArray[np.int64], times: NDArray[np.float64], values: NDArray[np.float64]
) -> Bytes:
    """One message a step, (steps, bytes)."""
    simple = bytes([_SIMPLE << 3 | _FIXED32]) + bytes(4)
    entries = [field_bytes(_VALUE, field_bytes(_TAG, tag.encode()) + simple) for tag in tags]
    head = bytes([_WALL_TIME << 3 | _FIXED64]) + bytes(8) + bytes([_STEP << 3 | _VARINT]) + bytes(_STEP_BYTES)
    body = b"".join(entries)
    template = np.frombuffer(head + field_bytes(_SUMMARY, body), np.uint8)
    messages = np.repeat(template[None], len(steps), axis=0)
    messages[:, 1:9] = times.astype("<f8").view(np.uint8).reshape(-1, 8)
    for place in range(_STEP_BYTES):
        more = 0x80 if place < _STEP_BYTES - 1 else 0
        messages[:, 10 + place] = (steps >> (7 * place) & 0x7F) | more
    ends = len(template) - len(body) + np.cumsum([len(entry) for entry in entries])
    with np.errstate(over="ignore"):
        floats = np.ascontiguousarray(values.astype("<f4")).view(np.uint8).reshape(len(steps), -1, 4)
    for place, end in enumerate(ends.tolist()):
        messages[:, end - 4 : end] = floats[:, place]
    return messages


def version(time: float) -> Bytes:
    wall = bytes([_WALL_TIME << 3 | _FIXED64]) + struct.pack("<d", time)
    return np.frombuffer(wall + field_bytes(_VERSION, b"brain.Event:2"), np.uint8)[None]


def records(messages: Bytes) -> Bytes:
    """The messages with their lengths and checksums, (steps, bytes)."""
    num, length = messages.shape
    prefix = np.frombuffer(struct.pack("<Q", length), np.uint8)
    head = np.concatenate([prefix, _checksum(prefix[None])[0]])
    return np.concatenate([np.repeat(head[None], num, axis=0), messages, _checksum(messages)], axis=1)


def _checksum(rows: Bytes) -> Bytes:
    """Masked CRC-32C of every row, four bytes each."""
    crc = crc32c(rows).astype(np.uint64)
    masked = ((crc >> np.uint64(15) | crc << np.uint64(17)) + np.uint64(0xA282EAD8)) & np.uint64(0xFFFFFFFF)
    four: Bytes = masked.astype("<u4").view(np.uint8).reshape(-1, 4)
    return four


def crc32c(rows: Bytes) -> NDArray[np.uint32]:
    """CRC-32C (Castagnoli) of every row.

    Example:
        >>> hex(crc32c(np.frombuffer(b"123456789", np.uint8)[None])[0])
        '0xe3069283'
    """
    crc = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in np.ascontiguousarray(rows.T):
        crc = _TABLE[(crc ^ column) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
    final: NDArray[np.uint32] = crc ^ np.uint32(0xFFFFFFFF)
    return final


def _table() -> Iterator[int]:
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        yield byte


_TABLE = np.fromiter(_table(), np.uint32, 256)


# -- reading ------------------------------------------


def scalars(data: bytes) -> Iterator[tuple[int, str, float]]:
    """Step, tag and value of every scalar, in the order they were written."""
    view = memoryview(data)
    for begin, end in _places(view):
        try:
            yield from _of_event(view, begin, end)
        except (Damaged, struct.error):
            return


def _places(view: memoryview) -> Iterator[tuple[int, int]]:
    at = 0
    while at + 12 <= len(view):
        (length,) = struct.unpack_from("<Q", view, at)
        if at + 16 + length > len(view):
            return
        yield at + 12, at + 12 + length
        at += 16 + length


def _of_event(view: memoryview, begin: int, end: int) -> Iterator[tuple[int, str, float]]:
    step, summary = 0, None
    for number, start, stop in fields(view, begin, end):
        if number == _STEP:
            step = unsigned(view, start, stop)
        elif number == _SUMMARY:
            summary = start, stop
    if summary is None:
        return
    for number, start, stop in fields(view, *summary):
        if number == _VALUE:
            tag, value = _of_value(view, start, stop)
            if value is not None:
                yield step, tag, value


def _of_value(view: memoryview, begin: int, end: int) -> tuple[str, float | None]:
    tag, value = "", None
    for number, start, stop in fields(view, begin, end):
        if number == _TAG:
            tag = bytes(view[start:stop]).decode("utf-8", "replace")
        elif number == _SIMPLE:
            (value,) = struct.unpack_from("<f", view, start)
        elif number == _TENSOR:
            value = _of_tensor(view, start, stop)
    return tag, value


def _of_tensor(view: memoryview, begin: int, end: int) -> float | None:
    """The first number of a float or double tensor, as newer writers keep a scalar."""
    kind, value = _FLOAT, None
    for number, start, stop in fields(view, begin, end):
        if number == _DTYPE:
            kind = unsigned(view, start, stop)
        elif number in (_FLOATS, _DOUBLES, _CONTENT) and kind in (_FLOAT, _DOUBLE) and stop > start:
            single = number == _FLOATS or (number == _CONTENT and kind == _FLOAT)
            value = float(struct.unpack_from("<f" if single else "<d", view, start)[0])
    return value
