"""Headers of the pages of a Parquet file, held to what the file says of itself elsewhere.

Polars ends the whole process where a header claims more values than memory holds: nothing can catch that.
"""

from __future__ import annotations

import io
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _STRUCT = 0, 1, 2, 3, 7, 8, 12
_WHOLE = (4, 5, 6)
"""types of Thrift's compact protocol"""
_KIND, _SIZE, _COMPRESSED_SIZE = 1, 2, 3
_BODIES = {0: 5, 2: 7, 3: 8}
"""kind of a page (data, dictionary, data of version 2) -> field of a header that holds more of it"""
_DICTIONARY, _NUM_VALUES = 2, 1
_Fields = dict[tuple[int, ...], int]
"""numbers of a field and of the structs around it, outermost first -> its whole number"""


class DamagedPage(ValueError):
    """A page header that says what cannot be."""


def refuse_damaged_pages(source: Path | io.BytesIO) -> None:
    """Be sure that no page claims more values than its column has.

    Raises:
        DamagedPage: one does, or its header cannot be read.
        OSError, ValueError: the footer cannot be read.
    """
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(source)
    with _bytes_of(source) as data:
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            for column in map(group.column, range(group.num_columns)):
                if not column.num_values:  # arrow then names no place
                    continue
                begin = column.data_page_offset
                if column.has_dictionary_page and column.dictionary_page_offset:
                    begin = min(begin, column.dictionary_page_offset)
                _refuse(data, begin, column.total_compressed_size, column.num_values)


def _refuse(data: memoryview, begin: int, size: int, num_values: int) -> None:
    end, left = begin + size, num_values
    if not 0 <= begin <= end <= len(data):
        raise DamagedPage(f"bytes {begin} to {end} of a file of {len(data)} bytes")
    while begin < end:
        try:
            header: _Fields = {}
            begin = _take_struct(data, begin, (), header)
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


def _take_struct(data: memoryview, at: int, around: tuple[int, ...], found: _Fields) -> int:
    """Put the whole numbers of a struct among those found; returns where it ends."""
    number = 0
    while (head := data[at]) != _STOP:
        at += 1
        kind = head & 15
        if head >> 4:
            number += head >> 4
        else:
            number, at = _whole(data, at)
        place = (*around, number)
        if kind in _WHOLE:
            found[place], at = _whole(data, at)
        elif kind == _STRUCT:
            at = _take_struct(data, at, place, found)
        elif kind == _BINARY:
            length, at = _unsigned(data, at)
            at += length
        elif kind in (_BYTE, _DOUBLE):
            at += 1 if kind == _BYTE else 8
        elif kind not in (_TRUE, _FALSE):
            raise KeyError(kind)
    return at + 1


def _whole(data: memoryview, at: int) -> tuple[int, int]:
    value, at = _unsigned(data, at)
    return (value >> 1) ^ -(value & 1), at


def _unsigned(data: memoryview, at: int) -> tuple[int, int]:
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
def _bytes_of(source: Path | io.BytesIO) -> Iterator[memoryview]:
    if isinstance(source, io.BytesIO):
        source.seek(0)  # where the next one reads
        with source.getbuffer() as view:
            yield view
        return
    with (
        source.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
    ):
        yield view
