"""Who made a tensor: the module whose own code, outside its children, produced it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trueup.comparing.rows import Rows
from trueup.comparing.sites import owner_codes
from trueup.types.codes import EvidenceCode, VerdictCode
from trueup.types.reason import Json, Reason, reason

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """A plain argument of a call that differs."""

    name: str
    target: str | None
    """None: it is not given"""
    reference: str | None

    @property
    def evidence(self) -> Reason:
        """As a part of what is said of its call."""
        values = {"target": self.target or "None", "reference": self.reference or "None"}
        return reason(EvidenceCode.ARGUMENT_DIFFERS, name=self.name, **values)


def argument_differences(rows: Rows, row: int) -> dict[int, list[Argument]]:
    """Calls up to a row whose plain arguments differ, the last ones: target's call -> its arguments."""
    calls = np.unique(rows.target.call[: row + 1][rows.paired[: row + 1]])
    if not len(calls):
        return {}
    partner = rows.match.calls.reference_of[calls]
    target = rows.target.tables.calls["arguments"].gather(calls).to_list()
    reference = rows.reference.tables.calls["arguments"].gather(partner).to_list()
    found = {}
    for call, a, b in zip(calls.tolist(), target, reference, strict=True):
        if a != b and a is not None and b is not None:
            differing = _differing(a, b)
            if differing:
                found[call] = differing
    return dict(list(found.items())[-MAX_HINTS:])


def arguments_at(rows: Rows, call: int, arguments: list[Argument]) -> Reason:
    """The arguments that differ at a call: ``layers.2.attn · softmax: dim 1 (target) vs 2 (reference)``."""
    parts = [argument.evidence for argument in arguments]
    return reason(EvidenceCode.ARGUMENTS_DIFFER, *parts, site=_name(rows, call))


def argument_of_owner(
    rows: Rows, row: int, owner: str | None, found: Mapping[int, list[Argument]]
) -> Reason | None:
    """The headline where the record's own call, or one that the module charged with it makes, has an argument
    that differs: then that is the cause. Of several calls the last one counts; outside every module only the
    record's own call."""
    side, words = rows.match.target, rows.match.words
    owners, vocabulary = owner_codes(side, words)
    for call in sorted(found, reverse=True):
        if call != rows.target.call[row] and (
            owner is None or owners[call] < 0 or vocabulary[owners[call]] != owner
        ):
            continue
        known = [one for one in found[call] if one.target is not None and one.reference is not None]
        if not known:
            continue
        of_module = words.kind[side.kind[call]] == "module" and side.type[call] >= 0
        what = words.type[side.type[call]] if of_module else words.name[side.name[call]]
        first = known[0]
        return reason(
            VerdictCode.ARGUMENT_DIFFERS,
            what=".".join(what.split(".")[-2:]),
            name=first.name,
            module=owner,
            target=str(first.target),
            reference=str(first.reference),
        )
    return None


def _differing(target: str, reference: str) -> list[Argument]:
    try:
        a, b = json.loads(target), json.loads(reference)
    except ValueError:
        return [Argument(name="", target=target, reference=reference)]
    if not isinstance(a, dict) or not isinstance(b, dict):
        return [Argument(name="", target=target, reference=reference)]
    a, b = _under_one_name(a, b)
    shown = (
        k for k in dict.fromkeys([*a, *b]) if not k.rpartition(".")[2].startswith("_")
    )  # not _stacklevel
    return [
        Argument(
            name=k,
            target=repr(a[k]) if k in a else None,
            reference=repr(b[k]) if k in b else None,
        )
        for k in shown
        if a.get(k) != b.get(k)
    ]


def _under_one_name(
    target: dict[str, Json], reference: dict[str, Json]
) -> tuple[dict[str, Json], dict[str, Json]]:
    """Arguments that one side gives by position and the other by name, in their order, under the name."""
    only = [key for key in target if key not in reference], [key for key in reference if key not in target]
    placed = [[key.rpartition(".")[2].isdecimal() for key in keys] for keys in only]
    if len(only[0]) != len(only[1]) or not (
        (all(placed[0]) and not any(placed[1])) or (all(placed[1]) and not any(placed[0]))
    ):
        return target, reference
    names = dict(zip(*(only if placed[0][:1] == [True] else only[::-1]), strict=True))
    one, other = ({names.get(key, key): value for key, value in side.items()} for side in (target, reference))
    return one, other


def dtype_differences(rows: Rows, row: int) -> list[Reason]:
    """Records up to a row whose dtypes differ between the two runs, the nearest ones."""
    words = rows.match.words.dtype
    apart = rows.paired & (rows.target.dtype != rows.reference.dtype) & (rows.target.dtype >= 0)
    apart &= rows.reference.dtype >= 0
    found = []
    for at in np.flatnonzero(apart[: row + 1])[-MAX_HINTS:].tolist():
        target, reference = (words[half.dtype[at]] for half in (rows.target, rows.reference))
        site = f"{_name(rows, int(rows.target.call[at]))} · {rows.match.words.slot[rows.slot[at]]}"
        found.append(reason(EvidenceCode.DTYPES_DIFFER, site=site, target=target, reference=reference))
    return found


def _name(rows: Rows, call: int) -> str:
    side, words = rows.match.target, rows.match.words
    owners, vocabulary = owner_codes(side, words)
    name, owner = words.name[side.name[call]], int(owners[call])
    if owner < 0 or vocabulary[owner] == name or name.startswith(vocabulary[owner] + "."):
        return name or "(root)"
    return f"{vocabulary[owner] or '(root)'} · {name}"
