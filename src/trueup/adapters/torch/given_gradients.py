"""Given gradients written into ``.grad``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from trueup.adapters.given_gradients import BaseGivenGradients


class GivenGradients(BaseGivenGradients[Tensor]):
    """Gradients of one rank, given to torch's parameters."""

    @torch.no_grad()
    def _put(self, parameter: Tensor, given: NDArray[Any]) -> str | None:
        own = parameter.grad
        if own is not None and own.layout is not torch.strided:
            return f"a {str(own.layout).removeprefix('torch.')} gradient"
        home = getattr(
            own if own is not None else parameter, "_local_tensor", own if own is not None else parameter
        )
        if tuple(home.shape) != given.shape:
            return f"its shape is {list(home.shape)}, the reference's {list(given.shape)}"
        value = torch.from_numpy(given)
        if own is not None:
            home.detach().copy_(value)
        elif home is parameter and parameter.requires_grad:
            parameter.grad = value.to(device=parameter.device, dtype=parameter.dtype, copy=True)
        else:
            return "it has no gradient here to put the reference's in"
        return None

    def _take_away(self, parameter: Tensor) -> str | None:
        parameter.grad = None
        return None


def put_given(training: Any, parameters: Iterable[tuple[Tensor, str]]) -> None:
    """Put the gradients in place if this backward is the one they are for; loads them at the first."""
    engine = training.engine
    sink = engine.sink
    try:
        if training.given is None:
            training.given = GivenGradients(sink.options.gradients_from, _rank())
        if training.given.due(sink.recorder, sink.microbatch):
            scale = training.loss_scale
            training.given.put(parameters, scale=1.0 if scale is None else float(scale))
            engine.summariser.forget()
    except Exception as error:
        engine.failed("the gradients to be given", error)


def _rank() -> int:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return int(os.environ.get("RANK", 0))
