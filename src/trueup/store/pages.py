"""Headers of the pages of a Parquet file, held to what the file's footer says of their columns.

Polars ends the whole process where a header claims more values than memory holds, and Arrow where a footer's
sizes contradict each other: nothing can catch that. What is read here is Thrift's compact protocol.
"""

from __future__ import annotations

import io
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeAlias

_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 0, 1, 2, 3, 7, 8, 9, 10, 12
_WHOLE, _BOOLS = (4, 5, 6), (_TRUE, _FALSE)
"""types of a field; one of the latter has no bytes of its own, an entry of a list has one"""
_LONGEST = 1 << 22
"""entries of a list that is read"""
_MAGIC = b"PAR1"
_Bytes = bytes | mmap.mmap
_KIND, _SIZE, _COMPRESSED_SIZE = 1, 2, 3
_BODIES = {0: 5, 2: 7, 3: 8}
"""kind of a page (data, dictionary, data of version 2) -> field of a header that holds more of it"""
_DICTIONARY, _NUM_VALUES = 2, 1
_GROUPS, _COLUMNS, _ABOUT = 4, 1, 3
"""fields of a footer: row groups, their columns, what is known of a column"""
_NUM_OF_COLUMN, _SIZE_OF_COLUMN, _DATA_AT, _DICTIONARY_AT = 5, 7, 9, 11
_Fields = dict[tuple[int, ...], int]
"""numbers of a field, and of structs and places in lists around it, outermost first -> its whole number"""
_Wanted: TypeAlias = "dict[int, _Wanted]"
"""fields of a struct that are structs, or lists of them, whose whole numbers are wanted too"""
_OF_FOOTER: _Wanted = {_GROUPS: {_COLUMNS: {_ABOUT: {}}}}
_OF_HEADER: _Wanted = {field: {} for field in _BODIES.values()}


class DamagedPage(ValueError):
    """A footer or page header that says what cannot be."""


def refuse_damaged_pages(source: Path | io.BytesIO) -> None:
    """Be sure that no page claims more values than its column has.

    Raises:
        DamagedPage: one does, or its header or the footer cannot be read.
        OSError: the file cannot be read.
    """
    with _bytes_of(source) as data:
        footer = _footer(data)
        for group, column in dict.fromkeys((place[1], place[3]) for place in footer if len(place) > 5):
            about = (_GROUPS, group, _COLUMNS, column, _ABOUT)
            num, size, begin = (
                footer.get((*about, field), 0) for field in (_NUM_OF_COLUMN, _SIZE_OF_COLUMN, _DATA_AT)
            )
            begin = min(begin, footer.get((*about, _DICTIONARY_AT)) or begin)
            if num:  # of no values, no place is named
                _refuse(data, begin, size, num)


def _footer(data: _Bytes) -> _Fields:
    length = int.from_bytes(data[-8:-4], "little")
    begin = len(data) - 8 - length
    if data[-4:] != _MAGIC or begin < len(_MAGIC):
        raise DamagedPage(f"no footer at the end of {len(data)} bytes")
    found: _Fields = {}
    try:
        _take_struct(data[begin:-8], 0, _OF_FOOTER, (), found)
    except (KeyError, IndexError, RecursionError) as error:
        raise DamagedPage("the footer") from error
    return found


def _refuse(data: _Bytes, begin: int, size: int, num_values: int) -> None:
    end, left = begin + size, num_values
    if not 0 <= begin <= end <= len(data):
        raise DamagedPage(f"bytes {begin} to {end} of a file of {len(data)} bytes")
    while begin < end:
        try:
            header: _Fields = {}
            begin = _take_struct(data, begin, _OF_HEADER, (), header)
            kind = header[_KIND,]
            num = header[_BODIES[kind], _NUM_VALUES]
            most = header[_SIZE,] if kind == _DICTIONARY else left  # an entry of a dictionary takes a byte
            following = begin + header[_COMPRESSED_SIZE,]
        except (KeyError, IndexError, RecursionError) as error:
            raise DamagedPage(f"the header of a page before byte {begin}") from error
        if not (0 <= num <= most and begin <= following <= end):
            raise DamagedPage(f"a page before byte {begin} claims {num} values, at most {most}")
        left -= 0 if kind == _DICTIONARY else num
        begin = following


def _take_struct(data: _Bytes, at: int, wanted: _Wanted, around: tuple[int, ...], found: _Fields) -> int:
    """Put the whole numbers of a struct among those found, and of what is wanted inside; returns where it
    ends."""
    number = 0
    while (head := data[at]) != _STOP:
        at += 1
        kind = head & 15
        if head > 15:
            number += head >> 4
        else:
            number, at = _whole(data, at)
        if kind in _WHOLE:
            place = (*around, number)
            found[place], at = _whole(data, at)
        elif kind in _BOOLS:
            continue
        elif number in wanted:
            at = _take_value(data, at, kind, wanted[number], (*around, number), found)
        else:
            at = _past_value(data, at, kind)
    return at + 1


def _take_value(
    data: _Bytes, at: int, kind: int, wanted: _Wanted, place: tuple[int, ...], found: _Fields
) -> int:
    """Of a struct, or a list of them, put what is wanted among those found."""
    if kind == _STRUCT:
        return _take_struct(data, at, wanted, place, found)
    if kind not in (_LIST, _SET):
        return _past_value(data, at, kind)
    num, inner, at = _list_of(data, at)
    for entry in range(num):
        at = _take_value(data, at, inner, wanted, (*place, entry), found)
    return at


def _list_of(data: _Bytes, at: int) -> tuple[int, int, int]:
    """Number and type of entries, and where they begin."""
    head = data[at]
    num, at = (head >> 4, at + 1) if head >> 4 < 15 else _unsigned(data, at + 1)
    if num > _LONGEST:
        raise KeyError(num)
    return num, head & 15, at


# In one piece: of a wide table's footer nearly all is gone past, one field after the other.
def _past_struct(data: _Bytes, at: int) -> int:
    while (head := data[at]) != _STOP:
        at += 1
        if head < 16:
            at = _past_whole(data, at)
        kind = head & 15
        if kind in _WHOLE:
            while data[at] > 127:
                at += 1
            at += 1
        elif kind not in _BOOLS:
            at = _past_value(data, at, kind)
    return at + 1


def _past_value(data: _Bytes, at: int, kind: int) -> int:
    if kind in _WHOLE:
        return _past_whole(data, at)
    if kind == _BINARY:
        length, at = _unsigned(data, at)
        return at + length
    if kind == _STRUCT:
        return _past_struct(data, at)
    if kind in (_LIST, _SET):
        num, inner, at = _list_of(data, at)
        past = _past_struct if inner == _STRUCT else partial(_past_value, kind=inner)
        for _ in range(num):
            at = past(data, at)
        return at
    if kind in (*_BOOLS, _BYTE, _DOUBLE):
        return at + (8 if kind == _DOUBLE else 1)
    raise KeyError(kind)


def _past_whole(data: _Bytes, at: int) -> int:
    while data[at] > 127:
        at += 1
    return at + 1


def _whole(data: _Bytes, at: int) -> tuple[int, int]:
    value, at = _unsigned(data, at)
    return (value >> 1) ^ -(value & 1), at


def _unsigned(data: _Bytes, at: int) -> tuple[int, int]:
    if (value := data[at]) < 128:
        return value, at + 1
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise KeyError(byte)


@contextmanager
def _bytes_of(source: Path | io.BytesIO) -> Iterator[_Bytes]:
    if isinstance(source, io.BytesIO):
        yield source.getvalue()
        return
    with source.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        yield mapped
