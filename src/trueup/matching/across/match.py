"""The cascade across implementations: weights, the modules that hold them, what flows, then records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trueup.errors import ConfigError
from trueup.matching.across.flow import BY_FLOW, OwnCalls, elsewhere, pair_flow, pair_leftovers
from trueup.matching.across.inputs import pair_inputs, pair_module_outputs
from trueup.matching.across.ports import PortPairs, Ports, in_order, nearest_anchor, ports_of
from trueup.matching.across.records import PairedRecords, pair_records
from trueup.matching.across.sites import sites_of
from trueup.matching.bridge import Bridge
from trueup.matching.calls import PASS_CODE, CallPairs
from trueup.matching.tree import TreeSide, Words
from trueup.store import StepTables


@dataclass(frozen=True, slots=True, kw_only=True)
class Across:
    """Calls and records of two implementations, paired."""

    calls: CallPairs
    paired: PairedRecords


def match_across(
    tables: tuple[StepTables, StepTables], target: TreeSide, reference: TreeSide, words: Words, bridge: Bridge
) -> Across:
    """Pair the calls and records of one step on one rank."""
    sides = ports_of(tables[0], target, words), ports_of(tables[1], reference, words)
    calls = CallPairs.open(target.num_calls, reference.num_calls)
    pairs = PortPairs()
    _given(calls, pairs, *sides, bridge)
    _weights(calls, target, reference, words, bridge)
    _modules(calls, target, reference, words, bridge)
    _module_tensors(*sides, calls, pairs)
    _losses(calls, target, reference, words)
    for own in _own_code(*sides, calls):
        pair_flow(*sides, own, pairs)
    _calls_of_ports(*sides, calls, pairs)
    pair_leftovers(*sides, pairs)
    _calls_of_ports(*sides, calls, pairs)
    _other_outputs(*sides, calls, pairs)
    _inputs(*sides, calls, pairs)
    return Across(calls=calls, paired=pair_records(tables, sides, calls, pairs, bridge))


def _given(calls: CallPairs, pairs: PortPairs, target: Ports, reference: Ports, bridge: Bridge) -> None:
    """Calls a person paired by their sites, each occurrence with its own; some a person wants alone.

    Raises:
        ConfigError: there is no such site.
    """
    if not bridge.calls:
        return
    here, there = sites_of(target.side, target.words), sites_of(reference.side, reference.words)
    for site, other in bridge.calls.items():
        if site not in here or (other is not None and other not in there):
            raise ConfigError(
                f"--map {bridge.map_path}: calls: {site}: {other}: no such call in this step; "
                "trueup match TARGET REFERENCE -o MAP.yaml lists them"
            )
        for one, two in zip(here[site], there[other] if other is not None else (), strict=False):
            _add(calls, one, two, "map", 1.0)
            for slot, other_slot in zip(
                target.outputs.get(one, ()), reference.outputs.get(two, ()), strict=False
            ):
                pairs.add((one, slot), (two, other_slot), "map", 1.0)
                pairs.add_same(target.content[one, slot], reference.content[two, other_slot])
        if other is None:
            for one in here[site]:
                target.outputs.pop(one, None)


def _add(calls: CallPairs, target: int, reference: int, how: str, confidence: float) -> None:
    calls.add(np.array([target]), np.array([reference]), PASS_CODE[how], confidence)


def _weights(calls: CallPairs, target: TreeSide, reference: TreeSide, words: Words, bridge: Bridge) -> None:
    """Weights that are one and the same; fused ones are paired record by record."""
    here, there = (_by_name(side, words, "parameter") for side in (target, reference))
    for atom in bridge.weights.atoms:
        if len(atom.targets) == len(atom.sources) == 1:
            both = here.get(atom.targets[0], []), there.get(atom.sources[0], [])
            for one, other in zip(*both, strict=False):
                _add(calls, one, other, "map" if atom.how == "map" else "weights", atom.confidence)


def _by_name(side: TreeSide, words: Words, kind: str) -> dict[str, list[int]]:
    out: dict[str, list[int]] = defaultdict(list)
    code = words.kind.index(kind) if kind in words.kind else -2
    for call in np.flatnonzero(side.kind == code).tolist():
        out[words.name[side.name[call]]].append(call)
    return out


def _modules(calls: CallPairs, target: TreeSide, reference: TreeSide, words: Words, bridge: Bridge) -> None:
    """Calls of paired modules: the n-th of a microbatch and mode with the n-th."""
    here, there = (_by_name(side, words, "module") for side in (target, reference))
    for pair in bridge.modules.pairs:
        own_places, other_places = (
            _by_place(target, here.get(pair.target, [])),
            _by_place(reference, there.get(pair.reference, [])),
        )
        for place, found in own_places.items():
            for one, other in zip(found, other_places.get(place, []), strict=False):
                _add(calls, one, other, pair.how, pair.confidence)


def _losses(calls: CallPairs, target: TreeSide, reference: TreeSide, words: Words) -> None:
    """Losses and collectives: the n-th of a name, microbatch and mode with the n-th."""
    for kind in ("loss", "collective"):
        here, there = (_by_name(side, words, kind) for side in (target, reference))
        for name, found in here.items():
            own_places, other_places = _by_place(target, found), _by_place(reference, there.get(name, []))
            for place, ones in own_places.items():
                others = other_places.get(place, [])
                for one, other in zip(ones, others, strict=False) if len(ones) == len(others) else ():
                    _add(calls, one, other, "name", 0.9)


def _by_place(side: TreeSide, calls: list[int]) -> dict[tuple[int, int], list[int]]:
    out: dict[tuple[int, int], list[int]] = defaultdict(list)
    for call in calls:
        out[int(side.microbatch[call]), int(side.mode[call])].append(call)
    return out


def _module_tensors(target: Ports, reference: Ports, calls: CallPairs, pairs: PortPairs) -> None:
    """What paired modules return, before anything inside them is looked at."""
    module = target.words.kind.index("module") if "module" in target.words.kind else -2
    paired = np.flatnonzero((calls.reference_of >= 0) & (target.side.kind == module))
    for call in paired.tolist():
        other = int(calls.reference_of[call])
        pair_module_outputs(target, reference, call, other, pairs, float(calls.confidence[call]))
        pair_inputs(target, reference, call, other, pairs)


def _own_code(target: Ports, reference: Ports, calls: CallPairs) -> Iterator[OwnCalls]:
    """The own code of each pair of modules, and what is outside all of them."""
    groups = []
    for ports, partner in ((target, calls.reference_of), (reference, calls.target_of)):
        module = ports.words.kind.index("module") if "module" in ports.words.kind else -2
        is_anchor = (partner >= 0) & (ports.side.kind == module)
        anchors = nearest_anchor(ports.side, is_anchor)
        groups.append(in_order(ports.side, anchors))
    for anchor, own in groups[0].items():
        if anchor >= 0:
            yield OwnCalls(target=own, reference=groups[1].get(int(calls.reference_of[anchor]), []))
    outside = [_by_place(p.side, g.get(-1, [])) for p, g in zip((target, reference), groups, strict=True)]
    for place, own in outside[0].items():
        yield OwnCalls(target=own, reference=outside[1].get(place, []))


def _calls_of_ports(target: Ports, reference: Ports, calls: CallPairs, pairs: PortPairs) -> None:
    """Calls whose first output was paired are pairs of calls, where both are the same function or module."""
    for (call, slot), (other, other_slot) in list(pairs.reference_of.items()):
        first = (
            target.outputs.get(call, [None])[0] == slot
            and reference.outputs.get(other, [None])[0] == other_slot
        )
        if not first or calls.reference_of[call] >= 0 or calls.target_of[other] >= 0:
            continue
        if target.kind(call) != "module" or _both_weightless(target, reference, call, other):
            how, confidence = pairs.how[call, slot]
            _add(calls, call, other, how, confidence)


def _both_weightless(target: Ports, reference: Ports, call: int, other: int) -> bool:
    return not (_owns(target, call) or _owns(reference, other))


def _owns(ports: Ports, call: int) -> bool:
    """Whether a weight lies in the module."""
    words, side = ports.words, ports.side
    code = words.kind.index("parameter") if "parameter" in words.kind else -2
    name = words.name[side.name[call]]
    names = (words.name[c] for c in np.unique(side.name[side.kind == code]).tolist())
    return any(weight.startswith(name + ".") or not name for weight in names)


def _other_outputs(target: Ports, reference: Ports, calls: CallPairs, pairs: PortPairs) -> None:
    """What pairs of calls of one function return besides: whole numbers say too little to be found by."""
    for call in np.flatnonzero(calls.reference_of >= 0).tolist():
        other = int(calls.reference_of[call])
        slots = target.outputs.get(call, []), reference.outputs.get(other, [])
        if target.kind(call) != "api" or target.family(call) != reference.family(other):
            continue
        for slot, other_slot in zip(*slots, strict=True) if len(slots[0]) == len(slots[1]) > 1 else ():
            contents = target.content[call, slot], reference.content[other, other_slot]
            if min(contents) < 0 or pairs.contradict(*contents) or elsewhere(target, reference, *contents):
                continue
            sizes = target.contents.numel[contents[0]], reference.contents.numel[contents[1]]
            kinds = target.contents.kind[contents[0]], reference.contents.kind[contents[1]]
            if sizes[0] == sizes[1] and kinds[0] == kinds[1]:
                pairs.add((call, slot), (other, other_slot), "flow", BY_FLOW)


def _inputs(target: Ports, reference: Ports, calls: CallPairs, pairs: PortPairs) -> None:
    """What went into pairs of calls of one function."""
    for call in np.flatnonzero(calls.reference_of >= 0).tolist():
        other = int(calls.reference_of[call])
        if target.kind(call) != "module" and target.family(call) == reference.family(other):
            pair_inputs(target, reference, call, other, pairs)
