"""A trace of several ranks beside a dump that has distributed weights whole, as a program's own tool sees
them."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import polars as pl

from trueup.merging.ranks import RankStep
from trueup.merging.step import RecordKey
from trueup.merging.summary import STATISTICS, Summary, joined
from trueup.store import StepTables, StepView, StoredTensor, TraceSource, step_view
from trueup.types.layout import Layout
from trueup.types.trace import Manifest, RankFacts, ScalarLine, SummaryRow

Shape = tuple[int, ...]


class WholeWeights:
    """The trace, with the statistics of whole weights in the place of a rank's parts; nothing else is
    changed.

    The parts of all ranks add up to counts, extremes, mean and norm of the whole; digests, sketches and
    values are of parts, and are left out. A hook on a whole weight sees what one backward gave, before it is
    reduced and added up: that stands for the gradient after backward, of which a rank has only its part.
    """

    def __init__(self, source: TraceSource) -> None:
        self._source, self.path, self.manifest = source, source.path, source.manifest
        self._held: dict[int, dict[RecordKey, Summary]] = {}

    path: Path
    manifest: Manifest

    def steps(self) -> dict[int, list[int]]:
        """As they are."""
        return self._source.steps()

    def read(self, step: int, rank: int) -> StepTables:
        """The tables of one step of one rank, its weights whole."""
        tables = self._source.read(step, rank)
        if step not in self._held:
            self._held = {step: _wholes(self._source, step)}
        own = _keys(_rank_step(self._source, step, rank))
        changed = {row: self._held[step][key] for row, (key, _) in own.items() if key in self._held[step]}
        if not changed:
            return tables
        first = tables.summaries.height
        numbers = tables.records["summary"].to_list()
        added = tables.summaries[[numbers[row] for row in changed]].with_columns(
            pl.Series(
                "summary", range(first, first + len(changed)), dtype=tables.summaries.schema["summary"]
            ),
            pl.Series("shape", [list(one.shape) for one in changed.values()], dtype=pl.List(pl.Int64)),
            pl.Series("numel", [one.numel for one in changed.values()], dtype=pl.Int64),
            *(
                pl.Series(
                    name,
                    [getattr(one, name) for one in changed.values()],
                    dtype=tables.summaries.schema[name],
                )
                for name in STATISTICS
            ),
            *(pl.lit(None).cast(tables.summaries.schema[name]).alias(name) for name in _OF_PARTS),
        )
        for at, row in enumerate(changed):
            numbers[row] = first + at
        for row, number in _as_hooks_see_them(tables, changed).items():
            numbers[row] = number
        return replace(
            tables,
            records=tables.records.with_columns(
                pl.Series("summary", numbers, dtype=tables.records.schema["summary"])
            ),
            summaries=pl.concat([tables.summaries, added.select(tables.summaries.columns)]),
        )

    def tensor(self, step: int, rank: int, summary: SummaryRow) -> StoredTensor | None:
        """As it is."""
        return self._source.tensor(step, rank, summary)

    def scalars(self, rank: int) -> list[ScalarLine]:
        """As they are."""
        return self._source.scalars(rank)

    def rank_facts(self, rank: int) -> RankFacts:
        """As they are."""
        return self._source.rank_facts(rank)

    def missing(self, rank: int) -> list[str]:
        """As it is."""
        return self._source.missing(rank)


def _as_hooks_see_them(tables: StepTables, weights: Collection[int]) -> dict[int, int | None]:
    """Record of a distributed weight's gradient after a backward -> summary of what that backward gave; None
    where there are not as many of both."""
    slots, calls = tables.records["slot"].cast(pl.String).to_list(), tables.records["call"].to_list()
    numbers = tables.records["summary"].to_list()
    of_weights = {calls[row] for row in weights}
    held: dict[str, dict[int, list[int]]] = {"local": {}, "accumulated": {}}
    for row, (slot, call) in enumerate(zip(slots, calls, strict=True)):
        if slot in held and call in of_weights:
            held[slot].setdefault(call, []).append(row)
    found: dict[int, int | None] = {}
    for call, rows in held["accumulated"].items():
        local = held["local"].get(call, [])
        same = len(local) == len(rows)
        found |= {row: numbers[local[at]] if same else None for at, row in enumerate(rows)}
    return found


_OF_PARTS = ("placement", "digest", "crc32", "sketch", "chunk", "tensor")


def with_whole_weights(source: TraceSource, other: TraceSource) -> TraceSource:
    """``source`` with whole weights, where its ranks have parts of weights that ``other`` has whole."""
    ranks = next(iter(source.steps().values()), [])
    step = next(iter(source.steps()), None)
    if step is None or ranks != list(range(len(ranks))):
        return source
    parts = _keys(_rank_step(source, step, 0))
    other_shapes = _shapes(other)
    whole = sum(shape == other_shapes.get(key.call.name) for key, shape in parts.values())
    return (
        WholeWeights(source)
        if 2 * whole > sum(key.call.name in other_shapes for key, _ in parts.values())
        else source
    )


def _rank_step(source: TraceSource, step: int, rank: int) -> RankStep:
    layout = Layout(mesh={"world": len(source.steps()[step])})
    return RankStep(StepView(source, source.read(step, rank)), layout, 1)


def _keys(rank: RankStep) -> dict[int, tuple[RecordKey, Shape]]:
    """Records of parts of distributed weights, with the shape of the whole."""
    view, found = rank.view, {}
    for row, (number, phase, slot) in enumerate(zip(view.record_call, view.phase, view.slot, strict=True)):
        call, summary = rank.calls[number], view.content[row]
        own = None if summary is None or call is None else rank.own(number, summary)
        if call is not None and own is not None and view.kind[number] == "parameter" and not own.flat:
            found[row] = RecordKey(call.key, phase, slot), own.shape
    return found


def _wholes(source: TraceSource, step: int) -> dict[RecordKey, Summary]:
    parts: dict[RecordKey, dict[Shape, Summary]] = {}
    shapes: dict[RecordKey, Shape] = {}
    for number in source.steps()[step]:
        rank = _rank_step(source, step, number)
        for row, (key, shape) in _keys(rank).items():
            summary = rank.view.content[row]
            own = None if summary is None else rank.own(rank.view.record_call[row], summary)
            if own is not None and summary is not None and not own.partial:
                parts.setdefault(key, {})[own.offset] = rank.summary(summary)[0]
                shapes[key] = shape
    whole = {key: joined(list(some.values()), shapes[key], None, 0) for key, some in parts.items()}
    return {key: one for key, one in whole.items() if one.numel == math.prod(one.shape)}


def _shapes(source: TraceSource) -> dict[str, Shape]:
    step = next(iter(source.steps()), None)
    if step is None:
        return {}
    view = step_view(source, step, source.steps()[step][0])
    named = {name: view.parameter(name, "param", "value") for name in view.parameters}
    return {name: tuple(view.shape(row) or ()) for name, row in named.items() if row is not None}
