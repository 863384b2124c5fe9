"""Another run's gradients put in place of the program's own, at the end of a backward: what clipping and the
optimizer make of them is then judged alone."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

PLAN = "plan.json"


class GivenGradients:
    """Gradients of one rank, by the program's own names of its parameters; given in one step alone.

    ``folder`` holds ``plan.json`` (``microbatches``, ``loss_scale`` a rank) and one safetensors file a rank,
    as ``trueup.diagnosing.gradients`` writes them.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        from safetensors.torch import load_file

        plan = json.loads((folder / PLAN).read_text(encoding="utf-8"))
        held = plan["ranks"][min(rank, len(plan["ranks"]) - 1)]
        self._tensors: dict[str, Tensor] = load_file(folder / held["file"])
        self._absent: frozenset[str] = frozenset(held["absent"])
        self._microbatches: int = held["microbatches"]
        self._scale: float = held["loss_scale"] or 1.0
        self._recorder: Any = None
        self.replaced: dict[str, None] = {}
        self.free: dict[str, str] = {}
        """fqn -> why its own gradient stayed"""

    def due(self, recorder: Any, microbatch: int) -> bool:
        """Whether the backward that has just ended is the one: the last of the first captured step."""
        if self._recorder is None:
            self._recorder = recorder
        return self._recorder is recorder and microbatch + 1 >= self._microbatches

    def put(self, parameters: Iterable[tuple[Tensor, str]], *, scale: float) -> None:
        """Write the gradients, in units of the program's own loss scale."""
        with torch.no_grad():
            for parameter, fqn in parameters:
                why = self._put(parameter, fqn, scale / self._scale)
                if why is None:
                    self.replaced[fqn] = None
                    self.free.pop(fqn, None)
                else:
                    self.free[fqn] = why

    def _put(self, parameter: Tensor, fqn: str, factor: float) -> str | None:
        """None, or why the parameter's own gradient stays."""
        if fqn in self._absent:
            parameter.grad = None
            return None
        given = self._tensors.get(fqn)
        if given is None:
            return "the reference has no gradient of this parameter"
        own = parameter.grad
        if own is not None and own.layout is not torch.strided:
            return f"a {str(own.layout).removeprefix('torch.')} gradient"
        home = getattr(
            own if own is not None else parameter, "_local_tensor", own if own is not None else parameter
        )
        if home.shape != given.shape:
            return f"its shape is {list(home.shape)}, the reference's {list(given.shape)}"
        value = given if factor == 1.0 else given.double() * factor
        if own is not None:
            home.detach().copy_(value)
        elif home is parameter and parameter.requires_grad:
            parameter.grad = value.to(device=parameter.device, dtype=parameter.dtype)
        else:
            return "it has no gradient here to put the reference's in"
        return None

    def facts(self) -> dict[str, Any]:
        """What the trace says of it."""
        return {
            "replaced": list(self.replaced),
            "free": [{"fqn": k, "reason": v} for k, v in self.free.items()],
        }


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
