"""The little of the protobuf wire format that a checkpoint needs."""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Damaged(ValueError):
    """Bytes that are no protobuf message; says where."""


def fields(data: memoryview, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, begin and end of every field of the message in ``begin`` to ``end``.

    Raises:
        Damaged: the message ends inside a field, or is none.
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
    """The numbers of an integer field, packed or one alone."""
    while begin < end:
        value, begin = _varint(data, begin, end)
        yield value


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
