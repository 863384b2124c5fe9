"""Every parameter with a gradient is changed by the update, and stays changed until the next forward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from trueup.diagnosing.checks.outcome import CheckedSite, CheckOutcome, FunctionCheck, Judge, Measured
from trueup.diagnosing.checks.run import CheckedRun
from trueup.numerics.dtypes import DTYPES
from trueup.types.codes import CheckCode as Code
from trueup.types.reason import Reason, reason

_MAX_PLACES = 8


@dataclass(slots=True)
class _Seen:
    """What became of parameters over the judged steps of one rank."""

    judged: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)
    given: set[str] = field(default_factory=set)
    """parameters some optimizer updated"""
    strangers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """tensors an optimizer updated that are no parameters of the model, with their shapes"""
    too_small: dict[str, Reason] = field(default_factory=dict)
    """unchanged parameters whose dtype cannot hold so small an update in any judged step -> why"""
    due: set[str] = field(default_factory=set)
    """parameters that an update should have changed"""
    is_recorded: bool = False
    """what optimizers update was recorded"""
    with_master: set[str] = field(default_factory=set)
    """parameters whose optimizer keeps a master weight in its state"""
    in_a_row: bool = False
    """the next step was captured too: what its forward starts from tells more than what the update left"""
    steps: list[int] = field(default_factory=list)
    still: list[Reason] = field(default_factory=list)
    """steps that were not judged, and why"""


def _judge(run: CheckedRun, judge: Judge) -> CheckOutcome:
    rank = next(iter(run.ranks), None)
    if rank is None:
        return judge.undecided(reason(Code.NO_STEP))
    seen = _look(run, rank)
    if not seen.judged:
        why = seen.still or [reason(Code.NONE_DUE if seen.steps else Code.NONE_IN_STEPS)]
        return judge.undecided(reason(Code.NO_UPDATE, *why), next=reason(Code.CAPTURE_MORE))
    shapes = {p["fqn"]: tuple(p["shape"]) for p in run.parameters(rank)}
    waiting = _waiting(seen, shapes)
    kept = sorted(seen.judged - seen.changed - waiting)
    numbers: Measured = {
        "parameters": len(seen.judged),
        "unchanged": len(kept),
        "steps": seen.steps,
        "not_given": len([n for n in kept if n not in seen.given]),
    }
    notes = tuple(seen.still)
    if waiting:
        notes += (reason(Code.AWAITING, num=len(waiting)),)
    steps = {"first": seen.steps[0], "last": seen.steps[-1]}
    if not kept:
        num = len(seen.judged & seen.changed)
        changed = reason(Code.ALL_CHANGED, num=num, total=len(seen.judged), **steps)
        return judge.passed(changed, numbers=numbers, notes=notes)
    places = tuple(
        CheckedSite(site=name, step=seen.steps[0], rank=rank, detail=_why(name, seen, shapes))
        for name in kept[:_MAX_PLACES]
    )
    sentence = reason(
        Code.UNCHANGED,
        _why(kept[0], seen, shapes),
        num=len(kept),
        total=len(seen.judged),
        parameter=kept[0],
        **steps,
    )
    return judge.failed(
        sentence, places=places, numbers=numbers, notes=notes, next=_advice(kept, seen, shapes)
    )


def _waiting(seen: _Seen, shapes: dict[str, tuple[int, ...]]) -> set[str]:
    """Working copies whose update is still too small for their dtype, but kept by a master weight."""
    masters = set(seen.strangers.values())
    return {n for n in seen.too_small if n in seen.with_master or shapes.get(n) in masters} - seen.changed


def _look(run: CheckedRun, rank: int) -> _Seen:
    seen = _Seen()
    known = {p["fqn"] for p in run.facts(rank).get("parameters") or []}
    steps = [step for step, ranks in run.steps.items() if rank in ranks]
    for step in steps:
        view = run.view(step, rank)
        scalars = run.line(step, rank)
        rates = scalars.get("learning_rate")
        if scalars.get("skipped"):
            seen.still.append(reason(Code.STEP_SKIPPED, step=step))
            continue
        if rates and not any(rates):
            seen.still.append(reason(Code.RATE_ZERO, step=step))
            continue
        after = _digests(view.frame_of("optimizer", "param"))
        state = view.frame_of("optimizer").filter(pl.col("slot").str.contains("master|fp32|float32"))
        seen.with_master |= set(state["name"])
        seen.is_recorded |= bool(after)
        for name in after:
            if name in known:
                seen.given.add(name)
            else:
                seen.strangers[name] = tuple(after[name]["shape"])
        later = _digests(run.view(step + 1, rank).frame_of("param", "value")) if step + 1 in steps else {}
        if not (later or (after and not seen.in_a_row)):
            continue
        seen.in_a_row |= bool(later)
        seen.steps.append(step)
        _compare(
            seen,
            view.frame_of("param", "value"),
            after,
            later,
            _with_gradient(view.frame_of("param_grad")),
            rates,
        )
    for name in seen.too_small.keys() & (seen.due | seen.changed):
        del seen.too_small[name]
    return seen


def _compare(
    seen: _Seen,
    before: pl.DataFrame,
    after: dict[str, dict[str, Any]],
    later: dict[str, dict[str, Any]],
    with_gradient: set[str],
    rates: Sequence[float] | None,
) -> None:
    for name, row in _digests(before).items():
        then = later.get(name) or after.get(name)
        if name not in with_gradient or then is None or row["digest"] is None:
            continue
        is_changed = then["digest"] != row["digest"]
        why = None if is_changed else _below_resolution(row, max(rates) if rates else None)
        if is_changed:
            seen.changed.add(name)
        elif why is None:
            seen.due.add(name)
        elif row["dtype"] in ("float32", "float64"):
            continue  # a rate this small warms up: no update is due
        else:
            seen.too_small[name] = why
        seen.judged.add(name)


def _digests(frame: pl.DataFrame) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in frame.iter_rows(named=True)}


def _with_gradient(frame: pl.DataFrame) -> set[str]:
    return set(frame.filter(pl.col("num_zero") < pl.col("numel"))["name"])


def _below_resolution(row: dict[str, Any], rate: float | None) -> Reason | None:
    """Whether an update of about the learning rate is less than half a step of the dtype at this size."""
    if rate is None or row["dtype"] not in DTYPES or row["smallest_nonzero"] is None:
        return None
    size = row["smallest_nonzero"]
    step = (
        2
        * DTYPES[row["dtype"]].eps
        * 2.0 ** math.floor(math.log2(max(size, DTYPES[row["dtype"]].smallest_normal)))
    )
    if rate >= step / 2:
        return None
    return reason(Code.LOST_IN_ROUNDING, rate=rate, dtype=row["dtype"], spacing=step, size=size)


def _why(name: str, seen: _Seen, shapes: dict[str, tuple[int, ...]]) -> Reason:
    if name in seen.too_small:
        return seen.too_small[name]
    if name in seen.given or not seen.is_recorded:
        return reason(Code.SAME_BITS)
    if shapes.get(name) in seen.strangers.values():
        other = next(n for n, shape in seen.strangers.items() if shape == shapes[name])
        return reason(Code.STALE_PARAMETERS, other=other)
    return reason(Code.NOT_HELD)


def _advice(kept: list[str], seen: _Seen, shapes: dict[str, tuple[int, ...]]) -> Reason:
    why = {_why(name, seen, shapes).code for name in kept}
    return reason(next(advice for code, advice in _ADVICE.items() if code in why))


_ADVICE = {
    Code.LOST_IN_ROUNDING: Code.KEEP_MASTERS,
    Code.STALE_PARAMETERS: Code.OPTIMIZER_LAST,
    Code.NOT_HELD: Code.ALL_PARAMETERS,
    Code.SAME_BITS: Code.FIND_RESTORE,
}
"""why a parameter is unchanged -> what to do, the most telling first"""


CHECK = FunctionCheck("updates", "The update changes every parameter", _judge)
