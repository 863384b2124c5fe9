"""Records of paired places: forward, the gradients there, and what belongs to weights, whole or in pieces."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from trueup.matching.across.ports import Port, PortPairs, Ports
from trueup.matching.across.tensors import distances
from trueup.matching.bridge import Bridge, PieceOf
from trueup.matching.calls import PASSES, CallPairs
from trueup.matching.codes import Codes
from trueup.matching.layouts import UNORDERED, CommonForm, is_plain, layout_of_entry, pieces_of_entry
from trueup.store import StepTables
from trueup.types.codes import RecordCode
from trueup.types.reason import Reason

GRADIENTS_PART = 0.3
"""where a tensor is only passed on, its gradients may be those of different uses: further apart is no pair"""


@dataclass(slots=True)
class PairedRecords:
    """Rows of ``records`` on both sides, a layout where one is known already, and reasons."""

    target: list[int] = field(default_factory=list)
    reference: list[int] = field(default_factory=list)
    layouts: dict[int, CommonForm] = field(default_factory=dict)
    """position in the lists -> what makes the two comparable, from the conversion plan"""
    why_target: dict[int, Reason] = field(default_factory=dict)
    """record -> why it has no partner"""
    why_reference: dict[int, Reason] = field(default_factory=dict)

    how: list[tuple[str, float]] = field(default_factory=list)

    def add(
        self, target: int, reference: int, how: tuple[str, float], layout: CommonForm | None = None
    ) -> None:
        """Pair two records."""
        if layout is not None:
            self.layouts[len(self.target)] = layout
        self.target.append(target)
        self.reference.append(reference)
        self.how.append(how)


def pair_records(
    tables: tuple[StepTables, StepTables],
    sides: tuple[Ports, ...],
    calls: CallPairs,
    pairs: PortPairs,
    bridge: Bridge,
) -> PairedRecords:
    """All pairs of records."""
    target, reference = sides
    out = PairedRecords()
    records = _by_place(reference)
    _at_ports(target, reference, records, pairs, out)
    _of_other_calls(target, records, calls, out)
    _of_weights(target, reference, bridge, out)
    return out


Place = tuple[int, int, int, int]
"""call, phase, slot, microbatch"""


def _by_place(ports: Ports) -> dict[Place, int]:
    side = ports.side
    columns = (side.record_call, side.record_phase, side.record_slot, side.record_microbatch)
    out: dict[Place, int] = {}
    for row, place in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        out.setdefault(place, row)
    return out


def _at_ports(
    target: Ports, reference: Ports, records: dict[Place, int], pairs: PortPairs, out: PairedRecords
) -> None:
    words = target.words
    backward = words.phase.index("backward") if "backward" in words.phase else -2
    for (call, phase, slot, microbatch), row in _by_place(target).items():
        other: Port | None = pairs.reference_of.get((call, slot))
        if other is None:
            continue
        partner = records.get((other[0], phase, other[1], microbatch))
        if partner is None:
            continue
        if phase == backward and _another_use(target, reference, row, partner, (call, slot), other):
            out.why_target[row] = out.why_reference[partner] = Reason(RecordCode.OTHER_USE)
            continue
        out.add(row, partner, pairs.how[call, slot])


def _another_use(target: Ports, reference: Ports, row: int, partner: int, port: Port, other: Port) -> bool:
    (call, _), (call_of_reference, _) = port, other
    kinds = target.kind(call), reference.kind(call_of_reference)
    if target.family(call) == reference.family(call_of_reference) and kinds[0] != "api":
        return False
    if kinds == ("module", "module") and not (_passes_on(target, port) or _passes_on(reference, other)):
        return False
    a, b = (
        int(p.contents.of_summary[s]) if (s := int(p.side.record_summary[r])) >= 0 else -1
        for p, r in ((target, row), (reference, partner))
    )
    if a < 0 or b < 0 or not target.contents.telling[a]:
        return False
    far = distances(target.contents, np.array([a]), reference.contents, np.array([b]))
    return bool(far[0, 0] > GRADIENTS_PART)


def _passes_on(ports: Ports, port: Port) -> bool:
    """Whether a call returns what it is given at a place, or nothing is known of it. What it computes has no
    use but its own: two modules of other names have the gradients of one tensor there, however far apart."""
    call, slot = port
    content = ports.content.get(port, -1)
    others = ports.outputs[call] if ports.head(slot) == "input" else ports.inputs[call]
    return content < 0 or any(ports.content.get((call, one), -1) == content for one in others)


def _of_other_calls(target: Ports, records: dict[Place, int], calls: CallPairs, out: PairedRecords) -> None:
    """Losses, collectives and weights: slot by slot."""
    words, side = target.words, target.side
    kinds = {words.kind.index(k) for k in ("parameter", "loss", "collective") if k in words.kind}
    for (call, phase, slot, microbatch), row in _by_place(target).items():
        other = int(calls.reference_of[call])
        if other >= 0 and int(side.kind[call]) in kinds:
            partner = records.get((other, phase, slot, microbatch))
            if partner is not None:
                out.add(row, partner, (PASSES[calls.pass_code[call]], float(calls.confidence[call])))


def _of_weights(target: Ports, reference: Ports, bridge: Bridge, out: PairedRecords) -> None:
    """Layouts of whole weights, and pairs of the pieces of fused ones."""
    of_target, of_reference = (
        _of_parameters(ports, pieces)
        for ports, pieces in zip((target, reference), bridge.pieces, strict=True)
    )
    position = {row: at for at, row in enumerate(out.target)}
    form = _FormOf(target, bridge)
    _of_unordered(of_target, of_reference, bridge, out, position, form)
    for entry in bridge.weights.entries:
        sources = list(dict.fromkeys(piece.source for piece in entry.pieces))
        layout = layout_of_entry(entry, bridge.shapes) if len(sources) == 1 else None
        for place, row in of_target.get(entry.target, {}).items():
            shaped = form.is_weights(row, entry.target)
            if row in position and layout is not None and shaped:
                out.layouts[position[row]] = layout
            elif row not in position and (len(place) == _WHOLE or is_plain(entry)):
                pieces = pieces_of_entry(entry, bridge.shapes).items()
                for source, piece in pieces:
                    partner = of_reference.get(source, {}).get(place)
                    if partner is not None:
                        out.add(row, partner, ("weights", entry.confidence), piece if shaped else None)


class _FormOf:
    """Which records of a weight have the weight's shape; what counts steps has not."""

    def __init__(self, ports: Ports, bridge: Bridge) -> None:
        self._side, self._words, self._shapes = ports.side, ports.words, bridge.target_shapes

    def is_weights(self, row: int, weight: str) -> bool:
        summary = int(self._side.record_summary[row])
        shape = self._words.shape[self._side.summary_shape[summary]] if summary >= 0 else None
        return shape is not None and shape == self._shapes.get(weight)


def _of_unordered(
    of_target: dict[str, dict[WeightPlace, int]],
    of_reference: dict[str, dict[WeightPlace, int]],
    bridge: Bridge,
    out: PairedRecords,
    position: dict[int, int],
    form: _FormOf,
) -> None:
    """Weights known to hold the same values, in an order that only stored values would tell."""
    ordered = {entry.target for entry in bridge.weights.entries}
    for atom in bridge.weights.atoms:
        if ordered & set(atom.targets):
            continue
        same_size = len(atom.targets) == len(atom.sources) == 1 and not bridge.padded(atom)
        layout = CommonForm(label=UNORDERED, whole=same_size, known=False)
        for name in atom.targets:
            for place, row in of_target.get(name, {}).items():
                if len(place) > _WHOLE:
                    continue
                shaped = form.is_weights(row, name)
                if row in position and shaped:
                    out.layouts[position[row]] = layout
                for source in () if row in position else atom.sources:
                    partner = of_reference.get(source, {}).get(place)
                    if partner is not None:
                        out.add(row, partner, ("weights", atom.confidence), layout if shaped else None)


_WHOLE = 5
"""length of the place of a whole weight's record"""
WeightPlace = tuple[int, ...]
"""phase, slot, microbatch, occurrence of the call, and of such a record at it; of a piece which elements"""


def _of_parameters(ports: Ports, pieces: Mapping[str, PieceOf]) -> dict[str, dict[WeightPlace, int]]:
    """Weight -> place -> its record. A pipeline's gradients of several microbatches arrive in one of them."""
    side, words = ports.side, ports.words
    code = words.kind.index("parameter") if "parameter" in words.kind else -2
    out: dict[str, dict[WeightPlace, int]] = defaultdict(dict)
    rows: Codes = np.flatnonzero(side.kind[side.record_call] == code)
    seen: Counter[tuple[int, ...]] = Counter()
    for row in rows.tolist():
        call = int(side.record_call[row])
        place = (int(side.record_phase[row]), int(side.record_slot[row]), int(side.record_microbatch[row]))
        key = (call, *place)
        seen[key] += 1
        name = words.name[side.name[call]]
        at: WeightPlace = (*place, int(side.ordinal[call]), seen[key])
        if (piece := pieces.get(name)) is not None:
            name, at = piece.weight, (*place, 0, seen[key], piece.start, piece.stop)
        out[name].setdefault(at, row)
    return out
