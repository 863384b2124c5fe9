"""What is measured of a step that is watched without being captured: summaries by kind and name.

The same in every framework: a framework's own ``measures`` fills the tables, a session hands them on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from trueup.numerics.summary import SUMMARY_DTYPE
from trueup.types.arrays import Array

GRADIENT = "gradient"
"""``.grad`` after backward: accumulated and, where several processes train, reduced; not yet clipped"""
LOCAL_GRADIENT = "local_gradient"
"""the last microbatch's own gradient, before reduction"""
WEIGHT = "weight"
"""after the update"""
UPDATE = "update"
"""weight after less weight before; of a large weight estimated from ``SAMPLE`` of its values"""
MOMENTS = ("exp_avg", "exp_avg_sq")
"""of the optimizer's state, after the update"""
ACTIVATION = "activation"
"""first floating output of a chosen module, in the last microbatch"""
UNITS = "units"
"""largest magnitude of each unit of an activation over all tokens: a zero is a dead unit"""
ROUTER = "router"
"""tokens each expert was given, over their mean: a zero is an expert without any"""

SAMPLE, RUNS = 16384, 64
"""values of a weight an update is measured by, in so many runs spread over it"""

Summaries = Array
"""of ``SUMMARY_DTYPE``"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What an adapter is to measure in the steps that are."""

    gradients: bool = True
    local_gradients: bool = False
    weights: bool = True
    updates: bool = True
    moments_every: int = 10
    """at every so many measured steps, because they move slowly; 0: never"""
    modules: tuple[str, ...] = ()
    """modules whose outputs are measured: parts of names, class names, or patterns with ``*``"""
    routers: bool = True

    def wants_module(self, name: str, kind: str) -> bool:
        """Whether the outputs of a module are measured.

        Example:
            >>> Wanted(modules=("*.mlp", "GELU")).wants_module("layers.0.mlp.act", "GELU")
            True
        """
        return any(
            kind == word or (fnmatchcase(name, word) if "*" in word else word in name)
            for word in self.modules
        )


@dataclass(frozen=True, slots=True)
class MeasuredRows:
    """The summaries of one kind in one step."""

    names: tuple[str, ...]
    rows: Summaries


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Everything measured in one step; empty where the step was not."""

    tables: Mapping[str, MeasuredRows] = field(default_factory=dict)
    replicas: tuple[int, ...] = ()
    """ranks that hold the same weights as this one, itself among them; empty where none is known to"""
    scaled: tuple[str, ...] = (GRADIENT, LOCAL_GRADIENT)
    """kinds in units of the loss scale, where there is one"""


class NameTable:
    """Rows of one kind: a name keeps its row as long as the run lasts."""

    __slots__ = ("_address", "_names", "_numbers", "_rows", "_written")

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._names: tuple[str, ...] = ()
        self._rows: Summaries = np.zeros(0, SUMMARY_DTYPE)
        self._written: NDArray[np.bool_] = np.zeros(0, bool)
        self._grow(64)

    def _grow(self, capacity: int) -> None:
        rows, written = np.zeros(capacity, SUMMARY_DTYPE), np.zeros(capacity, bool)
        rows[: len(self._rows)], written[: len(self._written)] = self._rows, self._written
        self._rows, self._written, self._address = rows, written, rows.ctypes.data

    def number(self, name: str) -> int:
        """Number of the row of a name, which is about to be written."""
        number = self._numbers.get(name)
        if number is None:
            number = len(self._numbers)
            if number == len(self._rows):
                self._grow(2 * number)
            self._numbers[name] = number
            self._names = tuple(self._numbers)
        self._written[number] = True
        return number

    def address(self, name: str) -> int:
        """Memory address of that row, for the kernel to write to; the next new name may move it."""
        number = self.number(name)
        return self._address + number * SUMMARY_DTYPE.itemsize

    def view(self, name: str) -> np.void:
        """That row as a numpy void, to read and write its fields."""
        row: np.void = self._rows[self.number(name)]
        return row

    def take(self) -> MeasuredRows | None:
        """What was written since the last time; None where nothing was."""
        written = self._written[: len(self._numbers)]
        if not written.any():
            return None
        if written.all():
            taken = MeasuredRows(self._names, self._rows[: len(written)].copy())
        else:
            chosen = np.flatnonzero(written)
            taken = MeasuredRows(tuple(self._names[i] for i in chosen), self._rows[chosen])
        self._written[:] = False
        return taken


def sample_of(numel: int) -> tuple[int, int, int]:
    """Runs, values in each, and how far apart they begin, of the sample of a weight.

    All of it where it is small. Runs, because single values would each cost a cache line; their distance is
    no multiple of a row, so that they fall on other columns each time.

    Example:
        >>> sample_of(100), sample_of(512 * 512)
        ((1, 100, 100), (64, 256, 4156))
    """
    if numel <= SAMPLE:
        return 1, numel, max(numel, 1)
    length = SAMPLE // RUNS
    return RUNS, length, (numel - length) // (RUNS - 1)
