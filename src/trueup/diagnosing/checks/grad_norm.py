"""The gradient norm the program reports, against the one its gradients have."""

from __future__ import annotations

import math
from typing import Any

import polars as pl

from trueup.diagnosing.checks.outcome import CheckOutcome, FunctionCheck, Judge
from trueup.diagnosing.checks.run import CheckedRun
from trueup.numerics.dtypes import DTYPES

_SLACK = 2e-3
"""relative; the framework's own sums in float32 are off by up to 4e-4 at 2**24 elements"""


def _judge(run: CheckedRun, judge: Judge) -> CheckOutcome:
    if _elsewhere(run):
        return judge.nothing(
            "gradients move to master weights before they are clipped: the program's norm is theirs"
        )
    compared: list[tuple[int, int, float, float, float]] = []
    for step, ranks in run.steps.items():
        for rank in ranks:
            line = run.scalars(rank).get(step, {})
            reported = _reported(line)
            norms = _norms(run, step, rank)
            if reported is None or norms is None or not math.isfinite(reported):
                continue
            two, largest, slack = norms
            scale = line.get("loss_scale") or 1.0
            if abs(reported * scale - largest) <= slack * largest:
                two = largest  # the program clips by the infinity norm
            compared.append((step, rank, reported, two / scale, slack))
    if not compared:
        return _without(run, judge)
    worst = max(compared, key=lambda one: abs(one[2] - one[3]) / max(one[3], 1e-30) / one[4])
    step, rank, reported, own, slack = worst
    numbers = {"step": step, "rank": rank, "reported": reported, "recomputed": own, "allowed": slack}
    if abs(reported - own) <= slack * max(own, 1e-30):
        sentence = (
            f"{reported:.6g} reported, {own:.6g} recomputed, at the largest of {len(compared)} differences"
        )
        return judge.passed(sentence, numbers=numbers)
    several = _several(run)
    factor = reported / own if own else math.inf
    sentence = (
        f"step {step}, rank {rank}: {reported:.6g} reported, {own:.6g} recomputed from the gradients, "
        f"a factor of {factor:.4g}"
    )
    if several is not None:
        return judge.undecided(f"{sentence}; {several}", numbers=numbers)
    causes = _causes(run, step, rank, factor)
    return judge.failed(sentence, numbers=numbers, notes=causes)


def _elsewhere(run: CheckedRun) -> bool:
    """Whether the optimizer receives gradients of tensors that are no parameters of the model."""
    for step, ranks in run.steps.items():
        names = set(run.view(step, ranks[0]).of("param_grad", "clipped")["name"])
        known = {p["fqn"] for p in run.facts(ranks[0]).get("parameters") or []}
        if names and known and not names <= known:
            return True
    return False


def _reported(line: dict[str, Any]) -> float | None:
    saved = line.get("saved") or {}
    value = line.get("grad_norm", next((v for k, v in saved.items() if "grad_norm" in k), None))
    return float(value) if isinstance(value, (int, float)) else None


def _norms(run: CheckedRun, step: int, rank: int) -> tuple[float, float, float] | None:
    """L2 norm and largest magnitude over what was accumulated, and the relative difference allowed."""
    frame = run.view(step, rank).of("param_grad", "accumulated")
    if not frame.height or frame["placement"].is_not_null().any():
        return None
    last = frame.group_by("call", maintain_order=True).last()
    if last.select(pl.sum_horizontal("num_nan", "num_posinf", "num_neginf").sum()).item():
        return None
    squares = float(last.select((pl.col("l2_norm") ** 2).sum()).item())
    largest = last.select(pl.max_horizontal(pl.col("maximum").abs(), pl.col("minimum").abs()).max()).item()
    eps = max((DTYPES[d].eps for d in set(last["dtype"]) if d in DTYPES), default=0.0)
    return math.sqrt(squares), float(largest), max(_SLACK, 16 * eps)


def _without(run: CheckedRun, judge: Judge) -> CheckOutcome:
    lines = [line for rank in run.ranks for line in run.scalars(rank).values()]
    if not any(_reported(line) is not None for line in lines):
        return judge.nothing("the program reports no gradient norm (it calls no clip_grad_norm_)")
    return judge.undecided(
        "the gradients that the reported norm was made of were not captured, or are shards"
    )


def _several(run: CheckedRun) -> str | None:
    """Why the reported norm may be another one than that of all gradients of this rank."""
    facts = run.facts(run.ranks[0])
    if len(facts.get("optimizers") or []) > 1:
        return "there are several optimizers, and the norm may be that of one"
    if len(run.ranks) > 1 and not run.replicated:
        return "ranks may hold shards, whose norms add up"
    return None


def _causes(run: CheckedRun, step: int, rank: int, factor: float) -> tuple[str, ...]:
    line = run.scalars(rank).get(step, {})
    microbatches, replicas = line.get("microbatches") or 1, len(run.ranks)
    known = [
        (line.get("loss_scale"), "the loss scale: gradients are clipped without scaler.unscale_() before"),
        (math.sqrt(replicas), f"the square root of {replicas} ranks: replicas are counted several times"),
        (microbatches, f"the {microbatches} microbatches: one of two is not divided by their number"),
        (1 / microbatches, f"one over the {microbatches} microbatches"),
    ]
    return tuple(why for value, why in known if value and value != 1 and abs(factor / value - 1) < 0.01)


CHECK = FunctionCheck("grad_norm", "The reported gradient norm is that of the gradients", _judge)
