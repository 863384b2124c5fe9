"""The calls of a step that make its loss, and the modules that return it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trueup.store import StepView
from trueup.types.trace import reduction_word


def loss_records(view: StepView, slot: str) -> list[tuple[int, int]]:
    """(microbatch, record) of a slot of the loss calls, in the order of the forwards they belong to."""
    losses = set(view.calls_of_kind("loss"))
    found = [
        (view.record_microbatch[record], record)
        for record, call in enumerate(view.record_call)
        if call in losses and view.slot[record].partition(".")[0] == slot
    ]
    forward = {call: min(one.through) for one in view.passes for call in one.losses}
    if len(found) < 2 or not forward:
        return found
    return sorted(found, key=lambda one: forward.get(view.record_call[one[1]], len(view.kind)))


def loss_arguments(view: StepView) -> Mapping[str, Any]:
    """What the first loss call with any was given besides tensors."""
    return next((recorded for call in view.calls_of_kind("loss") if (recorded := view.arguments(call))), {})


def reduction_of(arguments: Mapping[str, Any]) -> str | None:
    """How a loss function sums: ``none``, ``mean`` or ``sum``; None where it was not told."""
    recorded = arguments.get("reduction")
    return None if recorded is None else str(reduction_word(recorded))


def criteria(view: StepView) -> set[str]:
    """Modules other than the root that return the loss."""
    return _returning_loss(view) - {""}


def root_returns_loss(view: StepView) -> bool:
    """Whether the outermost module does."""
    return "" in _returning_loss(view)


def _returning_loss(view: StepView) -> set[str]:
    losses = {view.content[record] for _, record in loss_records(view, "value")} - {None}
    return {
        view.name[call]
        for record, call in enumerate(view.record_call)
        if view.content[record] in losses
        and view.kind[call] == "module"
        and view.phase[record] == "forward"
        and view.slot[record].startswith("output")
    }


def around_loss(view: StepView, microbatch: int) -> list[tuple[str, str, int]]:
    """(module, slot, record) of the inputs of modules that return the loss, and of the inputs and outputs of
    the root, in one microbatch."""
    chosen = _returning_loss(view) | {""}
    return [
        (view.name[call], view.slot[record], record)
        for record, call in enumerate(view.record_call)
        if view.phase[record] == "forward"
        and view.kind[call] == "module"
        and view.mode[call] == "train"
        and view.record_microbatch[record] == microbatch
        and view.name[call] in chosen
    ]
