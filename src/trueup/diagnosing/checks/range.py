"""Numbers near the ends of their dtype: values about to overflow, gradients flushed to zero."""

from __future__ import annotations

import json
import math
from typing import Any

import polars as pl

from trueup.diagnosing.checks.outcome import CheckedSite, CheckOutcome, FunctionCheck, Judge, Measured
from trueup.diagnosing.checks.run import CheckedRun, place_of
from trueup.numerics.dtypes import DTYPES
from trueup.store import StepView
from trueup.types.codes import CheckCode as Code
from trueup.types.reason import Reason, reason

NEAR_MAXIMUM = 0.5
"""share of the largest number of a dtype from which on a value counts as about to overflow"""
_FEW = 0.1
"""share of gradients that may lie below the smallest normal number before the check fails"""
_HALVES = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
_MAX_PLACES = 5


def _judge(run: CheckedRun, judge: Judge) -> CheckOutcome:
    large: list[tuple[CheckedSite, Reason]] = []
    small: list[CheckedSite] = []
    num_gradients = num_small = num_small_parameters = num_floating = 0
    is_scaled = False
    for step, ranks in run.steps.items():
        for rank in ranks:
            view = run.view(step, rank)
            num_floating += view.frame.filter(pl.col("dtype").is_in(_FLOATS)).height
            scaled = bool(run.line(step, rank).get("loss_scale"))
            is_scaled |= scaled
            large += _near_maximum(view, scaled=scaled)
            gradients = _half_gradients(view)
            num_gradients += gradients.height
            below = gradients.filter(pl.col("rms") < pl.col("normal"))
            num_small += below.height
            num_small_parameters += below.filter(pl.col("phase") == "param_grad").height
            small += [place_of(view, row, _small_detail(row)) for row in below.head(_MAX_PLACES).to_dicts()]
    numbers: Measured = {"floating": num_floating, "half_gradients": num_gradients, "below_normal": num_small}
    if not num_floating:
        return judge.undecided(reason(Code.NO_STATISTICS))
    if large:
        first, value = large[0]
        sentence = reason(Code.NEAR_OVERFLOW, value, site=first.site, step=first.step)
        places = tuple(place for place, _ in large[:_MAX_PLACES])
        return judge.failed(sentence, places=places, numbers=numbers)
    if num_small_parameters or num_small > _FEW * max(num_gradients, 1):
        tiny = reason(Code.BELOW_NORMAL, num=num_small, total=num_gradients, site=small[0].site)
        first_small = small[0].detail
        dtype = None if first_small is None else first_small.place("dtype")
        advice = reason(Code.SCALE_LOSS, is_scaled=is_scaled, dtype=dtype)
        return judge.failed(tiny, places=tuple(small[:_MAX_PLACES]), numbers=numbers, next=advice)
    clear = reason(Code.IN_RANGE, num_gradients=num_gradients, num_small=num_small, is_scaled=is_scaled)
    return judge.passed(clear, numbers=numbers)


_FLOATS = [name for name, dtype in DTYPES.items() if dtype.kind == "float"]


def _near_maximum(view: StepView, *, scaled: bool) -> list[tuple[CheckedSite, Reason]]:
    """Outputs near the largest number of their dtype whose inputs are not; a mask's number is meant."""
    limits = pl.col("dtype").replace_strict(
        {name: DTYPES[name].max for name in _FLOATS}, default=math.inf, return_dtype=pl.Float64
    )
    rows = view.frame.with_columns(limit=limits).filter(
        pl.max_horizontal(pl.col("maximum").abs(), pl.col("minimum").abs()) > NEAR_MAXIMUM * pl.col("limit")
    )
    fed: set[int] = set()
    found = []
    leaf = "api" if "api" in view.kind else "module"
    for row in rows.iter_rows(named=True):
        if row["phase"] == "forward" and row["slot"].startswith("input"):
            fed.add(row["call"])
        elif row["phase"] == "forward" and row["kind"] == leaf and row["call"] not in fed:
            if not _is_mask(row) and not _asked_for(row):
                found.append(_large(view, row))
        elif row["phase"] in ("param_grad", "param", "optimizer") and not scaled and not _is_state(row):
            found.append(_large(view, row))
    return found


def _is_mask(row: dict[str, Any]) -> bool:
    """Nothing large but the smallest number there is, or what is left of it after a sum."""
    return bool(row["maximum"] < NEAR_MAXIMUM * row["limit"] and row["minimum"] <= -0.98 * row["limit"])


def _is_state(row: dict[str, object]) -> bool:
    return bool(row["phase"] == "optimizer" and row["slot"] != "param")


def _asked_for(row: dict[str, Any]) -> bool:
    """Whether an argument of the call is itself so large."""
    values = json.loads(row["arguments"] or "{}").values()
    return any(isinstance(v, (int, float)) and abs(v) > NEAR_MAXIMUM * row["limit"] for v in values)


def _large(view: StepView, row: dict[str, Any]) -> tuple[CheckedSite, Reason]:
    largest = max(abs(row["maximum"]), abs(row["minimum"]))
    detail = reason(Code.LARGE_VALUE, value=largest, limit=row["limit"], dtype=row["dtype"])
    return place_of(view, row, detail), detail


def _half_gradients(view: StepView) -> pl.DataFrame:
    """Gradients in half precision with ``rms``, over those that are not zero, and the smallest normal number.

    Statistics are of this rank's tensor as it is: under a loss scale, of the scaled gradient.
    """
    normal = pl.col("dtype").replace_strict(
        {name: DTYPES[name].smallest_normal for name in _HALVES}, default=0.0, return_dtype=pl.Float64
    )
    phases = pl.col("phase").is_in(["backward", "param_grad"]) & pl.col("dtype").is_in(_HALVES)
    infinite = pl.col("num_posinf") + pl.col("num_neginf")
    nonzero = pl.col("numel") - pl.col("num_zero") - pl.col("num_nan") - infinite
    return (
        view.frame.filter(phases & (pl.col("slot") != "clipped"))
        .with_columns(normal=normal, nonzero=nonzero)
        .filter(pl.col("nonzero") > 0)
        .with_columns(rms=pl.col("l2_norm") / pl.col("nonzero").sqrt())
    )


def _small_detail(row: dict[str, Any]) -> Reason:
    return reason(
        Code.SMALL_VALUES,
        rms=row["rms"],
        normal=row["normal"],
        dtype=row["dtype"],
        zero=row["num_zero"] / row["numel"],
    )


CHECK = FunctionCheck("range", "Values stay clear of overflow and underflow", _judge)
