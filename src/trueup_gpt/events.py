"""TensorBoard's event files, as far as numbers go: protocol buffers, each framed with its checksum."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Mapping
from pathlib import Path

_POLYNOMIAL = 0x82F63B78
"""of CRC-32C, reversed"""


def _table() -> tuple[int, ...]:
    found = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        found.append(value)
    return tuple(found)


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli), RFC 3720 appendix B.4.

    Example:
        >>> hex(crc32c(b"123456789"))
        '0xe3069283'
    """
    found = 0xFFFFFFFF
    for byte in data:
        found = _TABLE[(found ^ byte) & 255] ^ found >> 8
    return found ^ 0xFFFFFFFF


def _checksum(data: bytes) -> bytes:
    """Masked as TensorFlow's record format has it."""
    found = crc32c(data)
    return struct.pack("<I", ((found >> 15 | found << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def record(data: bytes) -> bytes:
    """Length, its checksum, data, its checksum: one record of a TFRecord file."""
    length = struct.pack("<Q", len(data))
    return length + _checksum(length) + data + _checksum(data)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def _bytes(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def event(seconds: float, step: int, values: Mapping[str, float]) -> bytes:
    """``tensorflow.Event``: wall_time 1, step 2, summary 5 of values 1 with tag 1 and simple_value 2."""
    summary = b"".join(
        _bytes(1, _bytes(1, name.encode()) + b"\x15" + struct.pack("<f", value))
        for name, value in values.items()
    )
    return b"\x09" + struct.pack("<d", seconds) + b"\x10" + _varint(step) + _bytes(5, summary)


class EventFile:
    """A new file in ``folder``; TensorBoard shows those of a folder as one run."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        self._file = (folder / f"events.out.tfevents.{now:.0f}.{os.getpid()}").open("ab")
        self._write(b"\x09" + struct.pack("<d", now) + _bytes(3, b"brain.Event:2"))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Numbers of a step, float32."""
        self._write(event(time.time(), step, values))

    def _write(self, data: bytes) -> None:
        self._file.write(record(data))
        self._file.flush()

    def close(self) -> None:
        """Nothing is held back."""
        self._file.close()
