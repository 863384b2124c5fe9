"""Calls that compute the last tokens alone, since they keep what they made of the tokens before: generation
with a cache beside generation without.

A model that generates is called once a token. Without a cache it is given all tokens so far, with one only
those that it has not been given yet; of a causal model both make the same of these. Which of two calls it is
shows in the lengths alone: the shorter side's calls without gradients, one after another, were given as many
tokens in all as the longer side's last one. What both make of the last tokens is then compared, element by
element: the ids themselves as well, so that calls of other tokens differ in these.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from trueup.comparing.rows import Half, StepRows
from trueup.matching.codes import Codes
from trueup.matching.layouts import CommonForm, Shape
from trueup.types.arrays import Bools
from trueup.weights.plan import MovingStep, Reshape, Slice

LAST_TOKENS = "of the last tokens"
"""ends the label of such a layout"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cached:
    """One call of the model that is given ids of other lengths."""

    batch: int
    long: int
    short: int
    is_target: bool
    """the target is given the longer ones"""


def in_last_tokens(rows: StepRows) -> StepRows:
    """The rows with a layout wherever one side made something of all tokens, the other of the last alone."""
    cached = dict(_cached_calls(rows))
    if not cached:
        return rows
    shapes = rows.match.words.shape
    t, r = rows.target, rows.reference
    apart = rows.paired & rows.phase_is("forward") & (rows.layout < 0) & (t.shape != r.shape)
    apart &= (t.summary >= 0) & (r.summary >= 0)
    layouts, numbers = list(rows.layouts), rows.layout.copy()
    roots = _roots(rows)
    for row in np.flatnonzero(apart).tolist():
        call = cached.get(int(roots[t.call[row]]))
        form = None if call is None else _form(shapes[t.shape[row]], shapes[r.shape[row]], call)
        if form is not None:
            layouts += [] if form in layouts else [form]
            numbers[row] = layouts.index(form)
    chosen = numbers != rows.layout
    of_target = np.array([bool(layout.target) for layout in layouts] + [False])[numbers]
    target, reference = _unknown(t, chosen & of_target), _unknown(r, chosen & ~of_target)
    return replace(rows, target=target, reference=reference, layout=numbers, layouts=tuple(layouts))


def _unknown(half: Half, chosen: Bools) -> Half:
    """The half without statistics in the chosen rows: those of all tokens are none of the last."""
    held = {name: np.where(chosen, np.nan, values) for name, values in half.statistics.items()}
    return replace(half, statistics=held)


def _roots(rows: StepRows) -> Codes:
    """Of each call of the target the outermost around it."""
    parent = rows.target.side.parent
    roots = np.arange(len(parent))
    while (inside := parent[roots] >= 0).any():
        roots[inside] = parent[roots[inside]]
    return roots


def _cached_calls(rows: StepRows) -> Iterator[tuple[int, _Cached]]:
    """Calls of the target, by number, that have such a counterpart."""
    t, r = rows.target, rows.reference
    given = rows.paired & rows.kind_is("module") & rows.phase_is("forward") & rows.slot_starts("input")
    given &= (rows.of_call("parent") < 0) & rows.mode_is("eval") & (t.summary >= 0) & (r.summary >= 0)
    names, slots = rows.of_call("name"), rows.slot
    words = rows.match.words
    whole = np.array([word.startswith(("int", "uint")) for word in words.dtype] + [False])
    given &= whole[t.dtype] & whole[r.dtype]
    given_so_far: dict[tuple[int, int], int] = {}
    for row in np.flatnonzero(given).tolist():
        sides = words.shape[t.shape[row]], words.shape[r.shape[row]]
        key = int(names[row]), int(slots[row])
        if any(len(shape) != 2 for shape in sides) or sides[0][0] != sides[1][0]:
            continue
        batch, (long, short) = sides[0][0], sorted((sides[0][1], sides[1][1]), reverse=True)
        if long == short:
            given_so_far[key] = long
        elif short and given_so_far.get(key, 0) + short == long:
            given_so_far[key] = long
            one = _Cached(batch=batch, long=long, short=short, is_target=sides[0][1] == long)
            yield int(t.call[row]), one
        else:
            given_so_far.pop(key, None)


def _form(target: Shape, reference: Shape, call: _Cached) -> CommonForm | None:
    """What takes the last tokens of the longer side; None where the shapes differ in anything else."""
    longer, shorter = (target, reference) if call.is_target else (reference, target)
    apart = [dim for dim, (a, b) in enumerate(zip(longer, shorter, strict=False)) if a != b]
    if len(longer) != len(shorter) or len(apart) != 1:
        return None
    (dim,) = apart
    steps: tuple[MovingStep, ...]
    if (longer[dim], shorter[dim]) == (call.long, call.short):
        steps = (Slice(dim=dim, start=call.long - call.short, stop=call.long),)
    elif dim == 0 and (longer[0], shorter[0]) == (call.batch * call.long, call.batch * call.short):
        rest = longer[1:]
        steps = (
            Reshape(shape=(call.batch, call.long, *rest)),
            Slice(dim=1, start=call.long - call.short, stop=call.long),
            Reshape(shape=shorter),
        )
    else:
        return None
    label = f"{list(target)} against {list(reference)}, {LAST_TOKENS}"
    parts = ((steps,), ()) if call.is_target else ((), (steps,))
    return CommonForm(label=label, target=parts[0], reference=parts[1], whole=False)
