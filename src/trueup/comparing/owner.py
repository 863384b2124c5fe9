"""Who made a tensor: the module whose own code, outside its children, produced it."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import polars as pl

from trueup.comparing.rows import Half, StepRows
from trueup.comparing.sites import owner_codes
from trueup.matching.arguments import A_TENSOR, NOT_GIVEN, ArgumentPair, NotGiven, arguments_apart
from trueup.matching.codes import Codes
from trueup.matching.operands import OPERANDS, commutes_by_name
from trueup.types.codes import EvidenceCode, VerdictCode
from trueup.types.reason import Json, Reason, reason
from trueup.types.site import shown_name

MAX_HINTS = 4


def owner_of_row(rows: StepRows, row: int) -> str | None:
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


def owner_around(rows: StepRows, row: int) -> str | None:
    """``owner_of_row``, but of a gradient that arrives at an output: modules that return this output as it
    is did not make it; the first module around that does more with it did."""
    owner, half = owner_of_row(rows, row), rows.target
    sent = rows.phase_is("backward") & rows.slot_starts("output") & rows.kind_is("module") & rows.paired
    if not sent[row]:
        return owner
    side, words = rows.match.target, rows.match.words
    made = rows.phase_is("forward") & rows.slot_starts("output") & (half.summary >= 0)
    digests, call = half.column("digest"), int(half.call[row])
    same = made & (half.call == call) & (rows.slot == rows.slot[row])
    own = [digests[at] for at in np.flatnonzero(same).tolist()]
    while own and own[0] is not None and (parent := int(side.parent[call])) >= 0:
        if all(digests[at] != own[0] for at in np.flatnonzero(made & (half.call == parent)).tolist()):
            break
        call, above = parent, int(side.parent[parent])
        owner = words.name[side.name[above]] if above >= 0 else None
    return owner


def argument_differences(rows: StepRows, row: int) -> dict[int, list[ArgumentPair]]:
    """Calls up to a row whose plain arguments differ, the last ones: target's call -> its arguments."""
    calls = np.unique(rows.target.call[: row + 1][rows.paired[: row + 1]])
    if not len(calls):
        return {}
    partner = rows.match.calls.reference_of[calls]
    given = [_given(half, at) for half, at in ((rows.target, calls), (rows.reference, partner))]
    names, kinds = rows.match.words.name, rows.match.words.kind
    found = {}
    for call, other, target, reference in zip(calls.tolist(), partner.tolist(), *given, strict=True):
        if target == reference or target is None or reference is None:
            continue
        name, others = names[rows.match.target.name[call]], names[rows.match.reference.name[other]]
        apart = list(arguments_apart(name, json.loads(target), json.loads(reference), others))
        apart = [full for pair in apart if (full := _with_tensors(pair, rows, (call, other), name))]
        if kinds[rows.match.target.kind[call]] == "loss":  # read off the graph, as far as that tells
            apart = [pair for pair in apart if pair.is_known]
        if apart:
            found[call] = apart
    return dict(list(found.items())[-MAX_HINTS:])


def _with_tensors(
    pair: ArgumentPair, rows: StepRows, calls: tuple[int, int], name: str
) -> ArgumentPair | None:
    """The pair, with what is no plain argument on one side because it is a tensor there: with the number
    where that is one number, also repeated. None where it is the other side's number, as far as float32
    tells."""
    if pair.is_known:
        return pair
    own = rows.slot_is(pair.name) & rows.phase_is("forward")
    if commutes_by_name(name):  # the tensor that has a number for its counterpart stands in either place
        own = (
            (rows.slot_is(OPERANDS[0]) | rows.slot_is(OPERANDS[1])) & rows.phase_is("forward") & ~rows.paired
        )
    sides = zip((pair.target, pair.reference), (rows.target, rows.reference), calls, strict=True)
    target, reference = (
        _tensor_at(half, np.flatnonzero(own & (half.call == call) & (half.record >= 0)))
        if value is NOT_GIVEN
        else value
        for value, half, call in sides
    )
    full = ArgumentPair(name=pair.name, target=target, reference=reference)
    return None if full.is_known and _is_one_number(full) else full


def _tensor_at(half: Half, rows: Codes) -> Json | NotGiven:
    """What stands at one of these rows in a number's place: the number, where a tensor holds one alone."""
    if not len(rows):
        return NOT_GIVEN
    low, high = (float(half.statistics[name][rows[-1]]) for name in ("minimum", "maximum"))
    if low != high or not np.isfinite(low):
        return A_TENSOR
    short = float(str(np.float32(low)))  # as it is written out
    return short if np.float32(low) == low else low


def _is_one_number(pair: ArgumentPair) -> bool:
    """Whether the two are one number in float32, in which a number beside a coarser tensor is read."""
    both = (pair.target, pair.reference)
    numbers = [float(one) for one in both if isinstance(one, (int, float)) and not isinstance(one, bool)]
    return len(numbers) == 2 and np.float32(numbers[0]) == np.float32(numbers[1])


def _given(half: Half, calls: Codes) -> list[str | None]:
    """Plain arguments of calls as JSON, ``{}`` where there were none; None where no one looked for them: a
    trace that keeps those of no call of a kind."""
    table = half.tables.calls.select(pl.col("kind").cast(pl.String), pl.col("arguments").cast(pl.String))
    kept = set(table.filter(pl.col("arguments").is_not_null())["kind"].unique())
    part = table[calls]
    return [
        text if text is not None else "{}" if kind in kept else None
        for kind, text in zip(part["kind"], part["arguments"], strict=True)
    ]


def arguments_at(rows: StepRows, call: int, arguments: list[ArgumentPair]) -> Reason:
    """The arguments that differ at a call: ``layers.2.attn · softmax: dim 1 (target) vs 2 (reference)``."""
    parts = [
        reason(
            EvidenceCode.ARGUMENT_DIFFERS,
            name=one.name,
            target=repr(one.target),
            reference=repr(one.reference),
        )
        for one in arguments
    ]
    return reason(EvidenceCode.ARGUMENTS_DIFFER, *parts, site=_name(rows, call))


def argument_of_owner(
    rows: StepRows, row: int, owner: str | None, found: Mapping[int, list[ArgumentPair]]
) -> Reason | None:
    """The headline where the record's own call, or one that the module charged with it makes, has an argument
    that differs: then that is the cause. Of several calls the last one counts; outside every module only the
    record's own call."""
    side, words = rows.match.target, rows.match.words
    owners, vocabulary = owner_codes(side, words)
    is_given = words.phase[rows.phase[row]] == "forward" and words.slot[rows.slot[row]].startswith("input")
    for call in sorted(found, reverse=True):
        if call != rows.target.call[row] and (
            owner is None or owners[call] < 0 or vocabulary[owners[call]] != owner
        ):
            continue
        is_own = call == rows.target.call[row]  # a number in a tensor's place may be that tensor
        known = [one for one in found[call] if one.is_known or (is_own and one.has_tensor)]
        if is_own and is_given:  # what a call is given comes before its arguments
            known = [one for one in known if one.has_tensor]
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
            target=repr(first.target),
            reference=repr(first.reference),
        )
    return None


def class_of_owner(rows: StepRows, row: int, owner: str | None) -> Reason | None:
    """Both classes of the module charged with a record of forward or backward, where they are the only two
    of all paired modules that differ: another implementation has other classes everywhere. Not of the model
    itself, whose class a program names as it likes."""
    words, target, reference = rows.match.words, rows.match.target, rows.match.reference
    if not owner or words.phase[rows.phase[row]] not in ("forward", "loss", "backward"):
        return None
    module = words.kind.index("module") if "module" in words.kind else -2
    calls = np.flatnonzero((target.kind == module) & (rows.match.calls.reference_of >= 0))
    partner = rows.match.calls.reference_of[calls]
    types = np.stack([target.type[calls], reference.type[partner]], axis=1)
    apart = types[(types[:, 0] != types[:, 1]) & (types >= 0).all(axis=1)]
    pairs = {(words.type[t], words.type[r]) for t, r in apart.tolist()}
    if len(pairs) != 1:
        return None
    own = [words.name[target.name[call]] == owner for call in calls.tolist()]
    of_owner = types[own]
    if not len(of_owner) or (words.type[of_owner[0, 0]], words.type[of_owner[0, 1]]) not in pairs:
        return None
    classes = dict(zip(("target", "reference"), pairs.pop(), strict=True))
    return reason(VerdictCode.MODULE_CLASS_DIFFERS, module=owner, **classes)


def dtype_differences(rows: StepRows, row: int) -> list[Reason]:
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


def _name(rows: StepRows, call: int) -> str:
    side, words = rows.match.target, rows.match.words
    owners, vocabulary = owner_codes(side, words)
    name, owner = words.name[side.name[call]], int(owners[call])
    if owner < 0 or vocabulary[owner] == name or name.startswith(vocabulary[owner] + "."):
        return shown_name(name)
    return f"{shown_name(vocabulary[owner])} · {shown_name(name)}"
