"""Bytes that come to the host piece by piece, while the program goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class Piece(Protocol):
    """Bytes on their way to the host."""

    @property
    def nbytes(self) -> int: ...

    def arrived(self) -> memoryview:
        """Wait for them; they hold until ``release``."""

    def release(self) -> None:
        """They are on disk, or not wanted: their memory is free."""


class Pieces(Protocol):
    """The pieces of one tensor in row-major order; going on to the next one waits for room."""

    @property
    def nbytes(self) -> int: ...

    @property
    def waited_seconds(self) -> float:
        """How long the program has waited for room, for this tensor and those before it."""

    def __iter__(self) -> Iterator[Piece]: ...
