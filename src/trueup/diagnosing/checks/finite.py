"""NaN and infinity: the first one, and the call that made it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import polars as pl

from trueup.diagnosing.checks.outcome import CheckOutcome, FunctionCheck, Judge
from trueup.diagnosing.checks.run import CheckedRun, StepView
from trueup.numerics.dtypes import DTYPES
from trueup.numerics.not_finite import Caller, Count, How, Origins

_DECISIVE = ("loss", "param_grad", "optimizer", "param")
"""phases in which a value that is not finite does harm; elsewhere it may be masked away, as meant"""
_LOW = -65_400.0
_FLOATS = [name for name, dtype in DTYPES.items() if dtype.kind in ("float", "complex")]
_MAX_PLACES = 5


@dataclass(slots=True)
class _Step:
    """Origins of one step of one rank, and whether what they made did harm."""

    view: StepView
    origins: list[tuple[dict[str, Any], How]]
    decisive: bool
    rescaled: bool
    """the gradient scaler skipped this step: gradients that overflow are its business"""


def _judge(run: CheckedRun, judge: Judge) -> CheckOutcome:
    seen = [_look(run, step, rank) for step, ranks in run.steps.items() for rank in ranks]
    if not seen:
        return judge.undecided("no whole step was captured")
    if not any(one.view.records["summary"].is_not_null().any() for one in seen):
        return judge.undecided("the trace holds no statistics")
    harmful = [one for one in seen if one.decisive and one.origins]
    notes = _notes(run, [one for one in seen if one not in harmful])
    numbers = {"records": sum(one.view.records.height for one in seen)}
    if harmful:
        first = harmful[0]
        places = [first.view.place(row, detail=_detail(row, how)) for row, how in first.origins]
        row, how = first.origins[0]
        verb = "is made" if how is How.MADE else "is first seen"
        sentence = f"{_what(row)} {verb} in step {first.view.tables.step} at {places[0].site}"
        return judge.failed(
            sentence,
            places=tuple(places[:_MAX_PLACES]),
            numbers=numbers,
            notes=notes,
            next="trueup capture --task overflow_check -o RUN -- COMMAND keeps the values that went in",
        )
    later = _later_losses(run)
    if later:
        return judge.failed(
            later,
            numbers=numbers,
            notes=notes,
            next="trueup capture --task overflow_check -o RUN -- COMMAND finds the call that makes it",
        )
    return judge.passed(
        f"every loss, gradient and weight is finite in {numbers['records']:,} records",
        numbers=numbers,
        notes=notes,
    )


def _look(run: CheckedRun, step: int, rank: int) -> _Step:
    view = run.view(step, rank)
    bad = pl.col("num_nan") + pl.col("num_posinf") + pl.col("num_neginf") > 0
    rows = _with_counts(view.records).filter(bad | (pl.col("minimum") <= _LOW))
    scalars = run.scalars(rank).get(step, {})
    rescaled = bool(scalars.get("skipped"))
    origins = Origins(lambda call: _caller(view, call))
    found, decisive = [], False
    for row in rows.iter_rows(named=True):
        count = _count(row)
        how = origins.see(row["call"], row["phase"], row["slot"], count)
        gradient = row["phase"] in ("backward", "param_grad")
        decisive |= not count.finite and row["phase"] in _DECISIVE and not (rescaled and gradient)
        if how is not None:
            found.append((row, how))
    return _Step(view=view, origins=found, decisive=decisive, rescaled=rescaled)


def _with_counts(records: pl.DataFrame) -> pl.DataFrame:
    """Dumps of other tools count nothing: there the ends of the range tell, and their absence is NaN."""
    counted = pl.col("num_nan") + pl.col("num_posinf") + pl.col("num_neginf") > 0
    floating = pl.col("dtype").is_in(_FLOATS) & (pl.col("numel") > 0) & pl.col("num_nan").is_not_null()
    nan = floating & (pl.col("minimum").is_null() | pl.col("minimum").is_nan())
    found = {
        "num_nan": nan,
        "num_posinf": pl.col("maximum") == math.inf,
        "num_neginf": pl.col("minimum") == -math.inf,
    }
    return records.with_columns(
        **{
            name: pl.when(counted).then(pl.col(name)).otherwise(pl.col(name) + seen.fill_null(False))
            for name, seen in found.items()
        }
    )


def _count(row: dict[str, Any]) -> Count:
    lowest = row["minimum"]
    if lowest is not None and not math.isfinite(lowest):
        lowest = None
    return Count(
        num_nan=row["num_nan"] or 0,
        num_posinf=row["num_posinf"] or 0,
        num_neginf=row["num_neginf"] or 0,
        lowest=0.0 if lowest is None else lowest,
    )


def _caller(view: StepView, call: int) -> Caller:
    calls = view.tables.calls
    return Caller(
        parent=view.parents[call],
        arguments=calls["arguments"][call],
        recompute=str(calls["mode"][call]) == "recompute",
    )


def _what(row: dict[str, Any]) -> str:
    return "NaN" if row["num_nan"] else "an infinity"


def _detail(row: dict[str, Any], how: How) -> str:
    parts = [
        f"{row[key]:,} {word}"
        for key, word in (("num_nan", "NaN"), ("num_posinf", "+inf"), ("num_neginf", "-inf"))
        if row[key]
    ]
    came = (
        "what went in is finite"
        if how is How.MADE
        else "there before, or from code that capture does not see"
    )
    return f"{' and '.join(parts)} of {row['numel']:,} values ({row['dtype']}); {came}"


def _notes(run: CheckedRun, harmless: list[_Step]) -> tuple[str, ...]:
    notes = []
    made = [(one, row) for one in harmless for row, _ in one.origins if not one.rescaled]
    if made:
        one, row = made[0]
        notes.append(
            f"{len(made)} site{'s make' if len(made) > 1 else ' makes'} values that are not finite, which no "
            f"loss, gradient or weight takes over: first {one.view.site(row)}"
        )
    skipped = [one.view.tables.step for one in harmless if one.rescaled]
    if skipped:
        notes.append(
            f"the gradient scaler skipped step {skipped[0]}"
            + (f" and {len(skipped) - 1} more" if len(skipped) > 1 else "")
            + ": gradients overflowed under the loss scale, as it is made to notice"
        )
    return tuple(notes)


def _later_losses(run: CheckedRun) -> str | None:
    """Scalars are there for every step, captured or not."""
    for rank in run.ranks:
        for step, line in run.scalars(rank).items():
            loss = line.get("loss")
            if isinstance(loss, float) and not math.isfinite(loss):
                return f"the loss is {loss} in step {step} (rank {rank}), of which no tensors were captured"
    return None


CHECK = FunctionCheck("finite", "No NaN or infinity is made", _judge)
