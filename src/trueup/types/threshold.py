"""Constants that decide: each is an entry with its unit, where it comes from, and the test that fails when it
is moved.

A room keeps its entries in one module named ``thresholds``; an entry is a plain number there, so that using
it costs what a global costs. ``tests/test_thresholds.py`` holds every converted room to it: no other float
decides, and every entry has a test on both sides of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TypeVar

Value = TypeVar("Value", int, float)
GENERATED = "tests/test_thresholds.py::test_a_near_miss_on_either_side"
"""the test that puts a case just below and one just above, made from the entry"""


class ThresholdOrigin(str, Enum):
    """Where a threshold comes from."""

    DERIVED = "derived"
    """follows from a definition: a dtype's rounding, the size of a sample, a distribution"""
    MEASURED = "measured"
    """lies between what was seen on either side; the account says where, and with which margin"""
    CHOSEN = "chosen"
    """a convention: anything near would do as well"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """One entry."""

    name: str
    """``room.name``"""
    value: float
    unit: str
    """"standard errors", "of the difference", "elements" ..."""
    origin: ThresholdOrigin
    account: str
    """the derivation, or what was measured and with which margin"""
    test: str
    """``file::test``"""


def derived(name: str, value: Value, unit: str, account: str, *, test: str = GENERATED) -> Value:
    """Enter a threshold that follows from a definition; its value.

    Example:
        >>> HALF_STEP = derived("doctest.half_step", 0.5, "of a step", "rounding to the nearest")
        >>> HALF_STEP, thresholds()["doctest.half_step"].origin.value
        (0.5, 'derived')
    """
    return _entered(name, value, unit, ThresholdOrigin.DERIVED, account, test)


def measured(name: str, value: Value, unit: str, account: str, *, test: str = GENERATED) -> Value:
    """Enter a threshold that lies between what was seen on either side; its value."""
    return _entered(name, value, unit, ThresholdOrigin.MEASURED, account, test)


def chosen(name: str, value: Value, unit: str, account: str, *, test: str = GENERATED) -> Value:
    """Enter a threshold that is a convention; its value."""
    return _entered(name, value, unit, ThresholdOrigin.CHOSEN, account, test)


def thresholds() -> Mapping[str, Threshold]:
    """The entries of all rooms that have been imported, by name."""
    return MappingProxyType(_ENTRIES)


_ENTRIES: dict[str, Threshold] = {}
"""State of the process: filled once, by the imports of the rooms' tables."""


def _entered(name: str, value: Value, unit: str, origin: ThresholdOrigin, account: str, test: str) -> Value:
    entry = Threshold(name=name, value=value, unit=unit, origin=origin, account=account, test=test)
    if _ENTRIES.setdefault(name, entry) != entry:
        raise ValueError(f"two thresholds are named {name}: {_ENTRIES[name].value}, {value}")
    return value
