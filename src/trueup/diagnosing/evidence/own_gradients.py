"""What calls of a weight's module make of its gradient, worked out from what they were given and sent back.

A weight that is used elsewhere too (a head that multiplies with the embedding's weight, a loss that reads
one) has the sum of all uses as its gradient. What a linear layer or an embedding contributes is known:

    linear      dW = sum over rows of g x^T,   db = sum over rows of g
    embedding   dW[i] = sum of g over the places where the id is i
"""

from __future__ import annotations

import numpy as np

from trueup.diagnosing.evidence.facts import OwnGradients
from trueup.diagnosing.evidence.places import PairedOrigin
from trueup.store import StepView
from trueup.types.arrays import Floats

_LINEAR, _EMBEDDING = "Linear", "Embedding"


def own_gradients(place: PairedOrigin) -> OwnGradients | None:
    """Of the origin's microbatch, where the origin is a weight's own gradient, the module is of a known class
    and values were kept."""
    reference, record, other = place.reference, place.target_record, place.reference_record
    if place.origin.slot != "local" or reference is None or record is None or other is None:
        return None
    target = place.target
    if target.kind[place.target_call] != "parameter":
        return None
    gradients = target.value(record), reference.value(other)
    if gradients[0] is None or gradients[1] is None or gradients[0].shape != gradients[1].shape:
        return None
    target_part = _contribution(target, place.target_call, record, gradients[0].shape, reference)
    reference_part = _contribution(reference, place.reference_call, other, gradients[1].shape, None)
    return (
        None
        if target_part is None or reference_part is None
        else OwnGradients(target=target_part, reference=reference_part)
    )


def _contribution(
    view: StepView, parameter: int, record: int, shape: tuple[int, ...], given: StepView | None
) -> Floats | None:
    """Summed over the calls of all modules that hold the weight; ``given``: the reference, whose values a
    replay put in."""
    fqn = view.name[parameter]
    table = view.facts.get("parameters") or ()
    names = [fqn, *(entry["fqn"] for entry in table if entry.get("tied_to") == fqn)]
    total = np.zeros(shape)
    found = False
    for name in names:
        module, _, attribute = name.rpartition(".")
        for call in view.named("module", module):
            if view.mode[call] != "train" or view.microbatch[call] != view.record_microbatch[record]:
                continue
            part = _of_call(view, call, attribute, shape, given)
            if part is None:
                return None
            total, found = total + part, True
    return total if found else None


def _of_call(
    view: StepView, call: int, attribute: str, shape: tuple[int, ...], given: StepView | None
) -> Floats | None:
    sent = _value(view, call, ("backward", "output.0"), given)
    taken = _value(view, call, ("forward", "input.0"), given)
    kind = view.type[call] or ""
    if sent is None or taken is None or not sent.ndim:
        return None
    rows = sent.reshape(-1, sent.shape[-1])
    if kind == _EMBEDDING and attribute == "weight" and rows.shape[1:] == shape[1:]:
        ids = taken.ravel().astype(np.int64)
        made = np.zeros(shape)
        if len(ids) != len(rows) or (len(ids) and not 0 <= ids.min() <= ids.max() < shape[0]):
            return None
        np.add.at(made, ids, rows)
        padding = _setting(view, call, "padding_idx")
        if isinstance(padding, int):
            made[padding] = 0.0
        return made
    if kind == _LINEAR and attribute == "bias" and rows.shape[1:] == shape:
        return np.asarray(rows.sum(axis=0))
    if kind == _LINEAR and attribute == "weight" and taken.ndim and taken.size == len(rows) * shape[-1]:
        return np.asarray(rows.T @ taken.reshape(len(rows), -1))
    return None


def _value(view: StepView, call: int, at: tuple[str, str], given: StepView | None) -> Floats | None:
    """What a call had there: in a replay the reference's, where that was put in."""
    record = view.record(call, *at)
    if record is None:
        return None
    if given is not None and record in view.holding_reference:
        partner = given.same_place(view, call)
        held = given.record(partner[0], *at) if partner else None
        return None if held is None else given.value(held)
    return view.value(record)


def _setting(view: StepView, call: int, name: str) -> object:
    settings = view.facts.get("settings") or {}
    return settings.get(view.name[call], {}).get(name)
