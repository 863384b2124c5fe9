"""Numbers of one run at one step: sizes, scales, settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from trueup.diagnosing.evidence.facts import RunFacts
from trueup.store import StepView, TraceSource
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
        skipped=line.get("skipped") if isinstance(line.get("skipped"), bool) else None,
        batch_digest=line.get("batch_digest"),
        batch_digests={s: str(e["batch_digest"]) for s, e in _by_step(lines) if e.get("batch_digest")},
        rank_batch_digests={r: str(e["batch_digest"]) for r, e in of_ranks.items() if e.get("batch_digest")},
        collectives={} if view is None else Counter(view.name[c] for c in view.calls_of_kind("collective")),
        deterministic=manifest.get("deterministic")
        if isinstance(manifest.get("deterministic"), bool)
        else None,
    )


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
