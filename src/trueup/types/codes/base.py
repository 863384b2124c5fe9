"""What a code is, and how one is found by its value."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum


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
    for code in all_codes():
        if code.value == value:
            return code
    raise KeyError(value)
