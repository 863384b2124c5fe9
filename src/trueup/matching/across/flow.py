"""Within a pair of modules: which tensors of their own code are the same, by content, then by what made them.

Contents are matched by being each other's nearest by a clear margin, so that a fault that moves a tensor by a
few per cent does not part it from its counterpart; what a fault has moved further follows from its inputs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trueup.matching.across.ports import MOVING, Port, PortPairs, Ports
from trueup.matching.across.tensors import FAR, SAME, distances
from trueup.matching.codes import Codes

NEAR = 0.3
"""contents further apart are never paired by content"""
BY_CONTENT, BY_FLOW, ONLY_CANDIDATE, SAME_TENSOR = 0.97, 0.9, 0.5, 0.8
Distances = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What two contents must be to be paired: each other's nearest, at most ``near`` times the rounding noise
    of their dtype apart, at most ``margin`` times as far as the next best."""

    near: float
    margin: float
    same_makers: bool = False


ROUNDS = (
    Round(near=0.1, margin=0.5),
    Round(near=NEAR / SAME, margin=0.5, same_makers=True),
    Round(near=NEAR / SAME, margin=0.1),
)
LEFT_OVER = (Round(near=1.0, margin=0.5),)
COMMUTATIVE = frozenset({"add", "mul", "maximum", "minimum", "eq", "logical_and", "logical_or"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCalls:
    """Calls in the own code of a pair of modules, in execution order."""

    target: list[int]
    reference: list[int]


def pair_flow(target: Ports, reference: Ports, own: OwnCalls, pairs: PortPairs) -> None:
    """Pair what the calls return."""
    _by_content(target, reference, own, pairs)
    while _by_inputs(target, reference, own, pairs):
        pass
    _only_candidates(target, reference, own, pairs)


def pair_leftovers(target: Ports, reference: Ports, pairs: PortPairs) -> None:
    """What is inside a module here and outside its counterpart there: the same to within rounding."""
    left = _open(target, sorted(target.outputs), pairs.reference_of)
    right = _open(reference, sorted(reference.outputs), pairs.target_of)
    for microbatch in sorted({int(target.side.microbatch[call]) for call, _ in left}):
        of_t, of_r = (
            _grouped(ports, [p for p in places if int(ports.side.microbatch[p[0]]) == microbatch])
            for ports, places in ((target, left), (reference, right))
        )
        _match_contents(target, reference, of_t, of_r, pairs, LEFT_OVER)
        for content, places in of_t.items():
            other = pairs.same.get(content, -1)
            if other in of_r:
                _pair_sequence(target, reference, places, of_r[other], pairs)


def _open(ports: Ports, calls: list[int], taken: dict[Port, Port]) -> list[Port]:
    return [
        (call, slot) for call in calls for slot in ports.outputs.get(call, ()) if (call, slot) not in taken
    ]


def _by_content(target: Ports, reference: Ports, own: OwnCalls, pairs: PortPairs) -> None:
    left = _open(target, own.target, pairs.reference_of)
    right = _open(reference, own.reference, pairs.target_of)
    of_t, of_r = _grouped(target, left), _grouped(reference, right)
    _match_contents(target, reference, of_t, of_r, pairs)
    for content, places in of_t.items():
        other = pairs.same.get(content)
        if other is not None and other in of_r:
            _pair_sequence(target, reference, places, of_r[other], pairs)


def _grouped(ports: Ports, places: list[Port]) -> dict[int, list[Port]]:
    out: dict[int, list[Port]] = defaultdict(list)
    for place in places:
        if ports.content[place] >= 0:
            out[ports.content[place]].append(place)
    return out


def _match_contents(
    target: Ports,
    reference: Ports,
    here: Mapping[int, list[Port]],
    there: Mapping[int, list[Port]],
    pairs: PortPairs,
    rounds: Sequence[Round] = ROUNDS,
) -> None:
    """Contents that are nearest to each other by a margin: first the same to within rounding, then those that
    one function made, then the rest."""
    for one in rounds:
        rows = np.array([c for c in here if c not in pairs.same], np.int64)
        columns = np.array([c for c in there if c not in pairs.same_back], np.int64)
        rows, columns = rows[target.contents.telling[rows]], columns[reference.contents.telling[columns]]
        sizes = target.contents.numel[rows]
        for size in np.unique(sizes).tolist():
            own, other = rows[sizes == size], columns[reference.contents.numel[columns] == size]
            if not len(other):
                continue
            far = distances(target.contents, own, reference.contents, other)
            if one.same_makers:
                far = np.where(_same_makers(target, reference, here, there, own, other), far, FAR)
            near = one.near * np.maximum(target.contents.noise[own], SAME)
            for i, j in nearest_by_margin(far, near, one.margin):
                pairs.add_same(int(own[i]), int(other[j]))


def _same_makers(
    target: Ports,
    reference: Ports,
    here: Mapping[int, list[Port]],
    there: Mapping[int, list[Port]],
    rows: Codes,
    columns: Codes,
) -> NDArray[np.bool_]:
    """Whether a function of one family made, or passed on, both contents."""
    target_makers, reference_makers = (
        [_makers(ports, places[content]) for content in contents]
        for ports, places, contents in (
            (target, here, rows.tolist()),
            (reference, there, columns.tolist()),
        )
    )
    return np.array([[bool(a & b) for b in reference_makers] for a in target_makers])


def _makers(ports: Ports, places: Sequence[Port]) -> set[str]:
    """Families of what computed a content; of one that is only passed on here, of what brought it."""
    families = [ports.family(call) for call, _ in places]
    return set(families) - MOVING or {families[0]}


def nearest_by_margin(far: Distances, near: NDArray[np.float64], margin: float) -> list[tuple[int, int]]:
    """Rows and columns that are each other's nearest, at most ``near`` (rows,) apart and at most ``margin``
    times as far as the next best of either."""
    out = []
    second_of_row, second_of_column = _second(far), _second(far.T)
    for i, j in enumerate(far.argmin(axis=1).tolist()):
        best, second = far[i, j], min(second_of_row[i], second_of_column[j])
        if best <= near[i] and far[:, j].argmin() == i and best <= margin * second:
            out.append((i, j))
    return out


def _second(far: Distances) -> NDArray[np.float64]:
    if far.shape[1] < 2:
        return np.full(far.shape[0], FAR)
    return np.asarray(np.partition(far, 1, axis=1)[:, 1])


def _likeness(target: Ports, reference: Ports, one: Port, other: Port) -> float:
    """How alike the makers of one tensor are: same function 3, both only hand it on 2, both compute it 1."""
    if target.kind(one[0]) != reference.kind(other[0]):
        return 0.0
    families = target.family(one[0]), reference.family(other[0])
    shapes = [_plain_shape(p, at) for p, at in ((target, one), (reference, other))]
    alike = 0.5 * (shapes[0] == shapes[1])
    if families[0] == families[1]:
        return 3.0 + alike
    moving = families[0] in MOVING, families[1] in MOVING
    if all(moving):
        return 2.0 + alike
    return 1.0 + alike if not any(moving) else 0.25 + alike


def _plain_shape(ports: Ports, place: Port) -> tuple[int, ...]:
    code = ports.shape[place]
    return tuple(sorted(d for d in ports.words.shape[code] if d != 1)) if code >= 0 else ()


def _pair_sequence(
    target: Ports, reference: Ports, left: list[Port], right: list[Port], pairs: PortPairs
) -> None:
    """One tensor at several places on both sides: in order, like makers together, rather the last."""
    score = np.zeros((len(left) + 1, len(right) + 1))
    like = np.array([[_likeness(target, reference, a, b) for b in right] for a in left])
    for i in range(len(left)):
        for j in range(len(right)):
            score[i + 1, j + 1] = max(score[i, j + 1], score[i + 1, j], score[i, j] + like[i, j])
    i, j = len(left), len(right)
    while i and j:
        if like[i - 1, j - 1] and score[i, j] == score[i - 1, j - 1] + like[i - 1, j - 1]:
            i, j = i - 1, j - 1
            sure = BY_CONTENT if like[i, j] >= 3 else SAME_TENSOR
            pairs.add(left[i], right[j], "tensor", sure)
        elif score[i, j] == score[i - 1, j]:
            i -= 1
        else:
            j -= 1


def _by_inputs(target: Ports, reference: Ports, own: OwnCalls, pairs: PortPairs) -> bool:
    """Calls of one family whose inputs are known to be the same, where no other call fits as well."""
    left = [c for c in own.target if _unpaired(target, c, pairs.reference_of)]
    right = [c for c in own.reference if _unpaired(reference, c, pairs.target_of)]
    keys: tuple[dict[object, list[int]], dict[object, list[int]]] = defaultdict(list), defaultdict(list)
    for call in left:
        key = _input_key(target, call, pairs.same)
        if key is not None:
            keys[0][key].append(call)
    for call in right:
        key = _input_key(reference, call, {content: content for content in pairs.same_back})
        if key is not None:
            keys[1][key].append(call)
    added = False
    for key, calls in keys[0].items():
        others = keys[1].get(key, [])
        if len(calls) == len(others):
            for one, other in zip(calls, others, strict=True):
                added |= _pair_outputs(target, reference, one, other, pairs)
    return added


def _unpaired(ports: Ports, call: int, taken: dict[Port, Port]) -> bool:
    slots = ports.outputs.get(call, ())
    return bool(slots) and not any((call, slot) in taken for slot in slots)


def _input_key(ports: Ports, call: int, same: dict[int, int]) -> object | None:
    """Family and inputs, as contents of the reference; None where one of them is not known."""
    contents = [ports.content[call, slot] for slot in ports.inputs.get(call, ())]
    if not contents or any(c not in same for c in contents):
        return None
    named = [same[c] for c in contents]
    family = ports.family(call)
    sizes = tuple(
        ports.contents.numel[c] for c in (ports.content[call, s] for s in ports.outputs[call]) if c >= 0
    )
    held = tuple(sorted(named)) if family in COMMUTATIVE else tuple(named)
    return ports.kind(call), family, held, sizes


def _pair_outputs(target: Ports, reference: Ports, one: int, other: int, pairs: PortPairs) -> bool:
    slots = target.outputs[one], reference.outputs[other]
    if len(slots[0]) != len(slots[1]):
        return False
    added = False
    for a, b in zip(*slots, strict=True):
        contents = target.content[one, a], reference.content[other, b]
        if pairs.contradict(*contents) or elsewhere(target, reference, contents[0], contents[1]):
            continue
        if pairs.add((one, a), (other, b), "flow", BY_FLOW):
            pairs.add_same(*contents)
            added = True
    return added


def elsewhere(target: Ports, reference: Ports, one: int, other: int) -> bool:
    """Whether one of two contents has its counterpart on the other side, and that is not the other."""
    if one < 0 or other < 0:
        return False
    for ports, others, content, counterpart in (
        (target, reference, one, other),
        (reference, target, other, one),
    ):
        if not ports.contents.telling[content]:
            continue
        alike = others.contents.like(ports.contents.numel[content], str(ports.contents.kind[content]))
        far = distances(ports.contents, np.array([content]), others.contents, alike)[0]
        at = np.flatnonzero(alike == counterpart)
        own = far[at[0]] if len(at) else FAR
        if len(far) and far.min() < SAME and own > 10 * max(float(far.min()), SAME):
            return True
    return False


Kind = tuple[str, str, tuple[int, ...]]
"""kind of call, family, shape without its order"""


def _only_candidates(target: Ports, reference: Ports, own: OwnCalls, pairs: PortPairs) -> None:
    """The only content that calls of a family made, of its number of elements and kind, of what is left on
    both sides: each call in order (a table of angles made once for queries and once for keys)."""
    left = _open(target, own.target, pairs.reference_of)
    right = _open(reference, own.reference, pairs.target_of)
    groups: list[dict[Kind, list[Port]]] = [defaultdict(list), defaultdict(list)]
    for ports, places, group in zip((target, reference), (left, right), groups, strict=True):
        for place in places:
            group[ports.kind(place[0]), ports.family(place[0]), _plain_shape(ports, place)].append(place)
    for key, ones in groups[0].items():
        others = groups[1].get(key, [])
        held = {target.content[one] for one in ones}, {reference.content[other] for other in others}
        if len(ones) != len(others) or not len(held[0]) == len(held[1]) == 1:
            continue
        contents = held[0].pop(), held[1].pop()
        telling = contents[0] >= 0 and bool(target.contents.telling[contents[0]])
        moved = key[1] in MOVING  # what it is was decided where it was made
        if (
            telling
            and not moved
            and not pairs.contradict(*contents)
            and not elsewhere(target, reference, *contents)
            and not _without_effect(target, reference, contents, own, pairs)
        ):
            for one, other in zip(ones, others, strict=True):
                pairs.add(one, other, "flow", ONLY_CANDIDATE)


def _without_effect(
    target: Ports, reference: Ports, contents: tuple[int, int], own: OwnCalls, pairs: PortPairs
) -> bool:
    """Whether two contents are far apart and what is made of both is the same: scores masked with another
    number are no counterparts."""
    if _far(target, reference, contents) <= NEAR:
        return False
    takers = [
        (call, slot)
        for call in own.target
        if any(target.content[call, entry] == contents[0] for entry in target.inputs.get(call, ()))
        for slot in target.outputs.get(call, ())
    ]
    for one in takers:
        other = pairs.reference_of.get(one)
        if other is None:
            continue
        takes = [reference.content[other[0], entry] for entry in reference.inputs.get(other[0], ())]
        made = target.content[one], reference.content[other]
        if contents[1] in takes and min(made) >= 0:
            return bool(_far(target, reference, made) <= SAME)
    return False


def _far(target: Ports, reference: Ports, contents: tuple[int, int]) -> float:
    one, other = (np.array([content]) for content in contents)
    return float(distances(target.contents, one, reference.contents, other)[0, 0])
