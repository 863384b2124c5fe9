"""The layout of every pair of activations whose values lie in another order on the other side.

From the shapes alone where only one way leads from one to the other. Else stored values decide, and one
decision holds for all places of a kind: the way under which the two sides are nearest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from trueup.comparing.pairing import StepPair
from trueup.comparing.thresholds import LAYOUT_CERTAIN, LAYOUT_CLEAR, LAYOUT_CLOSE
from trueup.errors import ConfigError
from trueup.matching import StepMatch
from trueup.matching.across.sites import site_of
from trueup.matching.layouts import UNORDERED, CommonForm, Shape, rotary_turns, ways
from trueup.matching.names import like
from trueup.matching.weights import InferredWeights
from trueup.matching.weights.table import Values, values_of
from trueup.numerics.dtypes import DTYPES
from trueup.store import StepTables, TraceSource
from trueup.types.trace import SummaryRow

SAMPLES = 3
"""pairs of one kind whose values are read"""

Key = tuple[Shape, Shape, str, str]


@dataclass(slots=True)
class LayoutBook:
    """What was decided so far in a comparison; later steps keep to it."""

    decided: dict[Key, CommonForm] = field(default_factory=dict)
    unordered: bool = False
    """some weights are known to hold the same values in an order that is not known"""

    def applied(
        self,
        match: StepMatch,
        tables: tuple[StepTables, StepTables],
        traces: tuple[TraceSource, TraceSource],
        pair: StepPair,
    ) -> StepMatch:
        """The match with a layout at every pair that needs one."""
        chosen = _with_weight_layouts(match)
        match = replace(match, records=replace(match.records, layouts=tuple(chosen)))
        shapes = _splits(match)
        weights = match.bridge.weights if match.bridge is not None else InferredWeights()
        turns = rotary_turns(weights.entries)
        self.unordered = len({e.target for e in weights.entries}) < sum(len(a.targets) for a in weights.atoms)
        reordered = _reordered(weights)
        reader = _Reader(match, tables, traces, pair)
        for key, places in _by_key(match, tables).items():
            layout = self.decided.get(key)
            if layout is None:
                moved = _owner(match, places[0]) in reordered
                layout = self._decide(key, places, shapes, turns, reader, moved=moved)
            if layout is not None:
                self.decided[key] = layout
                for at in places:
                    chosen[at] = layout if layout.target or not layout.known else None
        return replace(match, records=replace(match.records, layouts=tuple(chosen)))

    def transposed(
        self,
        match: StepMatch,
        tables: tuple[StepTables, StepTables],
        traces: tuple[TraceSource, TraceSource],
        pair: StepPair,
    ) -> StepMatch:
        """The match with a layout where one program has the same dims in another order: the one that fits, or
        that values choose."""
        chosen = list(match.records.layouts) or [None] * len(match.records.target)
        match = replace(match, records=replace(match.records, layouts=tuple(chosen)))
        reader = _Reader(match, tables, traces, pair)
        for key, places in _by_key(match, tables).items():
            target, reference = key[0], key[1]
            if target == reference or sorted(target) != sorted(reference):
                continue
            samples = [s for at in places if (s := reader.values(at)) is not None][:SAMPLES]
            options = ways(target, reference, [], [])
            layout = self.decided.get(key) or (_nearest(options, samples) if samples else None)
            layout = layout or (options[0] if len(options) == 1 else None)
            if layout is not None:
                self.decided[key] = layout
                for at in places:
                    chosen[at] = layout
        return replace(match, records=replace(match.records, layouts=tuple(chosen)))

    def _decide(
        self,
        key: Key,
        places: Sequence[int],
        shapes: Sequence[Shape],
        turns: Sequence[tuple[int, int]],
        reader: _Reader,
        *,
        moved: bool,
    ) -> CommonForm | None:
        """``moved``: the channels come from a weight whose rows lie in another order on the other side."""
        target, reference = key[0], key[1]
        finer = _with_pairs(reference, turns) + _with_pairs(target, turns)
        options = ways(target, reference, shapes, finer)
        samples = [s for at in places if (s := reader.values(at)) is not None][:SAMPLES]
        if samples:
            near = _nearest(options, samples)
            return near or (_unordered() if moved else self._unclear(target, reference, options))
        if target != reference and len(options) == 1:
            return options[0]
        suspect = bool(finer) or self.unordered or moved
        return _unordered() if target != reference or (suspect and reader.apart(places)) else None

    def _unclear(self, target: Shape, reference: Shape, options: Sequence[CommonForm]) -> CommonForm | None:
        """Where a fault leaves no way near: that of other places of these shapes, or the only one."""
        if target == reference:
            return None
        known = (one for key, one in self.decided.items() if key[:2] == (target, reference) and one.known)
        return next(known, options[0] if len(options) == 1 else _unordered())


def _reordered(weights: InferredWeights) -> set[str]:
    """Target modules whose own weight is all of one of the reference's, its rows in another order."""
    return {
        entry.target.rpartition(".")[0]
        for entry in weights.entries
        if len(entry.pieces) > 1 and len({piece.source for piece in entry.pieces}) == 1
    }


def _owner(match: StepMatch, at: int) -> str:
    """The module around a pair of records."""
    side, words = match.target, match.words
    call = int(side.record_call[match.records.target[at]])
    while call >= 0 and words.kind[side.kind[call]] != "module":
        call = int(side.parent[call])
    return words.name[side.name[call]] if call >= 0 else ""


def _with_weight_layouts(match: StepMatch) -> list[CommonForm | None]:
    """Layouts with those of the weights wherever a weight, or the gradient there, enters a call."""
    records, chosen = match.records, list(match.records.layouts)
    target, reference = match.target, match.reference
    pairs = list(zip(records.target.tolist(), records.reference.tolist(), strict=True))
    of_contents: dict[tuple[int, int], CommonForm] = {}
    for (t, r), layout in zip(pairs, chosen, strict=True):
        if layout is not None and match.words.phase[target.record_phase[t]] == "param":
            of_contents[int(target.record_summary[t]), int(reference.record_summary[r])] = layout
    of_place: dict[tuple[int, int], CommonForm] = {}
    for t, r in pairs if of_contents else []:
        held = int(target.record_summary[t]), int(reference.record_summary[r])
        if held in of_contents:
            of_place[int(target.record_call[t]), int(target.record_slot[t])] = of_contents[held]
    for at, (t, _) in enumerate(pairs if of_contents else []):
        if chosen[at] is None:
            chosen[at] = of_place.get((int(target.record_call[t]), int(target.record_slot[t])))
    return chosen


def _unordered() -> CommonForm:
    return CommonForm(label=UNORDERED, known=False)


def _by_key(match: StepMatch, tables: tuple[StepTables, StepTables]) -> dict[Key, list[int]]:
    """Pairs of floating tensors without a layout that are not the same bits, by shapes and kind of place."""
    records, words = match.records, match.words
    digests = [t.summaries["digest"].to_list() for t in tables]
    out: dict[Key, list[int]] = defaultdict(list)
    names: dict[int, str] = {}
    weights = {words.kind.index("parameter")} if "parameter" in words.kind else set()
    for at, (t, r) in enumerate(zip(records.target.tolist(), records.reference.tolist(), strict=True)):
        a, b = int(match.target.record_summary[t]), int(match.reference.record_summary[r])
        call = int(match.target.record_call[t])
        if a < 0 or b < 0 or records.layouts[at] is not None or int(match.target.kind[call]) in weights:
            continue
        shapes = words.shape[match.target.summary_shape[a]], words.shape[match.reference.summary_shape[b]]
        same_bits = digests[0][a] is not None and digests[0][a] == digests[1][b]
        if max(len(shapes[0]), len(shapes[1])) < 2 or (shapes[0] == shapes[1] and same_bits):
            continue
        if call not in names:
            names[call] = like(site_of(match.target, words, call))
        slot = f"{words.phase[match.target.record_phase[t]]} {words.slot[match.target.record_slot[t]]}"
        out[shapes[0], shapes[1], names[call], slot].append(at)
    return out


def _splits(match: StepMatch) -> list[Shape]:
    """Shapes seen in the step that have many dimensions: how merged ones may be split."""
    seen = {shape for shape in match.words.shape if 3 <= len(shape) <= 5}
    return sorted(seen, key=lambda shape: (-len([d for d in shape if d != 1]), shape))


def _with_pairs(shape: Shape, turns: Sequence[tuple[int, int]]) -> list[Shape]:
    """The shape with the channels of each head as two dimensions."""
    out: list[Shape] = []
    for rows, columns in turns:
        size = rows * columns
        if shape and shape[-1] % size == 0:
            heads = shape[-1] // size
            out.append((*shape[:-1], *([heads] if heads > 1 else []), rows, columns))
    return out


def _nearest(options: Sequence[CommonForm], samples: Sequence[tuple[Values, Values]]) -> CommonForm | None:
    errors = []
    for layout in options:
        errors.append(min(_error(layout, *sample) for sample in samples))
        if errors[-1] <= LAYOUT_CERTAIN:
            return layout
    best = int(np.argmin(errors))
    others = [e for k, e in enumerate(errors) if k != best]
    clear = errors[best] <= LAYOUT_CLOSE and errors[best] <= LAYOUT_CLEAR * min(others, default=np.inf)
    return options[best] if clear else None


def _error(layout: CommonForm, target: Values, reference: Values) -> float:
    try:
        actual = layout.of_target(target).reshape(-1)
    except ConfigError:
        return np.inf
    expected = layout.of_reference(reference).reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        norm = float(np.linalg.norm(expected.astype(np.float64)))
        error = float(np.linalg.norm(actual.astype(np.float64) - expected))
    return error / norm if norm and np.isfinite(error) else np.inf


class _Reader:
    """Values of pairs of records."""

    def __init__(
        self,
        match: StepMatch,
        tables: tuple[StepTables, StepTables],
        traces: tuple[TraceSource, TraceSource],
        pair: StepPair,
    ) -> None:
        self._match, self._tables, self._traces = match, tables, traces
        self._places = (pair.step, pair.rank), (pair.reference_step, pair.reference_rank)

    def values(self, at: int) -> tuple[Values, Values] | None:
        """Both sides of a pair as floats of their shapes; None where one was not kept, or holds one value."""
        found = []
        for which in (0, 1):
            row = self._row(at, which)
            if row["minimum"] is None or row["minimum"] == row["maximum"]:
                return None
            if row["dtype"] not in DTYPES or DTYPES[row["dtype"]].kind != "float":
                return None
            stored = self._traces[which].tensor(*self._places[which], row)
            if stored is None:
                return None
            found.append(np.nan_to_num(values_of(stored.data, stored.dtype, stored.shape)))
        return found[0], found[1]

    def _row(self, at: int, which: int) -> SummaryRow:
        records, match = self._match.records, self._match
        record = (records.target, records.reference)[which][at]
        side = (match.target, match.reference)[which]
        return self._tables[which].summary_row(int(side.record_summary[record]))

    def apart(self, places: Sequence[int]) -> bool:
        """Whether the sketches differ though what does not depend on order agrees."""
        for at in places[:SAMPLES]:
            one, other = self._row(at, 0), self._row(at, 1)
            norms = one["l2_norm"], other["l2_norm"]
            sketches = one["sketch"], other["sketch"]
            if not all(isinstance(s, bytes) for s in sketches) or not all(
                isinstance(n, float) for n in norms
            ):
                return False
            a, b = (np.frombuffer(s, "<f4").astype(np.float64) for s in sketches if isinstance(s, bytes))
            norm = float(norms[1])  # type: ignore[arg-type]
            alike = abs(float(norms[0]) - norm) <= LAYOUT_CERTAIN * norm  # type: ignore[arg-type]
            if not alike or np.linalg.norm(a - b) <= LAYOUT_CLOSE * norm:
                return False
        return True
