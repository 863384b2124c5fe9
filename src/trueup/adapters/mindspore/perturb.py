"""Changes a run by as much as rounding does, as ``adapters.torch.perturb`` says, for MindSpore.

With ``CaptureOptions.perturb`` a seed, every floating parameter of a root is changed once, at its first
training forward, and every floating input of a root at every forward: x (1 + u s), u the unit roundoff of its
dtype, s +1 or -1 in one of ``EVERY`` elements at random, else 0. The signs come from numpy generators of
their own.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import Parameter, Tensor, nn

from trueup.adapters.mindspore.stats import dtype_name

if TYPE_CHECKING:
    from trueup.adapters.mindspore.engine import Engine

EVERY = 12
_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}


class Perturbation:
    """What has been changed so far in one session of this process."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._parameters: dict[int, Parameter] = {}
        self._num_forwards = 0

    def enter(
        self, engine: Engine, cell: nn.Cell, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        """A top-level call begins: the arguments it is to get. Never raises."""
        try:
            with engine.quiet():
                return self._enter(engine, cell, args, kwargs)
        except Exception as error:
            engine.failed("perturbation", error)
            return args, kwargs

    def _enter(
        self, engine: Engine, cell: nn.Cell, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        parameters = list(engine.parameters_below(cell))
        if not parameters:
            return args, kwargs
        if engine.training.with_gradients:
            for name, parameter in parameters:
                if id(parameter) not in self._parameters:
                    self._parameters[id(parameter)] = parameter
                    changed = self._changed(parameter, name)
                    if changed is not None:
                        parameter.set_data(changed)
        self._num_forwards += 1
        position = iter(range(1 << 30))

        def one(value: Any) -> object:
            if isinstance(value, Tensor) and not isinstance(value, Parameter):
                return self._changed_input(value, f"input {self._num_forwards} {next(position)}")
            if type(value) in (tuple, list):
                return type(value)(map(one, value))
            return {key: one(inner) for key, inner in value.items()} if type(value) is dict else value

        return tuple(map(one, args)), {key: one(value) for key, value in kwargs.items()}

    def _changed_input(self, tensor: Tensor, name: str) -> Tensor:
        changed = self._changed(tensor, name)
        if changed is None:
            return tensor
        if tensor._grad_node is None:
            return changed
        return tensor + (changed - Tensor(tensor.asnumpy()))

    def _changed(self, tensor: Tensor, name: str) -> Tensor | None:
        size = _ROUNDOFF.get(dtype_name(tensor.dtype))
        if size is None or tensor.size == 0:
            return None
        drawn = hashlib.sha256(f"{self.seed} {name}".encode()).digest()
        random = np.random.default_rng(int.from_bytes(drawn[:8], "little"))
        signs = random.integers(0, 2 * EVERY, tuple(tensor.shape))
        factor = 1.0 + size * ((signs == 1).astype(np.float64) - (signs == 0))
        return Tensor(tensor.asnumpy().astype(np.float64) * factor).astype(tensor.dtype)
