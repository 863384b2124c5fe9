"""Steps of a training that hold no update of the weights: what a program does there is not seen."""

from __future__ import annotations

from collections.abc import Sequence

from trueup.store.reader import TraceSource
from trueup.store.view import WEIGHT, StepView, view_if_there


def hold_no_update(source: TraceSource, steps: Sequence[int], rank: int) -> bool:
    """Whether several steps have gradients and none an update, and the weights stay as they are.

    Where a program clears its gradients itself at each microbatch, several of what it calls a step are one. A
    run that never has gradients is no training, and one step alone may be all that was asked for.
    """
    views = [view_if_there(source, step, rank) for step in sorted(set(steps))]
    found = [view for view in views if view is not None]
    if len(found) < 2 or any("optimizer" in set(view.phase) for view in found):
        return False
    return all("param_grad" in set(view.phase) for view in found) and _are_same(found[0], found[-1])


def _are_same(first: StepView, last: StepView) -> bool:
    """Whether all weights have the same known bits."""
    digests = [
        tuple(view.digest(view.parameter(name, *WEIGHT)) for view in (first, last))
        for name in first.parameters
    ]
    return bool(digests) and all(a is not None and a == b for a, b in digests)
