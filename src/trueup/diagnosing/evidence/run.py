"""Numbers of one run at one step: sizes, scales, settings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import numpy as np
import polars as pl

from trueup.diagnosing.evidence.facts import LossFacts, RunFacts
from trueup.diagnosing.loss_inputs import LossInputs
from trueup.diagnosing.step_calls import loss_arguments, loss_records, reduction_of, root_inputs
from trueup.store import StepView, TraceSource
from trueup.types.arrays import Ints
from trueup.types.trace import ScalarLine

MAX_RANKS = 64


def run_facts(source: TraceSource, step: int, rank: int, view: StepView | None) -> RunFacts:
    """What a trace says of its run at a step."""
    lines = source.scalars(rank)
    line = _line(lines, step)
    manifest = source.manifest
    ranks = source.steps().get(step, [])[:MAX_RANKS]
    of_ranks = {r: line if r == rank else _line(source.scalars(r), step) for r in ranks}
    tokens = [_number(entry.get("tokens")) for entry in of_ranks.values()]
    return RunFacts(
        world_size=_whole(manifest.get("world_size")),
        data_parallel_size=_whole(line.get("data_parallel_size")),
        microbatches=_whole(line.get("microbatches")),
        loss_scale=_number(line.get("loss_scale")),
        tokens=_number(line.get("tokens")),
        rank_tokens=tuple(t for t in tokens if t is not None),
        grad_norm=_number(line.get("grad_norm")),
        learning_rate=_numbers(line.get("learning_rate")),
        learning_rates={
            s: _numbers(entry.get("learning_rate"))
            for s, entry in _by_step(lines)
            if entry.get("learning_rate")
        },
        loss=_number(line.get("loss")),
        losses={} if view is None else _losses(view, _number(line.get("loss_scale")) or 1.0),
        reduction=None if view is None else reduction_of(loss_arguments(view)),
        skipped=line.get("skipped") if isinstance(line.get("skipped"), bool) else None,
        batch_digest=line.get("batch_digest"),
        batch_digests={s: str(e["batch_digest"]) for s, e in _by_step(lines) if e.get("batch_digest")},
        rank_batch_digests={r: str(e["batch_digest"]) for r, e in of_ranks.items() if e.get("batch_digest")},
        collectives={} if view is None else Counter(view.name[c] for c in view.calls_of_kind("collective")),
        deterministic=manifest.get("deterministic")
        if isinstance(manifest.get("deterministic"), bool)
        else None,
    )


def _losses(view: StepView, scale: float) -> dict[int, LossFacts]:
    """What each microbatch's loss was made of, where one loss of it is known, with its labels; ``scale``:
    what it was multiplied by before backward."""
    held = LossInputs.of(view)
    values = Counter(microbatch for microbatch, _ in loss_records(view, "value"))
    rows = {m: shape[0] for m, _, record in root_inputs(view) if len(shape := view.shape(record) or ()) == 2}
    found = {}
    for microbatch, record in loss_records(view, "value"):
        labels, value = held.labels.get(microbatch), view.value(record)
        if labels is None or value is None or value.size != 1 or values[microbatch] > 1:
            continue
        mask = held.masks.get(microbatch)
        counts = labels != held.ignore_index
        if mask is not None and mask.size == labels.size and np.isin(mask, (0.0, 1.0)).all():
            counts = counts & (mask.reshape(labels.shape) > 0)
        found[microbatch] = LossFacts(
            value=float(value.ravel()[0]),
            counted=int(counts.sum()),
            positions=labels.size,
            rows=rows.get(microbatch),
            steepest=_steepest(view, microbatch, labels, scale),
        )
    return found


def _steepest(view: StepView, microbatch: int, labels: Ints, scale: float) -> float | None:
    """From the gradient of the logits: the first that is sent back to a module and has as many rows as there
    are labels, and as many columns as words."""
    sent = view.frame_of("backward").filter(pl.col("microbatch") == microbatch, pl.col("minimum") < 0)
    of_rows = (pl.col("shape").list.len() > 1) & (
        pl.col("numel") == labels.size * pl.col("shape").list.last()
    )
    words = pl.col("shape").list.last() > int(labels.max(initial=0))
    least = sent.filter(pl.col("slot").cast(pl.String).str.starts_with("output"), of_rows, words)["minimum"]
    return -float(least[0]) / scale if len(least) and math.isfinite(least[0]) else None


def _line(lines: list[ScalarLine], step: int) -> ScalarLine:
    return next((line for line in lines if line.get("step") == step), ScalarLine())


def _by_step(lines: list[ScalarLine]) -> Iterable[tuple[int, ScalarLine]]:
    return ((line["step"], line) for line in lines if isinstance(line.get("step"), int))


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _numbers(value: object) -> tuple[float, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(float(v) for v in values if isinstance(v, (int, float)))


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
