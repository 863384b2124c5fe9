"""A captured run as the tests ask about it, with its values as numpy arrays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn

import trueup
from tests.adapters import reading
from tests.adapters.reading import Row
from trueup.numerics.dtypes import DTYPES

ms.set_device("CPU")


class Captured(reading.Captured):
    """One step of one rank: calls, and records with their call and summary beside them."""

    def values(self, record: Row) -> np.ndarray[Any, Any]:
        """The stored values of a record; bfloat16 as its bits."""
        stored = self.trace.tensor(self.step, self.rank, record["summary"])
        assert stored is not None, f"no values stored for {record['slot']}"
        return stored.data.copy().view(DTYPES[stored.dtype].storage).reshape(stored.shape)


def capture(
    path: Path, program: Callable[[], Any], *, step: int = 0, failures: int = 0, **options: Any
) -> Captured:
    """Run ``program`` under capture and read one step of it; capture itself must have met no failure."""
    settings = {"level": "mix", "task": "tensor", "steps": "all", "framework": "mindspore", **options}
    with trueup.Tracer(path, **settings):
        program()
    captured = Captured(path, step)
    assert captured.facts["num_failures"] == failures, captured.facts["failures"]
    return captured


def total(value: Any) -> Tensor:
    """A scalar that depends on every tensor in ``value``, each element with its own weight."""
    tensors = list(_tensors(value))
    result = None
    for tensor in tensors:
        weights = Tensor(np.linspace(0.5, 1.5, tensor.size, dtype=np.float32).reshape(tensor.shape))
        term = mint.sum(tensor.astype(ms.float32) * weights)
        result = term if result is None else result + term
    assert result is not None
    return result


def gradients_of(cell: nn.Cell, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
    """Gradients of ``total(cell(...))`` by the cell's parameters: one training step without an optimizer."""
    weights = cell.trainable_params()
    found = ms.value_and_grad(lambda: total(cell(*args, **kwargs)), None, weights)()[1]
    return found if isinstance(found, tuple) else (found,)


def _tensors(value: Any) -> Any:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _tensors(inner)
    elif isinstance(value, (tuple, list)):
        for inner in value:
            yield from _tensors(inner)
