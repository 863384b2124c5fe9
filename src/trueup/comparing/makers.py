"""The call that made what differs first, where one run alone has it, or has another function in its place.

What nothing before it explains is an input that some call of its run returned, or what a call makes of inputs
that agree. If the other run has no counterpart of that call, it is what the two runs do not have in common;
so are two functions that the matching put beside each other. Of two calls of one function that are no
counterparts, the operand that one of them lacks is followed further back. Where both runs make both results,
it is another of them that is given.
"""

from __future__ import annotations

import numpy as np

from trueup.comparing.inflow import contents
from trueup.comparing.rows import Half, StepRows
from trueup.matching.names import family
from trueup.numerics.dtypes import rounded_to
from trueup.types.arrays import Bools
from trueup.types.codes import VerdictCode
from trueup.types.reason import Reason, reason

_HALF = ("float16", "bfloat16")
_STEPS_BACK = 4
"""calls of one function that are followed back, one after the other"""
Calls = tuple[int | None, int | None]
"""one of either run, where it is known"""


def made_by_one(rows: StepRows, row: int, owner: str | None) -> Reason | None:
    """What stands at ``row`` in each run as the result of calls that are no counterparts.

    None where both results are of counterparts of one function, where one is not known to be of any call, or
    where a trace was read from elsewhere. ``owner``: the module that is charged with the row.
    """
    if rows.match.bridge is not None or not rows.paired[row]:
        return None
    target, reference = int(rows.target.call[row]), int(rows.reference.call[row])
    if rows.phase_is("backward")[row]:  # two functions may give the same, and send back something else
        return _in_place(rows, target, reference, owner)
    if not rows.phase_is("forward")[row]:
        return None
    if rows.slot_starts("output")[row]:
        return _in_place(rows, target, reference, owner)
    if owner is None and not any(_returned(rows, half, row).any() for half in (rows.target, rows.reference)):
        return _given(rows, target, row)
    made = _maker(rows, rows.target, row), _maker(rows, rows.reference, row)
    found = _of_makers(rows, made, owner, _STEPS_BACK)
    if found is not None:
        return found
    return (
        _module_of_one(rows, made, owner) if all(_are_lone(rows, made)) else _given_another(rows, row, made)
    )


def _of_makers(rows: StepRows, made: Calls, owner: str | None, steps: int) -> Reason | None:
    """The one of two calls that one run alone makes; of two such, the functions they are, or what they are
    made of, so many calls back."""
    lone = _are_lone(rows, made)
    if all(lone):
        found = _in_place(rows, made[0], made[1], owner)
        return found or (_of_operands(rows, made, owner, steps) if steps else None)
    for side, is_lone, (half, call) in zip(("target", "reference"), lone, _sides(rows, *made), strict=True):
        if is_lone and call is not None:
            return _of_one(rows, side, half, call, owner)
    return None


def _are_lone(rows: StepRows, calls: Calls) -> list[bool]:
    return [call is not None and _partner(rows, half, call) < 0 for half, call in _sides(rows, *calls)]


def _module_of_one(rows: StepRows, calls: Calls, owner: str | None) -> Reason | None:
    """Of two calls without counterparts, the one that is a module, beside a function."""
    both = list(zip(("target", "reference"), _sides(rows, *calls), strict=True))
    modules = [
        (side, half, call)
        for side, (half, call) in both
        if call is not None and rows.match.words.kind[half.side.kind[call]] == "module"
    ]
    return _of_one(rows, *modules[0], owner) if len(modules) == 1 else None


def _of_operands(rows: StepRows, calls: Calls, owner: str | None, steps: int) -> Reason | None:
    """Of two calls of one function that are no counterparts, the call of one run alone that made what only
    one of them is given."""
    made: list[int | None] = []
    for (half, call), (other, facing) in zip(_sides(rows, *calls), _sides(rows, *calls)[::-1], strict=True):
        given, there = _given_to(rows, half, call), _given_to(rows, other, facing)
        own = [row for row, digest in given.items() if digest not in there.values()]
        found = [maker for row in own if (maker := _maker(rows, half, row)) is not None]
        made.append(found[0] if len(found) == 1 else None)
    return _of_makers(rows, (made[0], made[1]), owner, steps - 1)


def _given_to(rows: StepRows, half: Half, call: int | None) -> dict[int, int]:
    """The rows of a call's inputs, with their digests, where these are known."""
    if call is None:
        return {}
    given = (half.call == call) & (half.record >= 0) & rows.phase_is("forward") & rows.slot_starts("input")
    digests = half.column("digest").to_list()
    return {row: digests[row] for row in np.flatnonzero(given).tolist() if digests[row] is not None}


def _given_another(rows: StepRows, row: int, made: Calls) -> Reason | None:
    """Results that both runs make, of which the call at ``row`` is given one in the one, one in the other."""
    if made[0] is None or made[1] is None or rows.slot_starts("output")[row]:
        return None
    if made[0] == _partner(rows, rows.reference, made[1]):
        return None
    labels = [_label(rows, half, call) for half, call in _sides(rows, *made) if call is not None]
    call = _label(rows, rows.target, int(rows.target.call[row]))
    if labels[0] == labels[1]:
        return None
    return reason(VerdictCode.GIVEN_ANOTHER, call=call, target=labels[0], reference=labels[1])


def _label(rows: StepRows, half: Half, call: int) -> str:
    """A module's name, or a function's, with its number where it is not the first of its owner."""
    number = int(half.side.ordinal[call])
    name = str(rows.match.words.name[half.side.name[call]])
    return f"{name}[{number}]" if number else name


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


def _is_its_own(number: float) -> bool:
    """Whether a number has more digits than a half precision: 0, 1, a count and a factor have not."""
    value = np.array([number])
    return bool(np.isfinite(value).all() and all(rounded_to(value, one) != value for one in _HALF))


def _maker(rows: StepRows, half: Half, row: int) -> int | None:
    """The first call of its run that returned the content of ``row``, before the call that takes it; a module
    before what it is made with inside. None of elements that are all alike, or of one number that a half
    precision holds: others return the same."""
    own = int(half.call[row])
    low, high = (float(half.statistics[name][row]) for name in ("minimum", "maximum"))
    if own < 0 or not (low < high or (half.numel[row] == 1 and _is_its_own(low))):
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
