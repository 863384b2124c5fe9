"""What a comparison can say of one pair of records, and of two whole runs."""

from __future__ import annotations

from enum import Enum


class Status(str, Enum):
    """Judgement of one compared record."""

    EQUAL = "equal"
    """bit for bit"""
    WITHIN_NOISE = "within_noise"
    """different bits, inside the tolerance the row cites"""
    DIFFERENT = "different"
    """exceeds the tolerance; attribution turns it into one of the three below"""
    PROPAGATED = "propagated"
    AMPLIFIED = "amplified"
    ORIGIN = "origin"
    UNMATCHED = "unmatched"
    """seen in one run only; the row says which and why"""
    UNDECIDED = "undecided"
    """paired, but not comparable; the row says why"""

    @property
    def code(self) -> int:
        """Its number in arrays of statuses: the place in this enum."""
        return _CODES[self]

    @classmethod
    def final(cls) -> tuple[Status, ...]:
        """Those that a row of a result can have."""
        return tuple(status for status in cls if status is not cls.DIFFERENT)


_CODES = {status: at for at, status in enumerate(Status)}


class Outcome(str, Enum):
    """Verdict over two runs; ``exit_code`` is what ``trueup compare`` returns."""

    AGREE = "agree"
    DIFFER = "differ"
    UNDECIDED = "undecided"

    @property
    def exit_code(self) -> int:
        """0, 1 or 2."""
        return {Outcome.AGREE: 0, Outcome.DIFFER: 1, Outcome.UNDECIDED: 2}[self]
