"""Cases whose measured quantity is a number at will: near misses on both sides of an entry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Decide = Callable[[float], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decider:
    """What is concluded of a case, by its measured quantity in the entry's unit."""

    decide: Decide
    margin: float | None
    """how far the near misses are from the entry, relative; None: a hundredth, of counts the next one"""
    beside: tuple[int, int]


DECIDERS: dict[str, Decider] = {}


def decides(
    name: str, *, margin: float | None = None, beside: tuple[int, int] = (-1, 0)
) -> Callable[[Decide], Decide]:
    """Enter a function that says what is concluded of a case with this measured quantity.

    ``beside``: what is added to an entry that is a count; -1, 0 where the count itself is enough, 0, 1 where
    it is the most that is allowed.
    """

    def enter(decide: Decide) -> Decide:
        DECIDERS[name] = Decider(decide=decide, margin=margin, beside=beside)
        return decide

    return enter
