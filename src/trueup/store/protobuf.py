"""Protobuf's wire format, read and written field by field: the one reader of it (checkpoints, device dumps,
event files).

Fields are places in the file, so that a mapped checkpoint of many gigabytes is never copied; protobuf's own
parser refuses messages above 2 GiB.
"""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Damaged(ValueError):
    """Bytes that are not a protobuf message; says where."""


def fields(data: memoryview, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, begin and end of every field of the message in ``begin`` to ``end``.

    Example:
        >>> list(fields(memoryview(bytes([0x08, 0x96, 0x01, 0x12, 0x02, 0x68, 0x69])), 0, 7))
        [(1, 1, 3), (2, 5, 7)]

    Raises:
        Damaged: the message ends inside a field, or the bytes are not a message.
    """
    while begin < end:
        key, begin = _varint(data, begin, end)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            stop = _varint(data, begin, end)[1]
        elif kind == _BYTES:
            length, begin = _varint(data, begin, end)
            stop = begin + length
        elif kind in (_FIXED64, _FIXED32):
            stop = begin + (8 if kind == _FIXED64 else 4)
        else:
            raise Damaged(f"byte {begin - 1} starts no field")
        if stop > end or number == 0:
            raise Damaged(f"a field should end at byte {stop}, its message ends at {end}")
        yield number, begin, stop
        begin = stop


def unsigned_values(data: memoryview, begin: int, end: int) -> Iterator[int]:
    """The numbers of a repeated integer field: one of its occurrences, packed or not.

    Raises:
        Damaged: one is cut off.
    """
    while begin < end:
        value, begin = _varint(data, begin, end)
        yield value


def unsigned(data: memoryview, begin: int, end: int) -> int:
    """The number of an integer field.

    Raises:
        Damaged: it holds none.
    """
    return _varint(data, begin, end)[0]


def signed(word: int) -> int:
    """A 64-bit word as two's complement."""
    return word - (1 << 64) if word >> 63 else word


def integer_field(number: int, value: int) -> bytes:
    """One integer, which is not negative."""
    return _encoded(number << 3 | _VARINT) + _encoded(value)


def field_bytes(number: int, content: bytes, *, length: int | None = None) -> bytes:
    """A field of bytes; where ``length`` is larger than ``content``, the rest follows in the file."""
    return _encoded(number << 3 | _BYTES) + _encoded(len(content) if length is None else length) + content


def _varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """The number at ``at`` and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            raise Damaged(f"it ends inside a number at byte {at}")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, at
    raise Damaged(f"a number before byte {at} is too long")


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
