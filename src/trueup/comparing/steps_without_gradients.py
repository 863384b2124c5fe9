"""Optimizers that step without the gradients of their step: before backward, or after they are cleared.

Backward leaves a gradient in a weight, and the optimizer's step takes what is there. Where the one is
recorded and the other is not, while the other run's step takes it, the step had nothing to take.
"""

from __future__ import annotations

from collections.abc import Sequence

from trueup.comparing.pairing import StepPair, step_views
from trueup.store import TraceSource
from trueup.store.view import StepView
from trueup.types.codes import VerdictCode
from trueup.types.reason import Reason, reason


def stepped_without(
    target: TraceSource, reference: TraceSource, pairs: Sequence[StepPair], step: int
) -> Reason | None:
    """The side whose optimizer alone took no gradients in a step, where all it updates is so; ``before``:
    whether it stepped before there were any."""
    pair = next((one for one in pairs if one.step == step), None)
    if pair is None:
        return None
    views = step_views(target, reference, pair)
    for side, own, other in (("target", *views), ("reference", *views[::-1])):
        taken = set(other.parameters_with(*_TAKEN))
        found = {name: is_before for name, is_before in _without(own).items() if name in taken}
        if found and not set(own.parameters_with(*_TAKEN)) & taken:
            is_before = 2 * sum(found.values()) > len(found)  # one may have another, by autograd
            return reason(VerdictCode.STEPPED_WITHOUT, side=side, num=len(found), before=is_before)
    return None


_TAKEN, _UPDATED = ("param_grad", "clipped"), ("optimizer", "param")


def _without(view: StepView) -> dict[str, bool]:
    """Weights that an optimizer stepped over and backward left a gradient in, though it took none: whether
    every step of it came before."""
    found = {}
    for name in view.parameters_with(*_UPDATED):
        left = [
            record
            for slot in ("local", "accumulated")
            for record in view.parameter_records(name, "param_grad", slot)
        ]
        if left and not view.parameter_records(name, *_TAKEN):
            found[name] = max(view.parameter_records(name, *_UPDATED)) < min(left)
    return found
