"""NaN and infinity: the first one, and the call that made it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from trueup.diagnosing.checks.outcome import CheckedSite, CheckOutcome, FunctionCheck, Judge, Measured
from trueup.diagnosing.checks.run import CheckedRun, place_of, site_of
from trueup.numerics.dtypes import DTYPES
from trueup.numerics.not_finite import Caller, Count, How, Origins
from trueup.store import StepView
from trueup.types.codes import CheckCode as Code
from trueup.types.reason import Reason, reason

_DECISIVE = ("loss", "param_grad", "optimizer", "param")
"""phases in which a value that is not finite does harm; elsewhere it may be masked away, as meant"""
_KINDS = {"loss": "loss", "param_grad": "gradient of a weight", "optimizer": "update", "param": "weight"}
_LOW = -65_400.0
_FLOATS = [name for name, dtype in DTYPES.items() if dtype.kind in ("float", "complex")]
_MAX_PLACES = 5


@dataclass(slots=True)
class _Step:
    """Origins of one step of one rank, and whether what they made did harm."""

    view: StepView
    origins: list[tuple[dict[str, object], How]]
    decisive: bool
    looked_at: frozenset[str]
    """phases of which it holds numbers"""
    rescaled: bool
    """the gradient scaler skipped this step: gradients that overflow are its business"""


def _judge(run: CheckedRun, judge: Judge) -> CheckOutcome:
    seen = [_look(run, step, rank) for step, ranks in run.steps.items() for rank in ranks]
    if not seen:
        return judge.undecided(reason(Code.NO_STEP))
    if not any(one.looked_at for one in seen):
        return judge.undecided(reason(Code.NO_STATISTICS))
    harmful = [one for one in seen if one.decisive]
    unknown = [one for one in seen if one.origins and not one.looked_at & {*_DECISIVE}]
    notes = _notes(run, [one for one in seen if one not in (*harmful, *unknown)])
    num_records = sum(one.view.frame.height for one in seen)
    numbers: Measured = {"records": num_records}
    if harmful:
        sentence, places = _first(harmful[0])
        return judge.failed(
            sentence, places=places, numbers=numbers, notes=notes, next=reason(Code.KEEP_INPUTS)
        )
    later = _later_losses(run)
    if later is not None:
        return judge.failed(later, numbers=numbers, notes=notes, next=reason(Code.FIND_CALL))
    if unknown:  # what became of it was not recorded
        sentence, places = _first(unknown[0])
        return judge.undecided(
            sentence, places=places, numbers=numbers, notes=notes, next=reason(Code.KEEP_INPUTS)
        )
    return judge.passed(_finite(seen, num_records), numbers=numbers, notes=notes)


def _finite(seen: Sequence[_Step], num_records: int) -> Reason:
    phases = frozenset[str]().union(*(one.looked_at for one in seen))
    kinds = [_KINDS[phase] for phase in _DECISIVE if phase in phases] or ["activation"]
    skips = any(one.rescaled for one in seen)
    return reason(Code.FINITE, num=num_records, kinds=kinds, skips=skips)


def _first(seen: _Step) -> tuple[Reason, tuple[CheckedSite, ...]]:
    places = [place_of(seen.view, row, detail=_detail(row, how)) for row, how in seen.origins]
    row, how = seen.origins[0]
    sentence = reason(
        Code.NOT_FINITE,
        is_nan=bool(row["num_nan"]),
        is_made=how is How.MADE,
        step=seen.view.step,
        site=places[0].site,
    )
    return sentence, tuple(places[:_MAX_PLACES])


def _look(run: CheckedRun, step: int, rank: int) -> _Step:
    view = run.view(step, rank)
    bad = pl.col("num_nan") + pl.col("num_posinf") + pl.col("num_neginf") > 0
    rows = _with_counts(view.frame).filter(bad | (pl.col("minimum") <= _LOW))
    scalars = run.line(step, rank)
    rescaled = bool(scalars.get("skipped"))
    origins = Origins(lambda call: _caller(view, call))
    found, harmful = [], None
    for row in rows.iter_rows(named=True):
        count = _count(row)
        how = origins.see(row["call"], row["phase"], row["slot"], count)
        gradient = row["phase"] in ("backward", "param_grad")
        if harmful is None and not count.finite and row["phase"] in _DECISIVE and not (rescaled and gradient):
            harmful = row
        if how is not None:
            found.append((row, how))
    if harmful is not None and not found:  # as infinity of minus infinity, which a mask brings
        found = [(harmful, How.ARRIVED)]
    held = view.frame.filter(pl.col("num_nan").is_not_null())["phase"].cast(pl.String)
    return _Step(
        view=view,
        origins=found,
        decisive=harmful is not None,
        looked_at=frozenset(held.unique()),
        rescaled=rescaled,
    )


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
    parent = view.parent[call]
    return Caller(
        parent=None if parent < 0 else parent,
        arguments=view.arguments_text[call],
        recompute=view.mode[call] == "recompute",
    )


def _detail(row: dict[str, Any], how: How) -> Reason:
    counts = {name: row[name] or 0 for name in ("num_nan", "num_posinf", "num_neginf")}
    return reason(
        Code.NOT_FINITE_VALUES,
        **counts,
        numel=row["numel"],
        dtype=row["dtype"],
        is_made=how is How.MADE,
    )


def _notes(run: CheckedRun, harmless: list[_Step]) -> tuple[Reason, ...]:
    notes = []
    made = list(dict.fromkeys(site_of(row) for one in harmless for row, _ in one.origins if not one.rescaled))
    if made:
        notes.append(reason(Code.MASKED_AWAY, num=len(made), site=made[0]))
    skipped = list(dict.fromkeys(one.view.step for one in harmless if one.rescaled))  # once for all ranks
    if skipped:
        notes.append(reason(Code.STEPS_SKIPPED, step=skipped[0], more=len(skipped) - 1))
    return tuple(notes)


def _later_losses(run: CheckedRun) -> Reason | None:
    """Scalars are there for every step, captured or not."""
    for rank in run.ranks:
        for step, line in run.scalars(rank).items():
            loss = line.get("loss")
            if isinstance(loss, float) and not math.isfinite(loss):
                value = "NaN" if math.isnan(loss) else str(loss)
                is_captured = rank in run.steps.get(step, [])
                return reason(
                    Code.NOT_FINITE_LOSS, value=value, step=step, rank=rank, is_captured=is_captured
                )
    return None


CHECK = FunctionCheck("finite", "No NaN or infinity is made", _judge)
