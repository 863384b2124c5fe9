"""The report of ``trueup capture --estimate``."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from trueup.capture.estimating import Estimate, StepCost
from trueup.capture.launch.outcome import size
from trueup.reporting.document import (
    Column,
    Document,
    Fact,
    Look,
    Mark,
    Row,
    Section,
    Span,
    Table,
    Tone,
    fact,
    facts,
)
from trueup.reporting.formatting import count

_FITS, _TOO_LARGE = Mark("✓", "fits", Tone.GOOD), Mark("✗", "does not fit", Tone.BAD)


def estimate_report(found: Estimate) -> Document:
    """What the capture will take, and the smaller ones beside it."""
    fits = found.num_bytes <= found.room_bytes
    columns = (
        Column(title="smaller captures", grow=True, code=True),
        Column(title="on disk"),
        Column(title=""),
    )
    rows = tuple(
        Row(cells=(" ".join(one.words), size(one.num_bytes), _mark(found, one.num_bytes).words))
        for one in found.choices
    )
    halves = any("--scope" in word for one in found.choices for word in one.words)
    lead = "--scope is half of the layers: capture the rest in a second run." if halves else ""
    return Document(
        title="Estimate",
        mark=_FITS if fits else _TOO_LARGE,
        headline=f"{size(found.num_bytes)} on disk for {_scope(found)}, {_room(found)}",
        blocks=(
            facts(_facts(found)),
            Section(title="What to leave out", lead=lead, blocks=(Table(columns=columns, rows=rows),)),
        ),
    )


def _mark(found: Estimate, num_bytes: int) -> Mark:
    return _FITS if num_bytes <= found.room_bytes else _TOO_LARGE


def _room(found: Estimate) -> str:
    return (
        f"{size(found.room_bytes)} {'free' if found.options.max_bytes is None else 'allowed by --max-bytes'}"
    )


def _scope(found: Estimate) -> str:
    steps = found.num_steps
    named = "the first step and each later one" if steps is None else count(steps, "step")
    return f"{named} of {count(len(found.first), 'rank')}"


def _facts(found: Estimate) -> Iterable[Fact | None]:
    later = found.later.values()
    yield fact("options", f"level {found.options.level.value}, task {found.options.task.value}")
    yield fact(
        "tensors a step", *_by_rank(found, lambda c: f"{c.num_tensors:,} in {c.num_records:,} records")
    )
    yield fact("first step", *_by_rank(found, _on_disk, first=True))
    if found.num_steps != 1:
        yield fact("each later step", *_by_rank(found, _on_disk))
    yield fact("host memory", f"at most {size(max(cost.memory_bytes for cost in later))} a rank")
    yield fact("seconds a step", _seconds(found))
    if found.advice is not None:
        yield fact("advice", ("add ", Span(" ".join(found.advice.words), Look.CODE)), tone=Tone.WARN)


def _by_rank(found: Estimate, words: Callable[[StepCost], str], *, first: bool = False) -> list[str]:
    costs = found.first if first else found.later
    lines = {rank: words(cost) for rank, cost in costs.items()}
    if len(set(lines.values())) == 1:
        return [next(iter(lines.values())) + (" a rank" if len(lines) > 1 else "")]
    return [f"rank {rank}: {line}" for rank, line in lines.items()]


def _on_disk(cost: StepCost) -> str:
    parts = f"values {size(cost.value_bytes)}, tables {size(cost.table_bytes)}"
    return f"{size(cost.num_bytes)} ({parts})"


def _seconds(found: Estimate) -> str:
    disk = f"{found.write_seconds:.1f} to write values at {size(found.disk_bytes_a_second)}/s"
    if found.seconds_on is None or found.seconds_off is None:
        return f"not known of so short a run, or one on the meta device; {disk}"
    return f"{found.seconds_on:.2f} with capture, {found.seconds_off:.2f} without; up to {disk}"
