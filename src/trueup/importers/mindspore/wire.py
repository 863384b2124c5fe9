"""The few rules of the protobuf wire format that Ascend's dump files need."""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_FIXED = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}
_MOST_BITS = 70


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and content of each field of one message: varints as numbers, everything else as bytes.

    Example:
        >>> list(fields(bytes([0x08, 0x96, 0x01, 0x12, 0x02, 0x68, 0x69])))
        [(1, 150), (2, b'hi')]

    Raises:
        ValueError: the message is cut off, or is none.
    """
    at = 0
    while at < len(message):
        key, at = varint(message, at)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise ValueError(f"field number 0 at byte {at}")
        if kind == _VARINT:
            value, at = varint(message, at)
            yield number, value
            continue
        if kind == _LENGTH:
            size, at = varint(message, at)
        elif kind in _FIXED:
            size = _FIXED[kind]
        else:
            raise ValueError(f"wire type {kind} at byte {at}")
        if at + size > len(message):
            raise ValueError(f"field {number} is cut off at byte {len(message)} of {at + size}")
        yield number, message[at : at + size]
        at += size


def varint(message: bytes, at: int) -> tuple[int, int]:
    """The unsigned number that begins at byte ``at``, and where it ends.

    Raises:
        ValueError: it is cut off, or longer than 64 bits can be.
    """
    value = shift = 0
    while True:
        if at >= len(message):
            raise ValueError(f"a number is cut off at byte {at}")
        value |= (message[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if message[at - 1] < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        if shift >= _MOST_BITS:
            raise ValueError(f"a number of more than 64 bits ends at byte {at}")


def varints(content: int | bytes) -> list[int]:
    """A repeated number: one of its occurrences, packed or not.

    Raises:
        ValueError: it is cut off.
    """
    if isinstance(content, int):
        return [content]
    numbers, at = [], 0
    while at < len(content):
        number, at = varint(content, at)
        numbers.append(number)
    return numbers
