"""Data-parallel ranks hold the same weights and receive the same reduced gradients."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import polars as pl

from trueup.diagnosing.checks.outcome import CheckedSite, CheckOutcome, FunctionCheck, Judge, Measured
from trueup.diagnosing.checks.run import CheckedRun
from trueup.types.codes import CheckCode as Code
from trueup.types.reason import Reason, reason

_MAX_PLACES = 6
_EXPERT = re.compile(r"(^|\.)experts?(\.|_|$)", re.IGNORECASE)
_WORDS = {
    "value": "weights at the start of the step",
    "accumulated": "gradients after backward",
    "clipped": "gradients given to the optimizer",
    "param": "weights after the update",
}


_KINDS = {"weights": {"value", "param"}, "gradients": {"accumulated", "clipped"}}
_COLUMNS = ("name", "slot", "digest", "shape", "placement", "l2_norm")
"""others may be of one rank alone"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Difference:
    step: int
    name: str
    slot: str
    rank: int
    first: int
    """rank that it differs from"""
    shapes_differ: bool
    sharded: bool
    ratio: float | None
    """largest L2 norm over smallest"""


# In one piece: what is held by several ranks is told apart case by case.
def _judge(run: CheckedRun, judge: Judge) -> CheckOutcome:
    if run.world_size < 2:
        return judge.nothing(reason(Code.ONE_RANK))
    steps = {step: ranks for step, ranks in run.steps.items() if len(ranks) > 1}
    if not steps:
        return judge.undecided(reason(Code.ONE_RANK_CAPTURED))
    groups = run.groups("weights")
    if groups and all(len(group) < 2 for group in groups):
        return judge.nothing(reason(Code.ONE_REPLICA))
    experts = run.groups("experts")
    compared, apart, slots = 0, list[_Difference](), set[str]()
    for step, ranks in steps.items():
        for group in groups or [ranks]:
            members = [rank for rank in group if rank in ranks]
            if len(members) < 2:
                continue
            seen, found = _differences(run, step, members)
            own = [one for one in found if not (experts and experts != groups and _EXPERT.search(one.name))]
            compared += len(seen) - (len(found) - len(own))
            slots |= set(seen)
            apart += own
    numbers: Measured = {"ranks": len(run.ranks), "compared": compared, "differing": len(apart)}
    if not compared:
        return judge.undecided(reason(Code.NO_WEIGHT_DIGESTS), numbers=numbers)
    if not apart:
        slots_of = {word: slots & held for word, held in _KINDS.items()}
        kinds = [word for word, held in slots_of.items() if held]
        equal = reason(
            Code.REPLICAS_EQUAL, num=compared, ranks=len(run.ranks), groups=max(len(groups), 1), kinds=kinds
        )
        return judge.passed(equal, numbers=numbers)
    first = apart[0]
    places = tuple(_place(one) for one in apart[:_MAX_PLACES])
    why = _why_not_replicas(run, apart)
    if why is not None:
        cut = next((one for one in apart if one.shapes_differ), first)
        named = cut if why.code is Code.SHAPES_DIFFER else first
        open_ = reason(Code.REPLICA_DIFFERS, why, parameter=named.name)
        return judge.undecided(open_, places=places, numbers=numbers)
    num = len({one.name for one in apart if (one.slot, one.step) == (first.slot, first.step)})
    sentence = reason(Code.REPLICAS_DIFFER, slot=first.slot, step=first.step, parameter=first.name, num=num)
    return judge.failed(sentence, places=places, numbers=numbers, next=_advice(first))


def _differences(run: CheckedRun, step: int, ranks: list[int]) -> tuple[list[str], list[_Difference]]:
    """The slot of each that was compared, and what differs: weights first, then gradients, then updated
    weights."""
    frames = []
    for rank in ranks:
        view = run.view(step, rank)
        wanted = pl.col("phase").is_in(["param", "param_grad", "optimizer"]) & pl.col("slot").is_in([*_WORDS])
        rows = view.frame.filter(wanted & pl.col("digest").is_not_null())
        rows = rows.group_by("name", "slot", maintain_order=True).last()
        frames.append(rows.select(*_COLUMNS, rank=pl.lit(rank)))
    together = (
        pl.concat(frames, how="vertical")
        .group_by("name", "slot", maintain_order=True)
        .agg(
            pl.len(),
            pl.col("digest").n_unique().alias("digests"),
            pl.col("shape").n_unique().alias("shapes"),
            pl.col("placement").is_not_null().any().alias("sharded"),
            pl.col("l2_norm").max().alias("largest"),
            pl.col("l2_norm").min().alias("smallest"),
            pl.col("rank").filter(pl.col("digest") != pl.col("digest").first()).first().alias("rank"),
        )
    )
    together = together.filter(pl.col("len") == len(ranks))
    known = {row["fqn"] for row in run.facts(ranks[0]).get("parameters") or []}
    together = _reduced_only(together, known)
    apart = together.filter(pl.col("digests") > 1).to_dicts()
    order = list(_WORDS)
    apart.sort(key=lambda row: order.index(row["slot"]))
    return together["slot"].cast(pl.String).to_list(), [_difference(step, row, ranks[0]) for row in apart]


def _reduced_only(frame: pl.DataFrame, parameters: set[str]) -> pl.DataFrame:
    """Gradients before the optimizer's own count only where those are missing: some await their reduction.

    Nor do they where the optimizer updates tensors of its own, such as flat partitions: theirs are reduced.
    """
    clipped = frame.filter(pl.col("slot") == "clipped")["name"]
    updated = set(frame.filter(pl.col("slot") == "param")["name"])
    own = not updated <= parameters
    elsewhere = ~pl.col("name").is_in(sorted(updated & parameters)) if own else pl.lit(value=False)
    before = (pl.col("slot") == "accumulated") & (pl.col("name").is_in(clipped.implode()) | elsewhere)
    return frame.filter(~before & (pl.col("name").is_in(sorted(parameters)) if own else pl.lit(value=True)))


def _difference(step: int, row: dict[str, Any], first: int) -> _Difference:
    return _Difference(
        step=step,
        name=row["name"],
        slot=row["slot"],
        rank=row["rank"],
        first=first,
        shapes_differ=row["shapes"] > 1,
        sharded=row["sharded"],
        ratio=row["largest"] / row["smallest"] if row["smallest"] else None,
    )


def _why_not_replicas(run: CheckedRun, apart: list[_Difference]) -> Reason | None:
    """Why these need not be equal; None where they must."""
    if all(one.sharded for one in apart):
        return reason(Code.ARE_SHARDS)
    if any(one.shapes_differ for one in apart):
        return reason(Code.SHAPES_DIFFER)
    if run.groups("weights") or run.replicated:
        return None
    if all(_EXPERT.search(one.name) for one in apart):
        return reason(Code.OTHER_EXPERTS)
    first = min(run.steps)
    if any(one.slot == "value" and one.step == first for one in apart):
        return reason(Code.MAYBE_SHARDED)
    return None


def _place(one: _Difference) -> CheckedSite:
    return CheckedSite(
        site=f"{one.name} · {_WORDS[one.slot]}",
        step=one.step,
        rank=one.rank,
        detail=reason(Code.FROM_RANK_0, ratio=one.ratio, first=one.first),
    )


def _advice(first: _Difference) -> Reason:
    if first.slot in ("accumulated", "clipped"):
        return reason(Code.REDUCE)
    if first.slot == "value":
        return reason(Code.BROADCAST)
    return reason(Code.CHECK_OPTIMIZERS)


CHECK = FunctionCheck("replicas", "Replicas are equal across ranks", _judge)
