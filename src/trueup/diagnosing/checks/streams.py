"""Random streams that must differ do: dropout of two layers, two steps, two data-parallel ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trueup.diagnosing.checks.outcome import CheckedSite, CheckOutcome, FunctionCheck, Judge, Measured
from trueup.diagnosing.checks.run import CheckedRun, place_of, site_of
from trueup.store import StepView
from trueup.types.codes import CheckCode as Code
from trueup.types.reason import Reason, reason

SLOT = "kept.0"
"""a sample of what a dropout call did: 0 cannot be told (a zero went in), 1 dropped, 2 kept"""
CHANCE = 1e-9
"""two masks are the same when so many agreements are less likely than this for streams of their own"""
_MAX_PLACES = 5
_MODULE = ["name", "ordinal", "microbatch", "slot"]
"""what a recomputed module call has in common with the call in the forward"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mask:
    """What one dropout call did."""

    view: StepView
    row: dict[str, Any]
    sample: NDArray[np.uint8]

    @property
    def key(self) -> tuple[object, ...]:
        """The same dropout call on every rank."""
        row = self.row
        return self.view.step, row["module"], row["name"], row["ordinal"], row["microbatch"]


def _judge(run: CheckedRun, judge: Judge) -> CheckOutcome:
    by_rank = {rank: list(_masks(run, rank)) for rank in run.ranks}
    num = sum(map(len, by_rank.values()))
    redrawn = list(_redrawn(run))
    if not (num or redrawn):
        return _without(run, judge)
    numbers: Measured = {"masks": num, "ranks": len(by_rank)}
    same = [found for masks in by_rank.values() for found in _same_within(masks)]
    same += redrawn
    across = _same_across(by_rank)
    if run.replicated:
        same += across
    if same:
        advice = Code.RESTORE_STATE if same[0][0].code is Code.RECOMPUTED else Code.FIND_SEED
        return judge.failed(
            same[0][0], places=tuple(place for _, place in same[:_MAX_PLACES]), numbers=numbers,
            next=reason(advice),
        )  # fmt: skip
    notes = (reason(Code.SHARED_MASKS, num=len(across)),) if across else ()
    drawn = sum(mask.row["mode"] == "train" for masks in by_rank.values() for mask in masks)
    differ = reason(Code.MASKS_DIFFER, num=drawn, ranks=len(by_rank), is_shared=bool(across))
    return judge.passed(differ, numbers=numbers, notes=notes)


def _masks(run: CheckedRun, rank: int) -> Iterator[_Mask]:
    for step, ranks in run.steps.items():
        if rank not in ranks:
            continue
        view = run.view(step, rank)
        rows = view.frame_of("forward", SLOT).filter(pl.col("mode") != "eval")
        for row in rows.iter_rows(named=True):
            values = run.values(step, rank, row)
            if values is not None:
                yield _Mask(view=view, row=row, sample=values.astype(np.uint8).ravel())


def _same_within(masks: list[_Mask]) -> list[tuple[Reason, CheckedSite]]:
    """Pairs of calls of one rank with one mask, each call once."""
    drawn = [mask for mask in masks if mask.row["mode"] == "train"]
    found = []
    for at, later in enumerate(drawn):
        first = next((one for one in drawn[:at] if same_stream(one.sample, later.sample)), None)
        if first is not None:
            same = reason(
                Code.SAME_MASK,
                site=site_of(first.row),
                other=site_of(later.row),
                step=first.view.step,
                other_step=later.view.step,
                microbatch=first.row["microbatch"],
                other_microbatch=later.row["microbatch"],
                rank=later.view.rank,
            )
            detail = reason(
                Code.SAME_AS,
                site=site_of(first.row),
                step=first.view.step,
                microbatch=first.row["microbatch"],
            )
            found.append((same, place_of(later.view, later.row, detail)))
    return found


def _redrawn(run: CheckedRun) -> Iterator[tuple[Reason, CheckedSite]]:
    """The first module a step whose recomputed output is not the forward's though its inputs are.

    API calls inside backward are not seen; the modules around them are.
    """
    for step, ranks in run.steps.items():
        for rank in ranks:
            view = run.view(step, rank)
            rows = view.frame_of("forward").filter(
                (pl.col("kind") == "module") & pl.col("digest").is_not_null()
            )
            again = rows.filter(pl.col("mode") == "recompute")
            if not again.height:
                continue
            first = rows.filter(pl.col("mode") == "train").unique(subset=_MODULE, keep="first")
            pairs = again.join(first.select(*_MODULE, forward="digest"), on=_MODULE, maintain_order="left")
            other = pairs.filter(pl.col("digest") != pl.col("forward"))
            fed = other.filter(pl.col("slot").str.starts_with("input"))["call"]
            drawn_into = pairs.filter(pl.col("slot").str.starts_with("input"))["call"]
            own = other.filter(
                ~pl.col("call").is_in(fed.implode()) & pl.col("call").is_in(drawn_into.implode())
            )
            if own.height:
                row = own.row(0, named=True)
                differs = reason(Code.RECOMPUTED, site=site_of(row), step=step)
                yield differs, place_of(view, row, reason(Code.OTHER_STATE))


def _same_across(by_rank: dict[int, list[_Mask]]) -> list[tuple[Reason, CheckedSite]]:
    found = []
    earlier: dict[tuple[object, ...], list[_Mask]] = {}
    for rank in sorted(by_rank):
        for mask in (one for one in by_rank[rank] if one.row["mode"] == "train"):
            others = earlier.setdefault(mask.key, [])
            other = next((one for one in others if same_stream(one.sample, mask.sample)), None)
            others.append(mask)
            if other is not None and other.view.rank != rank:
                first = other.view.rank
                same = reason(Code.SAME_MASK_ON_RANKS, site=site_of(mask.row), first=first, rank=rank)
                detail = reason(Code.SAME_AS_RANK, rank=first)
                found.append((same, place_of(mask.view, mask.row, detail)))
    return found


def same_stream(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> bool:
    """Whether two samples agree wherever both can be told, more often than streams of their own would."""
    size = min(len(one), len(other))
    one, other = one[:size], other[:size]
    known = (one != 0) & (other != 0)
    if not known.any() or (one[known] != other[known]).any():
        return False
    dropped = float((one[known] == 1).mean())
    agree = dropped**2 + (1 - dropped) ** 2
    return bool(agree ** int(known.sum()) < CHANCE)


def _without(run: CheckedRun, judge: Judge) -> CheckOutcome:
    if not run.has_api_calls():
        return judge.undecided(reason(Code.NEED_MIX))
    for step, ranks in run.steps.items():
        for rank in ranks:
            calls = run.view(step, rank).tables.calls
            names = calls["name"].cast(pl.String)
            if (
                names.str.contains("dropout").any()
                and not run.view(step, rank).frame_of("forward", SLOT).height
            ):
                arguments = calls.filter(
                    names.str.contains("dropout") & (calls["kind"].cast(pl.String) == "api")
                )["arguments"].cast(pl.String)
                if any(_is_on(text) for text in arguments):
                    return judge.undecided(reason(Code.NO_SAMPLES))
    return judge.nothing(reason(Code.NO_DROPOUT))


def _is_on(arguments: str | None) -> bool:
    """Whether a dropout call was training, with a probability above 0."""
    values = list(json.loads(arguments or "{}").values())
    zero = any(not isinstance(value, bool) and value == 0 for value in values)
    return any(value is True for value in values) and not zero


CHECK = FunctionCheck("streams", "Random streams differ where they must", _judge)
