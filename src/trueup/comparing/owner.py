"""Who made a tensor: the module whose own code, outside its children, produced it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from trueup.comparing.rows import Rows
from trueup.comparing.sites import owner_codes

MAX_HINTS = 4


def owner_of_row(rows: Rows, row: int) -> str | None:
    """Fqn of the module charged with the first difference at this row; None outside every module.

    An output was made by the module that returns it (its children's outputs came before and agreed), an input
    by the code around it: the enclosing module. Gradients mirror that: the gradient leaving through an input
    was made by the module itself, the one arriving at an output by the enclosing module's code after it. What
    an API call or a parameter shows is its module's.
    """
    words, side = rows.match.words, rows.match.target
    call = int(rows.target.call[row])
    if call < 0:
        side, call = rows.match.reference, int(rows.reference.call[row])
    owners, vocabulary = owner_codes(side, words)
    kind = words.kind[side.kind[call]]
    phase, slot = words.phase[rows.phase[row]], words.slot[rows.slot[row]]
    if kind == "module" and (phase, slot.partition(".")[0]) in (("forward", "input"), ("backward", "output")):
        parent = int(side.parent[call])
        return words.name[side.name[parent]] if parent >= 0 else None
    owner = int(owners[call])
    return vocabulary[owner] if owner >= 0 else None


def argument_differences(rows: Rows, row: int) -> list[str]:
    """Calls up to a row whose plain arguments differ: ``layers.2.attn · softmax: dim 1 against 2``."""
    calls = np.unique(rows.target.call[: row + 1][rows.paired[: row + 1]])
    if not len(calls):
        return []
    partner = rows.match.calls.reference_of[calls]
    mine = rows.target.tables.calls["arguments"].gather(calls).to_list()
    theirs = rows.reference.tables.calls["arguments"].gather(partner).to_list()
    said = []
    for call, a, b in zip(calls.tolist(), mine, theirs, strict=True):
        if a != b and a is not None and b is not None:
            differing = _differing(a, b)
            if differing:
                said.append(f"arguments differ at {_name(rows, call)}: {differing}")
    return said[-MAX_HINTS:]


def _differing(mine: str, theirs: str) -> str:
    try:
        a, b = json.loads(mine), json.loads(theirs)
    except ValueError:
        return f"{mine} against {theirs}"
    if not isinstance(a, dict) or not isinstance(b, dict):
        return f"{mine} against {theirs}"
    a, b = _under_one_name(a, b)
    shown = (
        k for k in dict.fromkeys([*a, *b]) if not k.rpartition(".")[2].startswith("_")
    )  # not _stacklevel
    keys = [k for k in shown if a.get(k) != b.get(k)]
    return ", ".join(f"{k} {a.get(k)!r} against {b.get(k)!r}" for k in keys)


def _under_one_name(mine: dict[str, Any], theirs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments that one side gives by position and the other by name, in their order, under the name."""
    only = [key for key in mine if key not in theirs], [key for key in theirs if key not in mine]
    placed = [[key.rpartition(".")[2].isdecimal() for key in keys] for keys in only]
    if len(only[0]) != len(only[1]) or not (
        (all(placed[0]) and not any(placed[1])) or (all(placed[1]) and not any(placed[0]))
    ):
        return mine, theirs
    names = dict(zip(*(only if placed[0][:1] == [True] else only[::-1]), strict=True))
    one, other = ({names.get(key, key): value for key, value in side.items()} for side in (mine, theirs))
    return one, other


def dtype_differences(rows: Rows, row: int) -> list[str]:
    """Records up to a row whose dtypes differ between the two runs, the nearest ones."""
    words = rows.match.words.dtype
    apart = rows.paired & (rows.target.dtype != rows.reference.dtype) & (rows.target.dtype >= 0)
    apart &= rows.reference.dtype >= 0
    said = []
    for at in np.flatnonzero(apart[: row + 1])[-MAX_HINTS:].tolist():
        mine, theirs = words[rows.target.dtype[at]], words[rows.reference.dtype[at]]
        slot = rows.match.words.slot[rows.slot[at]]
        said.append(
            f"dtypes differ at {_name(rows, int(rows.target.call[at]))} · {slot}: {mine} against {theirs}"
        )
    return said


def _name(rows: Rows, call: int) -> str:
    side, words = rows.match.target, rows.match.words
    owners, vocabulary = owner_codes(side, words)
    name, owner = words.name[side.name[call]], int(owners[call])
    if owner < 0 or vocabulary[owner] == name or name.startswith(vocabulary[owner] + "."):
        return name or "(root)"
    return f"{vocabulary[owner] or '(root)'} · {name}"
