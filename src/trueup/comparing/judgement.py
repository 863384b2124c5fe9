"""What is concluded of every record of one step on one rank: columns beside ``Rows``, never written into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from trueup.matching.codes import Codes
from trueup.types.arrays import Array, Bools, Floats
from trueup.types.reason import Reason
from trueup.types.status import Status

EQUAL, WITHIN, DIFFERENT, PROPAGATED, AMPLIFIED, ORIGIN, UNMATCHED, UNDECIDED = (
    status.code for status in Status
)


Column = TypeVar("Column", bound=Array)


class _Columns:
    """Arrays that are read-only from the moment the value is made."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for one in fields(self):  # type: ignore[arg-type]
            value = getattr(self, one.name)
            if isinstance(value, np.ndarray):
                value.flags.writeable = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds(_Columns):
    """The largest ||t - r|| that is allowed."""

    local: Floats
    """what this step alone explains: rounding, or measured noise"""
    inherited: Floats
    """what earlier updates add"""
    total: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonFactor(_Columns):
    """How far t = a r is from t = r, judged apart from the size of the difference."""

    bias: Floats
    """|a - 1|; 0 where it says nothing"""
    bound: Floats
    flagged: Bools


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution(_Columns):
    """Where errors start; NaN where a number has no meaning."""

    status: Codes
    """codes of ``types.status.Status``: those of ``Judgement.status``, the different ones told apart"""
    error: Floats
    """relative difference; infinite where the two are of another kind, 0 where one side has nothing"""
    explained: Floats
    """the error that what the record was made from explains"""
    gain: Floats
    error_in: Floats
    """largest relative difference among what the record was made from"""
    inputs_equal: Codes
    """1: all that it was made from, as far as it is known, is equal bit for bit; 0: it is not, or no one
    compared its bits; -1: nothing of it is known"""
    floor: Floats
    """relative difference below which nothing is said: measured noise, or one rounding"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement(_Columns):
    """One step of one rank as judged so far; every rule of ``comparing.rules`` returns the next one."""

    status: Codes
    """against the tolerance alone; ``attribution`` tells origins apart"""
    reasons: Mapping[int, Reason]
    """row -> why"""
    tolerance: Floats
    """bound on rel_l2"""
    score: Floats
    """difference over bound"""
    bracketable: Bools
    """left without a verdict, but harmless where its neighbours agree"""
    difference: Floats
    """||t - r||: as measured, but where a rule knows it better"""
    bounds: Bounds
    factor: CommonFactor
    followed: Bools
    """differs because of its inputs, or of a tolerance widened for them"""
    exceeded: bool = False
    """this step leaves more than noise in the weights"""
    attribution: Attribution
    notes: tuple[Reason, ...] = ()

    @classmethod
    def undecided(cls, difference: Floats) -> Judgement:
        """Nothing concluded yet."""
        num = len(difference)
        nothing, none, no = np.full(num, np.nan), np.zeros(num), np.zeros(num, bool)
        status = np.full(num, UNDECIDED, np.int64)
        return cls(
            status=status,
            reasons={},
            tolerance=nothing,
            score=nothing,
            bracketable=no,
            difference=difference,
            bounds=Bounds(local=nothing, inherited=none, total=nothing),
            factor=CommonFactor(bias=none, bound=nothing, flagged=no),
            followed=no,
            attribution=Attribution(
                status=status,
                error=none,
                explained=none,
                gain=nothing,
                error_in=nothing,
                inputs_equal=np.full(num, -1, np.int64),
                floor=nothing,
            ),
        )

    def at(
        self,
        rows: Bools | Codes,
        *,
        status: ArrayLike | None = None,
        score: ArrayLike | None = None,
        tolerance: ArrayLike | None = None,
        difference: ArrayLike | None = None,
        bracketable: bool | None = None,
        why: Reason | Mapping[int, Reason] | None = None,
    ) -> Judgement:
        """The same with other entries at some rows; ``why``: a reason for all of them, or one by row."""
        new = dict.fromkeys(_numbers(rows), why) if isinstance(why, Reason) else why
        return replace(
            self,
            status=_with(self.status, rows, status),
            score=_with(self.score, rows, score),
            tolerance=_with(self.tolerance, rows, tolerance),
            difference=_with(self.difference, rows, difference),
            bracketable=_with(self.bracketable, rows, bracketable),
            reasons={**self.reasons, **new} if new else self.reasons,
        )

    def attributed(self, rows: Bools | Codes, status: ArrayLike) -> Judgement:
        """The same with another status of ``attribution`` at some rows."""
        known = self.attribution
        return replace(self, attribution=replace(known, status=_with(known.status, rows, status)))


def _with(column: Column, rows: Bools | Codes, values: ArrayLike | None) -> Column:
    if values is None:
        return column
    changed: Column = column.copy()
    changed[rows] = values
    return changed


def _numbers(rows: Bools | Codes) -> list[int]:
    numbers: list[int] = (np.flatnonzero(rows) if rows.dtype == bool else rows).tolist()
    return numbers
