"""One row a compared or unmatched record of one step on one rank, in execution order, as arrays over both
sides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trueup.matching import StepMatch
from trueup.matching.codes import Codes
from trueup.matching.tree import TreeSide
from trueup.store import StepTables
from trueup.types.arrays import Bools, Floats

if TYPE_CHECKING:
    from trueup.matching.layouts import CommonForm


COUNTS = ("num_nan", "num_posinf", "num_neginf", "num_zero")
STATISTICS = ("minimum", "maximum", "mean", "l2_norm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Half:
    """What one side has for every row; -1 and NaN where it has nothing."""

    tables: StepTables
    side: TreeSide
    record: Codes
    call: Codes
    summary: Codes
    dtype: Codes
    shape: Codes
    numel: Floats
    statistics: dict[str, Floats]
    """COUNTS and STATISTICS, NaN where there is none"""

    def column(self, name: str) -> pl.Series:
        """A column of ``summaries`` for every row, null where there is no summary."""
        return _gather(self.tables.summaries[name], self.summary)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRows:
    """All rows of one step on one rank; codes index ``match.words``."""

    match: StepMatch
    target: Half
    reference: Half
    phase: Codes
    slot: Codes
    microbatch: Codes
    paired: Bools
    other_slot: Bools
    layout: Codes
    """number in ``layouts``, -1 where the two can be compared as they are"""
    layouts: tuple[CommonForm, ...] = ()
    weight: Codes
    """what is remembered of a weight from step to step is kept under this number: that of the target's call,
    of a fused weight's parts one each"""

    pass_code: Codes
    """how each pair was made, over ``calls.PASSES``; -1 where there is none"""
    confidence: NDArray[np.float32]

    @property
    def num_weights(self) -> int:
        """One more than the largest ``weight``."""
        return max(int(self.weight.max(initial=-1)) + 1, self.match.target.num_calls)

    def __len__(self) -> int:
        return len(self.phase)

    def phase_is(self, *names: str) -> Bools:
        """Rows of these phases."""
        return _among(self.phase, self.match.words.phase, names)

    def slot_starts(self, head: str) -> Bools:
        """Rows whose slot is ``head`` or lies below it."""
        words = np.array([w.partition(".")[0] == head for w in self.match.words.slot] + [False])
        return np.asarray(words[self.slot])

    def slot_is(self, name: str) -> Bools:
        """Rows of this very slot."""
        return _among(self.slot, self.match.words.slot, (name,))

    def of_call(self, attribute: str) -> Codes:
        """An attribute of the call of each row, the target's where it has one, else the reference's."""
        target = getattr(self.target.side, attribute)
        reference = getattr(self.reference.side, attribute)
        out = np.full(len(self), -1, np.int64)
        here = self.target.call >= 0
        out[here] = target[self.target.call[here]]
        there = ~here
        out[there] = reference[self.reference.call[there]]
        return out

    def kind_is(self, *names: str) -> Bools:
        """Rows whose call is of these kinds."""
        return _among(self.of_call("kind"), self.match.words.kind, names)

    def mode_is(self, *names: str) -> Bools:
        """Rows whose call ran in one of these modes."""
        return _among(self.of_call("mode"), self.match.words.mode, names)


def without_sketches(rows: StepRows) -> StepRows:
    """The same rows, without the largest column of their summaries."""

    def lighter(half: Half) -> Half:
        tables = replace(half.tables, summaries=half.tables.summaries.drop("sketch"))
        return replace(half, tables=tables)

    return replace(rows, target=lighter(rows.target), reference=lighter(rows.reference))


def rows_from_match(target: StepTables, reference: StepTables, match: StepMatch) -> StepRows:
    """Rows in the target's execution order; what only the reference has stands where it would have been."""
    pairs = match.records
    t = np.concatenate([pairs.target, pairs.only_target, np.full(len(pairs.only_reference), -1)])
    r = np.concatenate([pairs.reference, np.full(len(pairs.only_target), -1), pairs.only_reference])
    other_slot = np.zeros(len(t), bool)
    other_slot[: len(pairs.target)] = pairs.other_slot
    layout, layouts = _layouts(match, len(t))
    pass_code, confidence = _how(match, len(t))
    place = np.full(len(match.reference.record_call), -1, np.int64)
    place[pairs.reference] = pairs.target
    before = np.maximum.accumulate(np.where(place >= 0, np.arange(len(place)), -1))
    place = np.where(before >= 0, place[before], -1)
    key = np.where(t >= 0, t, place[r])
    order = np.lexsort((r, t < 0, key))
    t, r = t[order], r[order]
    either_t = t >= 0
    sides = (match.target, match.reference)

    def of_record(attribute: str) -> Codes:
        a, b = (getattr(side, attribute) for side in sides)
        out = np.empty(len(t), np.int64)
        out[either_t], out[~either_t] = a[t[either_t]], b[r[~either_t]]
        return out

    return StepRows(
        match=match,
        target=_half(target, match.target, t),
        reference=_half(reference, match.reference, r),
        phase=of_record("record_phase"),
        slot=of_record("record_slot"),
        microbatch=of_record("record_microbatch"),
        paired=(t >= 0) & (r >= 0),
        other_slot=other_slot[order],
        layout=layout[order],
        layouts=layouts,
        weight=_weights(match, t, r),
        pass_code=pass_code[order],
        confidence=confidence[order],
    )


def _how(match: StepMatch, num: int) -> tuple[Codes, NDArray[np.float32]]:
    """Pass and confidence of every pair, those of its calls where records have none of their own."""
    pairs, calls = match.records, match.calls
    pass_code, confidence = np.full(num, -1, np.int64), np.zeros(num, np.float32)
    at = slice(0, len(pairs.target))
    if pairs.pass_code is not None and pairs.confidence is not None:
        pass_code[at], confidence[at] = pairs.pass_code, pairs.confidence
    elif len(pairs.target):
        call = match.target.record_call[pairs.target]
        pass_code[at], confidence[at] = calls.pass_code[call], calls.confidence[call]
    return pass_code, confidence


def _weights(match: StepMatch, target: Codes, reference: Codes) -> Codes:
    """Numbers of ``StepRows.weight``: the target's calls, and beyond them the parts of those in several
    pairs."""
    call = _take(match.target.record_call, target)
    if match.bridge is None:
        return call
    other = _take(match.reference.record_call, reference)
    parts = (call >= 0) & (other >= 0) & (match.calls.reference_of[np.maximum(call, 0)] != other)
    width = match.reference.num_calls + 1
    _, number = np.unique(call[parts] * width + other[parts], return_inverse=True)
    call[parts] = match.target.num_calls + number.reshape(-1)
    return call


def _layouts(match: StepMatch, num: int) -> tuple[Codes, tuple[CommonForm, ...]]:
    """A number for each pair, and the layouts they number."""
    codes = np.full(num, -1, np.int64)
    index: dict[CommonForm, int] = {}
    for at, one in enumerate(match.records.layouts):
        if one is not None:
            codes[at] = index.setdefault(one, len(index))
    return codes, tuple(index)


def _half(tables: StepTables, side: TreeSide, record: Codes) -> Half:
    summary = _take(side.record_summary, record)
    return Half(
        tables=tables,
        side=side,
        record=record,
        call=_take(side.record_call, record),
        summary=summary,
        dtype=_take(side.summary_dtype, summary),
        shape=_take(side.summary_shape, summary),
        numel=_floats(tables, "numel", summary),
        statistics={name: _floats(tables, name, summary) for name in COUNTS + STATISTICS},
    )


def _take(values: Codes, at: Codes) -> Codes:
    if not len(values):
        return np.full(len(at), -1, np.int64)
    return np.where(at >= 0, values[at], -1)


def _floats(tables: StepTables, name: str, summary: Codes) -> Floats:
    column = tables.summaries[name].cast(pl.Float64)
    values = (column.fill_null(float("nan")) if column.null_count() else column).to_numpy()
    if not len(values):
        return np.full(len(summary), np.nan)
    return np.where(summary >= 0, values[summary], np.nan)


def _gather(column: pl.Series, at: Codes) -> pl.Series:
    index = (
        pl.Series(np.maximum(at, 0)).to_frame("i").select(pl.when(pl.Series(at) >= 0).then(pl.col("i")))["i"]
    )
    return column.gather(index)


def _among(codes: Codes, vocabulary: list[str], names: tuple[str, ...]) -> Bools:
    wanted: Bools = np.array([word in names for word in vocabulary] + [False])
    return wanted[codes]
