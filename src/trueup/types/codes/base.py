"""What a code is, and how one is found by its value."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from functools import cache


class Code(str, Enum):
    """Base of all code enums. A value such as ``record.shape_differs`` is part of the JSON interface: it is
    never renamed and never used for another meaning."""

    def __str__(self) -> str:
        return str(self.value)


def all_codes() -> Iterator[Code]:
    """Every code of every room that has been imported, room by room."""
    for room in Code.__subclasses__():
        yield from room


def code_from(value: str) -> Code:
    """The code with this value.

    Raises:
        KeyError: no room has such a code.
    """
    return _by_value(len(Code.__subclasses__()))[value]


@cache
def _by_value(num_rooms: int) -> dict[str, Code]:
    """Value -> code, made again when another room has been imported."""
    return {str(code.value): code for code in all_codes()}
