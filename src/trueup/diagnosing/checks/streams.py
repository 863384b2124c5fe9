"""Random streams that must differ do: dropout of two layers, two steps, two data-parallel ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trueup.diagnosing.checks.outcome import CheckOutcome, FunctionCheck, Judge, Place
from trueup.diagnosing.checks.run import CheckedRun, StepView

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
    def key(self) -> tuple[Any, ...]:
        """The same dropout call on every rank."""
        row = self.row
        return self.view.tables.step, row["module"], row["name"], row["ordinal"], row["microbatch"]


def _judge(run: CheckedRun, judge: Judge) -> CheckOutcome:
    by_rank = {rank: list(_masks(run, rank)) for rank in run.ranks}
    num = sum(map(len, by_rank.values()))
    redrawn = list(_redrawn(run))
    if not (num or redrawn):
        return _without(run, judge)
    numbers = {"masks": num, "ranks": len(by_rank)}
    same = [found for masks in by_rank.values() for found in _same_within(masks)]
    same += redrawn
    across = _same_across(by_rank)
    if run.replicated:
        same += across
    if same:
        return judge.failed(
            same[0][0], places=tuple(place for _, place in same[:_MAX_PLACES]), numbers=numbers,
            next="look for manual_seed in the forward or in a loop, and for a seed without the rank in it",
        )  # fmt: skip
    notes = (f"{len(across):,} masks are the same on two ranks, as tensor-parallel ones must be",)
    ranks = f" on {len(by_rank)} ranks" if len(by_rank) > 1 else ""
    return judge.passed(
        f"{num:,} dropout masks{ranks}, no two of them the same",
        numbers=numbers,
        notes=notes if across else (),
    )


def _masks(run: CheckedRun, rank: int) -> Iterator[_Mask]:
    for step, ranks in run.steps.items():
        if rank not in ranks:
            continue
        view = run.view(step, rank)
        rows = view.of("forward", SLOT).filter(pl.col("mode") != "eval")
        for row in rows.iter_rows(named=True):
            values = run.values(step, rank, row)
            if values is not None:
                yield _Mask(view=view, row=row, sample=values.astype(np.uint8).ravel())


def _same_within(masks: list[_Mask]) -> list[tuple[str, Place]]:
    """Pairs of calls of one rank with one mask, each call once."""
    drawn = [mask for mask in masks if mask.row["mode"] == "train"]
    found = []
    for at, later in enumerate(drawn):
        first = next((one for one in drawn[:at] if same_stream(one.sample, later.sample)), None)
        if first is not None:
            a, b = first.view.site(first.row), later.view.site(later.row)
            when = _when(first, later)
            both = f"{a} has the same mask {when}" if a == b else f"{a} and {b} have the same mask {when}"
            found.append((both, later.view.place(later.row, f"the same elements as {a}")))
    return found


def _when(first: _Mask, later: _Mask) -> str:
    steps = first.view.tables.step, later.view.tables.step
    if steps[0] != steps[1]:
        return f"in steps {steps[0]} and {steps[1]}"
    batches = first.row["microbatch"], later.row["microbatch"]
    where = f"step {steps[0]}" if batches[0] == batches[1] else f"microbatches {batches[0]} and {batches[1]}"
    return f"in {where} (rank {later.view.tables.rank})"


def _redrawn(run: CheckedRun) -> Iterator[tuple[str, Place]]:
    """The first module a step whose recomputed output is not the forward's though its inputs are.

    API calls inside backward are not seen; the modules around them are.
    """
    for step, ranks in run.steps.items():
        for rank in ranks:
            view = run.view(step, rank)
            rows = view.of("forward").filter((pl.col("kind") == "module") & pl.col("digest").is_not_null())
            again = rows.filter(pl.col("mode") == "recompute")
            if not again.height:
                continue
            first = rows.filter(pl.col("mode") == "train").unique(subset=_MODULE, keep="first")
            pairs = again.join(first.select(*_MODULE, forward="digest"), on=_MODULE, maintain_order="left")
            other = pairs.filter(pl.col("digest") != pl.col("forward"))
            fed = other.filter(pl.col("slot").str.starts_with("input"))["call"]
            own = other.filter(~pl.col("call").is_in(fed.implode()))
            if own.height:
                row = own.row(0, named=True)
                sentence = f"{view.site(row)} is not what the forward had, from equal inputs: step {step}"
                yield sentence, view.place(row, "recomputed by a checkpoint with another random state")


def _same_across(by_rank: dict[int, list[_Mask]]) -> list[tuple[str, Place]]:
    ranks = sorted(by_rank)
    first = {m.key: m for m in by_rank[ranks[0]] if m.row["mode"] == "train"}
    found = []
    for rank in ranks[1:]:
        for mask in by_rank[rank]:
            other = first.get(mask.key)
            if mask.row["mode"] == "train" and other is not None and same_stream(other.sample, mask.sample):
                site = mask.view.site(mask.row)
                sentence = f"{site} has the same mask on ranks {ranks[0]} and {rank}"
                found.append(
                    (sentence, mask.view.place(mask.row, f"the same elements as on rank {ranks[0]}"))
                )
    return found


def same_stream(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> bool:
    """Whether two samples agree wherever both can be told, more often than streams of their own would."""
    size = min(len(one), len(other))
    one, other = one[:size], other[:size]
    told = (one != 0) & (other != 0)
    if not told.any() or (one[told] != other[told]).any():
        return False
    dropped = float((one[told] == 1).mean())
    agree = dropped**2 + (1 - dropped) ** 2
    return bool(agree ** int(told.sum()) < CHANCE)


def _without(run: CheckedRun, judge: Judge) -> CheckOutcome:
    if not run.has_api_calls():
        return judge.undecided("dropout is seen among API calls only; capture with --level mix")
    for step, ranks in run.steps.items():
        for rank in ranks:
            calls = run.view(step, rank).tables.calls
            names = calls["name"].cast(pl.String)
            if names.str.contains("dropout").any() and not run.view(step, rank).of("forward", SLOT).height:
                arguments = calls.filter(names.str.ends_with(".dropout"))["arguments"].cast(pl.String)
                if any(_is_on(text) for text in arguments):
                    return judge.undecided(
                        "the trace holds no samples of dropout; trueup check-run -- COMMAND takes them"
                    )
    return judge.nothing("no dropout is on")


def _is_on(arguments: str | None) -> bool:
    return arguments is not None and "true" in arguments and ": 0.0" not in arguments


CHECK = FunctionCheck("streams", "Random streams differ where they must", _judge)
