"""Tensors that enter a pair of calls, and those a pair of modules returns."""

from __future__ import annotations

import numpy as np

from trueup.matching.across.flow import COMMUTATIVE, NEAR, elsewhere
from trueup.matching.across.ports import Port, PortPairs, Ports
from trueup.matching.across.tensors import FAR, SAME, distances

CLOSE = 0.05
"""distance at which two inputs are the same though nothing else says so"""
APART = 0.99
"""distance at which what two modules are given is not the same, for any size"""
BY_SLOT = 0.8
Places = list[Port]


def pair_module_outputs(
    target: Ports, reference: Ports, call: int, other: int, pairs: PortPairs, confidence: float
) -> None:
    """Outputs of two modules that are the same: in order, those of one size; of several the nearest."""
    left = [(call, slot) for slot in target.outputs.get(call, ())]
    right = [(other, slot) for slot in reference.outputs.get(other, ())]
    for one, two in _assigned(target, reference, left, right, pairs, in_order=True):
        if pairs.add(one, two, "weights", confidence):
            pairs.add_same(target.content[one], reference.content[two])


def pair_inputs(target: Ports, reference: Ports, call: int, other: int, pairs: PortPairs) -> None:
    """Inputs of two calls that do the same."""
    left = [(call, s) for s in target.inputs.get(call, ()) if (call, s) not in pairs.reference_of]
    right = [(other, s) for s in reference.inputs.get(other, ()) if (other, s) not in pairs.target_of]
    ordered = target.kind(call) != "module" and target.family(call) not in COMMUTATIVE
    settled = target.kind(call) != "module" and _returns_agree(target, reference, call, pairs)
    for one, two in _assigned(target, reference, left, right, pairs, in_order=ordered):
        far = _far(target, reference, one, two)
        if target.kind(call) == "module" and APART <= far < FAR:
            continue  # a mask and a table of angles, say, of one size
        if settled and far > NEAR:
            continue  # another mask, another constant: what comes out is the same, so it is no counterpart
        if pairs.add(one, two, "flow", BY_SLOT):
            pairs.add_same(target.content[one], reference.content[two])
    if target.kind(call) == "module":
        _by_slot(target, reference, left, right, pairs)


def _by_slot(target: Ports, reference: Ports, left: Places, right: Places, pairs: PortPairs) -> None:
    """What is left in one slot of two modules, and nothing else of its size, though content says that one of
    the two is what something else holds there: a factor that one run leaves out, say, between the embedding
    and the first layer."""
    held = [[_held(p, place) for place in of] for p, of in ((target, left), (reference, right))]
    for one, own in zip(left, held[0], strict=True):
        for two, other in zip(right, held[1], strict=True):
            is_only_pair = own is not None and own == other and held[0].count(own) == held[1].count(own) == 1
            if is_only_pair and one[1] == two[1] and _far(target, reference, one, two) < APART:
                pairs.add(one, two, "flow", BY_SLOT)


def _held(ports: Ports, place: Port) -> tuple[float, str] | None:
    """Size and kind of what is there; None where it tells nothing."""
    at = ports.content[place]
    return (float(ports.contents.numel[at]), str(ports.contents.kind[at])) if _telling(ports, place) else None


def _returns_agree(target: Ports, reference: Ports, call: int, pairs: PortPairs) -> bool:
    """Whether what the call returns is what its counterpart does, to within rounding."""
    places = [(call, slot) for slot in target.outputs.get(call, ()) if (call, slot) in pairs.reference_of]
    far = [_far(target, reference, one, pairs.reference_of[one]) for one in places]
    return bool(far) and max(far) <= SAME


def _far(target: Ports, reference: Ports, one: Port, two: Port) -> float:
    a, b = target.content[one], reference.content[two]
    if a < 0 or b < 0 or not target.contents.telling[a]:
        return 0.0
    return float(distances(target.contents, np.array([a]), reference.contents, np.array([b]))[0, 0])


def _assigned(
    target: Ports, reference: Ports, left: Places, right: Places, pairs: PortPairs, *, in_order: bool
) -> list[tuple[Port, Port]]:
    """Places that hold the same: known to, else close and nearest, else of the same slot or the only ones."""
    out: list[tuple[Port, Port]] = []
    for one in list(left):
        known = [two for two in right if pairs.agree(target.content[one], reference.content[two])]
        if known:
            _take(one, _same_slot(one, known), left, right, out)
    for one, two in _nearest(target, reference, left, right):
        if not pairs.contradict(target.content[one], reference.content[two]):
            _take(one, two, left, right, out)
    for one in list(left):
        fitting = [two for two in right if _fits(target, reference, one, two, pairs)]
        rivals = [o for o in left if any(_fits(target, reference, o, two, pairs) for two in fitting)]
        if len(fitting) == 1 == len(rivals) or (in_order and fitting and len(fitting) == len(rivals)):
            _take(one, fitting[0], left, right, out)
    return out


def _take(one: Port, two: Port, left: Places, right: Places, out: list[tuple[Port, Port]]) -> None:
    left.remove(one)
    right.remove(two)
    out.append((one, two))


def _same_slot(one: Port, among: Places) -> Port:
    return next((two for two in among if two[1] == one[1]), among[0])


def _nearest(target: Ports, reference: Ports, left: Places, right: Places) -> list[tuple[Port, Port]]:
    left = [p for p in left if _telling(target, p)]
    right = [p for p in right if _telling(reference, p)]
    if not left or not right:
        return []
    rows, columns = ([p.content[x] for x in places] for p, places in ((target, left), (reference, right)))
    far = distances(target.contents, np.array(rows), reference.contents, np.array(columns))
    out = []
    for i, j in enumerate(far.argmin(axis=1).tolist()):
        same = np.flatnonzero(far[i] == far[i, j])
        if far[i, j] <= CLOSE and far[:, j].argmin() == i and len(same) == 1:
            out.append((left[i], right[j]))
    return out


def _telling(ports: Ports, place: Port) -> bool:
    return ports.content[place] >= 0 and bool(ports.contents.telling[ports.content[place]])


def _fits(target: Ports, reference: Ports, one: Port, two: Port, pairs: PortPairs) -> bool:
    """Whether two places may hold the same tensor: size, kind, and nothing known against it."""
    a, b = target.content[one], reference.content[two]
    if a < 0 or b < 0:
        return one[1] == two[1] and a == b
    target_contents, reference_contents = target.contents, reference.contents
    if (
        target_contents.numel[a] != reference_contents.numel[b]
        or target_contents.kind[a] != reference_contents.kind[b]
        or pairs.contradict(a, b)
    ):
        return False
    return not elsewhere(target, reference, a, b)
