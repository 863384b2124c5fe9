"""The call that made what differs first, where one run alone has it, or has another function in its place.

What nothing before it explains is an input that some call of its run returned, or what a call makes of inputs
that agree. If the other run has no counterpart of that call, it is what the two runs do not have in common;
so are two functions that the matching put beside each other.
"""

from __future__ import annotations

import numpy as np

from trueup.comparing.inflow import contents
from trueup.comparing.rows import Half, StepRows
from trueup.matching.names import family
from trueup.types.arrays import Bools
from trueup.types.codes import VerdictCode
from trueup.types.reason import Reason, reason


def made_by_one(rows: StepRows, row: int, owner: str | None) -> Reason | None:
    """What stands at ``row`` in each run as the result of calls that are no counterparts.

    None where both results are of counterparts of one function, where one is not known to be of any call, or
    where a trace was read from elsewhere. ``owner``: the module that is charged with the row.
    """
    if rows.match.bridge is not None or not rows.paired[row] or not rows.phase_is("forward")[row]:
        return None
    target, reference = int(rows.target.call[row]), int(rows.reference.call[row])
    if rows.slot_starts("output")[row]:
        return _in_place(rows, target, reference, owner)
    if owner is None and not any(_returned(rows, half, row).any() for half in (rows.target, rows.reference)):
        return _given(rows, target, row)
    made = _maker(rows, rows.target, row), _maker(rows, rows.reference, row)
    lone = [call is not None and _partner(rows, half, call) < 0 for half, call in _sides(rows, *made)]
    if all(lone):
        return _in_place(rows, made[0], made[1], owner)
    for side, is_lone, (half, call) in zip(("target", "reference"), lone, _sides(rows, *made), strict=True):
        if is_lone and call is not None:
            return _of_one(rows, side, half, call, owner)
    return None


def _of_one(rows: StepRows, side: str, half: Half, call: int, owner: str | None) -> Reason:
    """``here``: the other run has such calls elsewhere."""
    words, other = rows.match.words, rows.match.reference if half is rows.target else rows.match.target
    is_module = words.kind[half.side.kind[call]] == "module"
    name = half.side.name[call]
    alike = (other.name == name) if is_module else (other.name == name) & (other.kind == half.side.kind[call])
    return reason(
        VerdictCode.MADE_BY_ONE,
        side=side,
        call=words.name[name],
        module=None if is_module else owner,
        is_module=is_module,
        here=bool(alike.any()),
    )


def _sides(rows: StepRows, target: int | None, reference: int | None) -> list[tuple[Half, int | None]]:
    return [(rows.target, target), (rows.reference, reference)]


def _partner(rows: StepRows, half: Half, call: int) -> int:
    pairs = rows.match.calls
    return int((pairs.reference_of if half is rows.target else pairs.target_of)[call])


def _in_place(rows: StepRows, target: int | None, reference: int | None, owner: str | None) -> Reason | None:
    """Two functions, one of either run, at one place."""
    names = []
    for half, call in _sides(rows, target, reference):
        words = rows.match.words
        if call is None or call < 0 or words.kind[half.side.kind[call]] != "api":
            return None
        names.append(words.name[half.side.name[call]])
    if family(names[0]) == family(names[1]):
        return None
    return reason(VerdictCode.FUNCTION_IN_PLACE, target=names[0], reference=names[1], module=owner)


def _given(rows: StepRows, call: int, row: int) -> Reason | None:
    """An input of a function outside the model that no call returned."""
    words, side = rows.match.words, rows.match.target
    if words.kind[side.kind[call]] != "api":
        return None
    name = words.slot[rows.slot[row]].partition(".")[2]
    return reason(VerdictCode.GIVEN_OUTSIDE, call=words.name[side.name[call]], name=name)


def _returned(rows: StepRows, half: Half, row: int) -> Bools:
    """Results of calls before that of ``row`` with its content; all where that is not known."""
    content = contents(half)
    if content[row] < 0:
        return np.ones(len(rows), bool)
    found: Bools = rows.phase_is("forward") & rows.slot_starts("output") & (content == content[row])
    return np.asarray(found & (half.record >= 0) & (half.call < half.call[row]))


def _maker(rows: StepRows, half: Half, row: int) -> int | None:
    """The first call of its run that returned the content of ``row``, before the call that takes it; a module
    before what it is made with inside. None of one number, or of elements that are all alike: others return
    the same."""
    own = int(half.call[row])
    low, high = (float(half.statistics[name][row]) for name in ("minimum", "maximum"))
    if own < 0 or not half.numel[row] > 1 or not low < high:
        return None
    if contents(half)[row] < 0:
        return None
    around = set()
    above = own
    while above >= 0:
        around.add(above)
        above = int(half.side.parent[above])
    found = [call for call in half.call[_returned(rows, half, row)].tolist() if call not in around]
    return min(found, default=None)
