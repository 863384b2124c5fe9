"""The gradient norm the program reports, against the one its gradients have."""

from __future__ import annotations

import math

import polars as pl

from trueup.diagnosing.checks.outcome import CheckOutcome, FunctionCheck, Judge, Measured
from trueup.diagnosing.checks.run import CheckedRun
from trueup.numerics.dtypes import DTYPES
from trueup.types.codes import CheckCode as Code
from trueup.types.reason import Reason, reason
from trueup.types.trace import ScalarLine

_SLACK = 2e-3
"""relative; the framework's own sums in float32 are off by up to 4e-4 at 2**24 elements"""


def _judge(run: CheckedRun, judge: Judge) -> CheckOutcome:
    lines = [line for rank in run.ranks for line in run.scalars(rank).values()]
    if not any(_reported(line) is not None for line in lines):
        return judge.nothing(reason(Code.NO_NORM))
    if _elsewhere(run):
        return judge.nothing(reason(Code.NORM_OF_MASTERS))
    compared: list[tuple[int, int, float, float, float]] = []
    for step, ranks in run.steps.items():
        for rank in ranks:
            line = run.line(step, rank)
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
    step, rank, reported, recomputed, slack = worst
    both = {"reported": reported, "recomputed": recomputed}
    numbers: Measured = {"step": step, "rank": rank, **both, "allowed": slack}
    if abs(reported - recomputed) <= slack * max(recomputed, 1e-30):
        return judge.passed(reason(Code.NORM_AGREES, **both, num=len(compared)), numbers=numbers)
    factor = reported / recomputed if recomputed else math.inf
    sentence = reason(Code.NORM_DIFFERS, step=step, rank=rank, **both, factor=factor)
    limit = _limit(run)
    if limit is not None:
        return judge.undecided(reason(Code.ALSO, sentence, limit), numbers=numbers)
    causes = _causes(run, step, rank, factor)
    return judge.failed(sentence, numbers=numbers, notes=causes)


def _elsewhere(run: CheckedRun) -> bool:
    """Whether the optimizer receives gradients of tensors that are no parameters of the model."""
    for step, ranks in run.steps.items():
        names = set(run.view(step, ranks[0]).frame_of("param_grad", "clipped")["name"])
        known = {p["fqn"] for p in run.facts(ranks[0]).get("parameters") or []}
        if names and known and not names <= known:
            return True
    return False


def _reported(line: ScalarLine) -> float | None:
    saved = line.get("saved") or {}
    value: object = line.get("grad_norm", next((v for k, v in saved.items() if "grad_norm" in k), None))
    return float(value) if isinstance(value, (int, float)) else None


def _norms(run: CheckedRun, step: int, rank: int) -> tuple[float, float, float] | None:
    """L2 norm and largest magnitude over what was accumulated, and the relative difference allowed."""
    frame = _accumulated(run, step, rank)
    if frame is None:
        return None
    last = frame.group_by("call", maintain_order=True).last()
    if last.select(pl.sum_horizontal("num_nan", "num_posinf", "num_neginf").sum()).item():
        return None
    squares = float(last.select((pl.col("l2_norm") ** 2).sum()).item())
    largest = last.select(pl.max_horizontal(pl.col("maximum").abs(), pl.col("minimum").abs()).max()).item()
    eps = max((DTYPES[d].eps for d in set(last["dtype"]) if d in DTYPES), default=0.0)
    return math.sqrt(squares), float(largest), max(_SLACK, 16 * eps)


def _accumulated(run: CheckedRun, step: int, rank: int) -> pl.DataFrame | None:
    """Whole gradients of a step; None where there are none, or shards."""
    frame = run.view(step, rank).frame_of("param_grad", "accumulated")
    return frame if frame.height and not frame["placement"].is_not_null().any() else None


def _without(run: CheckedRun, judge: Judge) -> CheckOutcome:
    for step, ranks in run.steps.items():
        for rank in ranks:
            reported, frame = _reported(run.line(step, rank)), _accumulated(run, step, rank)
            if reported is not None and frame is not None:
                return judge.undecided(reason(Code.NORM_NOT_FINITE))
    return judge.undecided(reason(Code.NORM_NOT_CAPTURED))


def _limit(run: CheckedRun) -> Reason | None:
    """Why the reported norm may be another one than that of all gradients of this rank."""
    facts = run.facts(run.ranks[0])
    if len(facts.get("optimizers") or []) > 1:
        return reason(Code.SEVERAL_OPTIMIZERS)
    if len(run.ranks) > 1 and not run.replicated:
        return reason(Code.MAYBE_SHARDS)
    return None


def _num_replicas(run: CheckedRun, rank: int) -> int:
    """Ranks that hold the same weights, captured or not: of the wrapper's group, else of the run."""
    group = (run.facts(rank).get("groups") or {}).get("weights")
    return len(group) if group else run.world_size


def _causes(run: CheckedRun, step: int, rank: int, factor: float) -> tuple[Reason, ...]:
    line = run.line(step, rank)
    microbatches, replicas = line.get("microbatches") or 1, _num_replicas(run, rank)
    known = [
        (line.get("loss_scale"), reason(Code.NOT_UNSCALED)),
        (math.sqrt(replicas), reason(Code.REPLICAS_COUNTED, num=replicas)),
        (microbatches, reason(Code.MICROBATCHES, num=microbatches)),
        (1 / microbatches, reason(Code.ONE_OVER_MICROBATCHES, num=microbatches)),
    ]
    return tuple(why for value, why in known if value and value != 1 and abs(factor / value - 1) < 0.01)


CHECK = FunctionCheck("grad_norm", "The reported gradient norm is that of the gradients", _judge)
