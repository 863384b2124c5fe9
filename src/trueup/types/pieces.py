"""Bytes that come to the host piece by piece, while the program goes on."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from typing import Protocol

STUCK_SECONDS = 120.0
"""without a byte taken, after which the disk is given up: a program must not wait for ever"""


def await_disk(room: threading.Condition) -> None:
    """Wait until it is told that something was written.

    Raises:
        OSError: nothing was for ``STUCK_SECONDS``.
    """
    if not room.wait(STUCK_SECONDS):
        reason = f"the disk has taken no values for {STUCK_SECONDS:.0f} s; expected: the trace's disk answers"
        raise TimeoutError(errno.ETIMEDOUT, reason)


class PendingBytes(Protocol):
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

    def __iter__(self) -> Iterator[PendingBytes]: ...
