"""Given gradients written into the tensors that a gradient function returns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mindspore import Tensor

from trueup.adapters.given_gradients import BaseGivenGradients, shape_differs
from trueup.adapters.mindspore.world import place
from trueup.types.arrays import Array
from trueup.types.codes import LeftFree
from trueup.types.reason import Reason, reason

if TYPE_CHECKING:
    from trueup.adapters.mindspore.training import Training


class GivenGradients(BaseGivenGradients[Tensor]):
    """Gradients of one rank, given to what a gradient function found."""

    def _put(self, parameter: Tensor, given: Array) -> Reason | None:
        if tuple(parameter.shape) != given.shape:
            return shape_differs(parameter.shape, given)
        parameter.assign_value(Tensor(given).astype(parameter.dtype))
        return None

    def _take_away(self, parameter: Tensor) -> Reason | None:
        return reason(LeftFree.GRADIENT_ALWAYS_THERE)


def put_given(training: Training, found: Iterable[tuple[Tensor, str]]) -> None:
    """Put the gradients in place if this backward is the one they are for; loads them at the first.

    A program that sums over microbatches does so by itself, out of sight: it keeps its own.
    """
    sink = training.engine.sink
    if training.given is None:
        training.given = GivenGradients(sink.options.gradients_from, place()[0])
    if training.given.due(sink.recorder, sink.microbatch):
        if sink.microbatch > 0:
            sink.limit("the program sums its gradients over microbatches by itself: it kept its own")
            return
        training.given.put(found, scale=training.loss_scale or 1.0)
