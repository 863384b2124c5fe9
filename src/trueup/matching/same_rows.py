"""Rows found again by what they hold, in whatever order they stand."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence


def places(held: Sequence[bytes], wanted: Sequence[bytes]) -> list[int | None]:
    """Where each wanted row stands among the held ones; equal rows are found in their order, each once.

    Example:
        >>> places([b"a", b"b", b"a"], [b"a", b"a", b"a", b"c"])
        [0, 2, None, None]
    """
    free: dict[bytes, deque[int]] = defaultdict(deque)
    for place, key in enumerate(held):
        free[key].append(place)
    return [free[key].popleft() if free[key] else None for key in wanted]
