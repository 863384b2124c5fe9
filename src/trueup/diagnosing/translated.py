"""A reference of another implementation under the target's names: its weights put together as the target has
them, so that code that asks for a parameter's records need not know of two implementations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from trueup.errors import ConfigError
from trueup.matching.bridge import Bridge
from trueup.numerics._native import summarise_array
from trueup.numerics.summary import HAS_DIGEST, HAS_SKETCH, HAS_STATISTICS, SUMMARY_DTYPE
from trueup.store import StepView, TraceSource, step_view
from trueup.store.view import Slot
from trueup.types.arrays import Array, Floats
from trueup.types.trace import ParameterFacts, RankFacts, SummaryRow
from trueup.weights.plan import PlannedWeight, made

_COMPUTED = set(SUMMARY_DTYPE.names or ()) - {"sketch"}


def translated_facts(facts: RankFacts, bridge: Bridge) -> RankFacts:
    """The facts of a rank with its ``parameters`` under the target's names; a fused one has its first
    part's."""
    own = {row["fqn"]: row for row in facts.get("parameters") or ()}
    names = {e.pieces[0].source: e.target for e in bridge.weights.entries if len(e.pieces) == 1}
    rows: list[ParameterFacts] = []
    for entry in bridge.weights.entries:
        row = own.get(entry.pieces[0].source)
        if row is not None:
            tied = row.get("tied_to")
            rows.append({**row, "fqn": entry.target, "tied_to": tied and names.get(tied, tied)})
    return {**facts, "parameters": rows}


def reference_book(source: TraceSource, step: int, rank: int, bridge: Bridge | None) -> StepView:
    """A step of a run, in the target's terms where it is of another implementation."""
    return step_view(source, step, rank) if bridge is None else TranslatedView(source, step, rank, bridge)


class TranslatedView(StepView):
    """Records of the reference's step, its parameters by the target's names.

    A parameter that is the reference's own as it stands keeps its records. Of one that is put together, a
    record is made when it is asked for: from the parts' values where those were stored, else its norm alone.
    """

    def __init__(self, source: TraceSource, step: int, rank: int, bridge: Bridge) -> None:
        super().__init__(source, source.read(step, rank))
        self._bridge = bridge
        self._parts: dict[int, tuple[PlannedWeight, dict[str, int]]] = {}

    def _parameter_records(self) -> dict[str, dict[Slot, list[int]]]:
        own = super()._parameter_records()
        found = {}
        for entry in self._bridge.weights.entries:
            sources = list(dict.fromkeys(piece.source for piece in entry.pieces))
            if all(source in own for source in sources):
                plain = len(entry.pieces) == 1 and not (entry.pieces[0].steps or entry.steps or entry.padding)
                held = {source: own[source] for source in sources}
                found[entry.target] = held[sources[0]] if plain else self._joined(entry, held)
        return found

    def _joined(
        self, entry: PlannedWeight, held: Mapping[str, Mapping[tuple[str, str], list[int]]]
    ) -> dict[tuple[str, str], list[int]]:
        first = next(iter(held.values()))
        out: dict[tuple[str, str], list[int]] = {}
        for place, records in first.items():
            parts = [held[source].get(place, []) for source in held]
            if len({len(part) for part in parts}) == 1:
                out[place] = [
                    self._made_of(entry, dict(zip(held, together, strict=True)))
                    for together in zip(*parts, strict=True)
                ]
            else:
                out[place] = records[:0]
        return {place: records for place, records in out.items() if records}

    def _made_of(self, entry: PlannedWeight, parts: dict[str, int]) -> int:
        """A record of its own beside those of the tables; of a number that belongs to the weight as a whole
        (a step count) the first part's."""
        one = next(iter(parts.values()))
        shapes = {source: self.shape(record) or () for source, record in parts.items()}
        if any(shape != tuple(self._bridge.shapes[source]) for source, shape in shapes.items()):
            return one
        record = len(self.record_call)
        columns: tuple[list[Any], ...] = (
            self.record_call,
            self.phase,
            self.slot,
            self.record_microbatch,
        )
        for column in columns:
            column.append(column[one])
        self.content.append(None)
        self._parts[record] = entry, parts
        return record

    def summary(self, record: int | None) -> SummaryRow | None:
        """The row of summaries of a record."""
        if record not in self._parts:
            return super().summary(record)
        assert record is not None
        entry, parts = self._parts[record]
        rows: list[Mapping[str, Any]] = [
            super(TranslatedView, self).summary(part) or {} for part in parts.values()
        ]
        dtypes = {row.get("dtype") for row in rows}
        raw = self.raw(record)
        whole: dict[str, object] = dict.fromkeys(rows[0])
        if raw is not None:
            found = summarise_array(np.ascontiguousarray(raw[1]), HAS_STATISTICS | HAS_DIGEST, raw[0])
            whole |= {name: found[name].item() for name in whole if name in _COMPUTED}
        elif all(row.get("l2_norm") is not None for row in rows):
            whole |= {"l2_norm": float(np.sqrt(sum(row["l2_norm"] ** 2 for row in rows)))}
            whole |= {
                "minimum": min(row["minimum"] for row in rows),
                "maximum": max(r["maximum"] for r in rows),
            }
        shape = list(self._bridge.target_shapes.get(entry.target, ()))
        whole |= {"dtype": dtypes.pop() if len(dtypes) == 1 else None, "shape": shape, "sketch": None}
        return cast("SummaryRow", whole)

    def sketch(self, record: int | None) -> Floats | None:
        """Those of the parts one after the other: comparable with others of this book alone."""
        if record not in self._parts:
            return super().sketch(record)
        assert record is not None
        held = [super(TranslatedView, self).sketch(part) for part in self._parts[record][1].values()]
        known = [one for one in held if one is not None]
        return np.concatenate(known) if len(known) == len(held) else None

    def shared_sketch(self, record: int | None) -> Floats | None:
        """That of the whole, from stored values; None without."""
        if record not in self._parts:
            return super().sketch(record)
        raw = self.raw(record)
        if raw is None:
            return None
        found = summarise_array(np.ascontiguousarray(raw[1]), HAS_SKETCH, raw[0])
        return np.asarray(found["sketch"], np.float64)

    def _cell(self, record: int | None, column: str) -> Any:
        if record not in self._parts:
            return super()._cell(record, column)
        return (self.summary(record) or {}).get(column)

    def value(self, record: int | None) -> Floats | None:
        """Its values as float64, None where they were not stored."""
        if record not in self._parts:
            return super().value(record)
        assert record is not None
        return self._float64(record)

    def raw(self, record: int | None) -> tuple[str, Array] | None:
        """Dtype and elements as they were stored, put together."""
        if record not in self._parts:
            return super().raw(record)
        assert record is not None
        entry, parts = self._parts[record]
        held = {source: super(TranslatedView, self).raw(part) for source, part in parts.items()}
        if any(one is None for one in held.values()):
            return None
        whole = {source: one for source, one in held.items() if one is not None}
        if len({dtype for dtype, _ in whole.values()}) != 1:
            return None
        try:
            return next(iter(whole.values()))[0], made(entry, lambda source: whole[source][1])
        except ConfigError:
            return None
