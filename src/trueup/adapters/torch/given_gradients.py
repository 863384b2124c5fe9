"""Given gradients written into ``.grad``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trueup.adapters.given_gradients import BaseGivenGradients, shape_differs
from trueup.adapters.torch.world import place
from trueup.types.arrays import Array
from trueup.types.codes import LeftFree
from trueup.types.reason import Reason, reason

if TYPE_CHECKING:
    from trueup.adapters.torch.training import Training


class GivenGradients(BaseGivenGradients[Tensor]):
    """Gradients of one rank, given to torch's parameters."""

    @torch.no_grad()
    def _put(self, parameter: Tensor, given: Array) -> Reason | None:
        own = parameter.grad
        if own is not None and own.layout is not torch.strided:
            return reason(LeftFree.GRADIENT_LAYOUT, layout=str(own.layout).removeprefix("torch."))
        home = getattr(
            own if own is not None else parameter, "_local_tensor", own if own is not None else parameter
        )
        if tuple(home.shape) != given.shape:
            return shape_differs(home.shape, given)
        value = torch.from_numpy(given)
        if own is not None:
            home.detach().copy_(value)
        elif home is parameter and parameter.requires_grad:
            parameter.grad = value.to(device=parameter.device, dtype=parameter.dtype, copy=True)
        else:
            return reason(LeftFree.GRADIENT_NOT_IN_TARGET)
        return None

    def _take_away(self, parameter: Tensor) -> Reason | None:
        parameter.grad = None
        return None


def put_given(training: Training, parameters: Iterable[tuple[Tensor, str]]) -> None:
    """Put the gradients in place if this backward is the one they are for; loads them at the first."""
    engine = training.engine
    sink = engine.sink
    try:
        if training.given is None:
            training.given = GivenGradients(sink.options.gradients_from, place()[0])
        if training.given.due(sink.recorder, sink.microbatch):
            scale = training.loss_scale
            training.given.put(parameters, scale=1.0 if scale is None else float(scale))
            engine.summariser.forget()
    except Exception as error:
        engine.failed("the gradients to be given", error)
