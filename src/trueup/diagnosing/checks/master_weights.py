"""Mixed precision: the weights the model computes with are the master weights, rounded, which are kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueup.comparing.optimizer_settings import declared
from trueup.diagnosing.checks.master_start import (
    MasterUpdate,
    adam_direction,
    is_at,
    start_apart,
    start_of,
)
from trueup.diagnosing.checks.outcome import CheckedSite, CheckOutcome, FunctionCheck, Judge, Measured
from trueup.diagnosing.checks.run import CheckedRun, place_of
from trueup.diagnosing.optimizer_fit import FittedConstant as Share
from trueup.numerics.dtypes import DTYPES
from trueup.numerics.sketch import relative_error
from trueup.store import StepView
from trueup.types.arrays import Array, Floats
from trueup.types.codes import CheckCode as Code
from trueup.types.reason import Reason, reason

_HALVES = ("bfloat16", "float16")
_WIDE = ("float32", "float64")
_MARGIN = 1.3
"""over the largest relative rounding error: the sketch's own uncertainty"""
_MAX_PLACES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    step: int
    view: StepView
    copy: dict[str, Any]
    master: dict[str, Any]


def _judge(run: CheckedRun, judge: Judge) -> CheckOutcome:
    rank = next(iter(run.ranks), None)
    if rank is None:
        return judge.undecided(reason(Code.NO_STEP))
    low = [p["fqn"] for p in run.parameters(rank) if p["dtype"] in _HALVES and p["requires_grad"]]
    if not low:
        return judge.nothing(reason(Code.NO_HALF))
    pairs = list(_pairs(run, rank))
    if not pairs:
        return _without_masters(run, judge, rank, low)
    wrong = [(pair, why) for pair in pairs if (why := _difference(run, rank, pair)) is not None]
    exact = sum(pair.copy["tensor"] is not None and pair.master["tensor"] is not None for pair in pairs)
    numbers: Measured = {"pairs": len(pairs), "wrong": len(wrong), "bit_for_bit": exact}
    total = _num_copies(pairs)
    if wrong:
        places = tuple(_place(pair, why) for pair, why in wrong[:_MAX_PLACES])
        num, first = _num_copies([pair for pair, _ in wrong]), _of_master(*wrong[0])
        sentence = reason(Code.NOT_ROUNDED, first, num=num, total=total, site=places[0].site)
        return judge.failed(sentence, places=places, numbers=numbers, next=reason(Code.COPY_MASTERS))
    starts = [(pair, k) for pair in pairs if (k := _start(run, rank, pair)) is not None]
    anew = [(pair, k) for pair, k in starts if is_at(k, 1)]
    numbers |= {"made_anew": len(anew), "kept": sum(is_at(k, 0) for _, k in starts)}
    if anew:
        return _made_anew(judge, anew, numbers, total)
    equal = reason(Code.MASTERS_EQUAL, num=total, is_exact=exact == len(pairs))
    return judge.passed(equal, numbers=numbers)


def _made_anew(judge: Judge, anew: list[tuple[_Pair, Share]], numbers: Measured, total: int) -> CheckOutcome:
    places = tuple(_place_of_start(pair, k) for pair, k in anew[:_MAX_PLACES])
    num = _num_copies([pair for pair, _ in anew])
    share = _share(anew[0][1])
    sentence = reason(Code.MASTERS_RESTARTED, share, num=num, total=total, site=places[0].site)
    return judge.failed(sentence, places=places, numbers=numbers, next=reason(Code.KEEP_APART))


def _num_copies(pairs: list[_Pair]) -> int:
    """Working copies, each once for all steps."""
    return len({pair.copy["name"] for pair in pairs})


def _pairs(run: CheckedRun, rank: int) -> Iterator[_Pair]:
    """Working copies at the start of a step with the master weights after the update before it."""
    steps = [step for step, ranks in run.steps.items() if rank in ranks]
    for step in steps:
        if step + 1 not in steps:
            continue
        view = run.view(step + 1, rank)
        copies = [r for r in view.frame_of("param", "value").to_dicts() if r["dtype"] in _HALVES]
        known = {row["name"] for row in copies}
        updated = run.view(step, rank).frame_of("optimizer").to_dicts()
        inside = _in_state(updated, known)
        apart = [
            r for r in updated if r["slot"] == "param" and r["name"] not in known and r["dtype"] in _WIDE
        ]
        taken: set[str] = set()
        for copy in copies:
            master = inside.get(copy["name"]) or _nearest(copy, apart, taken)
            if master is not None:
                taken.add(master["name"])
                yield _Pair(step=step, view=view, copy=copy, master=master)


def _in_state(updated: list[dict[str, Any]], known: set[str]) -> dict[str, dict[str, Any]]:
    """Master weights that the optimizer keeps in its state: ``state.master``, ``state.fp32_param``, ..."""
    words = ("master", "fp32", "float32")
    found = {}
    for row in updated:
        named = any(word in row["slot"].lower() for word in words)
        if row["name"] in known and row["slot"].startswith("state.") and named and row["dtype"] in _WIDE:
            found[row["name"]] = row
    return found


def _nearest(copy: dict[str, Any], masters: list[dict[str, Any]], taken: set[str]) -> dict[str, Any] | None:
    """The master weight of the same shape that is nearest to the copy: groups may be in any order."""
    same = [m for m in masters if m["shape"] == copy["shape"] and m["name"] not in taken]
    distances = [_relative(copy, m) for m in same]
    known = [(d, at) for at, d in enumerate(distances) if d is not None]
    return same[min(known)[1]] if known else None


def _relative(copy: dict[str, Any], master: dict[str, Any]) -> float | None:
    if copy["sketch"] is None or master["sketch"] is None or not master["l2_norm"]:
        return 0.0 if copy["l2_norm"] == master["l2_norm"] else None
    sides = [np.frombuffer(row["sketch"], "<f4")[None] for row in (copy, master)]
    return float(relative_error(sides[0], sides[1], np.array([master["l2_norm"]]))[0])


def _difference(run: CheckedRun, rank: int, pair: _Pair) -> Reason | None:
    """Why the copy is not the master rounded; None where it is, as far as the trace tells."""
    copy, master = pair.copy, pair.master
    target, reference = run.values(pair.step + 1, rank, copy), run.values(pair.step, rank, master)
    if target is not None and reference is not None:
        held, expected = target.view(np.uint16), _bits(reference, copy["dtype"])
        both_nan = np.isnan(_wide(held, copy["dtype"])) & np.isnan(reference)
        num = int(((held != expected) & ~both_nan).sum())
        return reason(Code.VALUES_DIFFER, num=num, total=target.size) if num else None
    for name, word in (("maximum", "largest"), ("minimum", "smallest")):
        if copy[name] is None or master[name] is None or np.isnan([copy[name], master[name]]).all():
            continue
        rounded = _value(_bits(np.array([master[name]], np.float32), copy["dtype"]), copy["dtype"])
        if rounded != copy[name]:
            values = {"copy": copy[name], "master": master[name], "rounded": rounded}
            return reason(Code.EXTREME_DIFFERS, which=word, **values)
    distance = _relative(copy, master)
    allowed = _MARGIN * DTYPES[copy["dtype"]].eps
    if distance is not None and distance > allowed:
        return reason(Code.FAR_FROM_MASTER, distance=distance, allowed=allowed)
    return None


def _bits(values: Array, dtype: str) -> NDArray[np.uint16]:
    """Rounded to nearest even, as the bits of a half-precision dtype; NaN stays NaN."""
    with np.errstate(over="ignore"):
        if dtype == "float16":
            return values.astype(np.float16).view(np.uint16)
        wide = values.astype(np.float32).view(np.uint32)
    rounded = (wide + 0x7FFF + ((wide >> 16) & 1)) >> 16
    return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)


def _value(bits: NDArray[np.uint16], dtype: str) -> float:
    if dtype == "float16":
        return float(bits.view(np.float16)[0])
    return float((bits.astype(np.uint32) << 16).view(np.float32)[0])


def _place(pair: _Pair, why: Reason) -> CheckedSite:
    return place_of(pair.view, pair.copy, _of_master(pair, why))


def _of_master(pair: _Pair, why: Reason) -> Reason:
    return reason(Code.OF_MASTER, why, master=pair.master["name"], slot=pair.master["slot"])


def starts_apart(run: CheckedRun) -> dict[str, float]:
    """Of every working copy whose first update is known: how far that update began from the weight that the
    model computed with, relative to it."""
    rank = next(iter(run.ranks), None)
    if rank is None:
        return {}
    pairs = list(_pairs(run, rank))
    found = {}
    for pair in pairs:
        view = run.view(pair.step, rank)
        rows = [r for r in view.frame_of("param", "value").to_dicts() if r["name"] == pair.copy["name"]]
        copy = run.values(pair.step, rank, rows[0]) if pair.step == pairs[0].step and rows else None
        update = _update(run, rank, pair, pair.step)
        if copy is None or update is None or rows[0]["dtype"] not in _HALVES:
            continue
        apart = start_apart(_wide(copy, rows[0]["dtype"]).ravel(), *update)
        if apart is not None:
            found[pair.copy["name"]] = apart / DTYPES[rows[0]["dtype"]].eps
    return found


def _update(
    run: CheckedRun, rank: int, pair: _Pair, step: int
) -> tuple[Floats, Floats, NDArray[np.bool_]] | None:
    """The master after a step's update, the update's direction, and where that is known best."""
    rows = {
        row["slot"]: row
        for row in run.view(step, rank).frame_of("optimizer").to_dicts()
        if row["name"] == pair.master["name"]
    }
    wanted = {"after": rows.get(pair.master["slot"])} | {
        name: rows.get(f"state.{name}") for name in ("exp_avg", "exp_avg_sq", "momentum_buffer")
    }
    found = {
        name: values.astype(np.float64).ravel()
        for name, row in wanted.items()
        if row is not None and (values := run.values(step, rank, row)) is not None
    }
    if "after" not in found:
        return None
    if "exp_avg" in found and "exp_avg_sq" in found:
        settings = declared(run.facts(rank)).get(pair.master["name"], {})
        eps, betas = settings.get("eps"), settings.get("betas")
        known = (float(eps), float(betas[1])) if isinstance(eps, float) and isinstance(betas, list) else ()
        return found["after"], *adam_direction(found["exp_avg"], found["exp_avg_sq"], *known)
    if "momentum_buffer" in found:
        direction = found["momentum_buffer"]
        return found["after"], direction, np.ones(direction.size, bool)
    return None


def _start(run: CheckedRun, rank: int, pair: _Pair) -> Share | None:
    """How much of the copy's rounding error is in the update that follows; None without stored values."""
    before, copy = run.values(pair.step, rank, pair.master), run.values(pair.step + 1, rank, pair.copy)
    update = _update(run, rank, pair, pair.step + 1)
    if before is None or copy is None or update is None:
        return None
    after, direction, steady = update
    held = before.astype(np.float64).ravel(), _wide(copy, pair.copy["dtype"]).ravel(), after
    if any(one.shape != direction.shape for one in held):
        return None
    return start_of(
        MasterUpdate(before=held[0], copy=held[1], after=held[2], direction=direction, steady=steady)
    )


def _wide(values: Array, dtype: str) -> Floats:
    """Stored values of a half-precision dtype, bfloat16 as its bits, in float64."""
    if dtype == "float16":
        return values.view(np.float16).astype(np.float64)
    return (values.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def _share(k: Share) -> Reason:
    return reason(Code.START_SHARE, share=k.value, error=k.error)


def _place_of_start(pair: _Pair, k: Share) -> CheckedSite:
    return place_of(pair.view, pair.copy, _of_master(pair, _share(k)))


def _without_masters(run: CheckedRun, judge: Judge, rank: int, low: list[str]) -> CheckOutcome:
    steps = [step for step, ranks in run.steps.items() if rank in ranks]
    if not any(step + 1 in steps for step in steps):
        return judge.undecided(reason(Code.TWO_STEPS))
    dtypes = {p["fqn"]: p["dtype"] for p in run.parameters(rank)}
    dtype = dtypes[low[0]]
    num = sum(dtypes[name] == dtype for name in low)
    # half the spacing, of the largest numbers that have it: twice as large as those at a power of 2
    return judge.nothing(reason(Code.NO_MASTERS, num=num, dtype=dtype, below=DTYPES[dtype].eps / 2))


CHECK = FunctionCheck("master_weights", "The working copy is the rounded master weight", _judge)
