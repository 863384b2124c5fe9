"""A captured run as the tests ask about it, with its values as torch tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import trueup
from tests.adapters import reading
from tests.adapters.reading import Row


class Captured(reading.Captured):
    """One step of one rank: calls, and records with their call and summary beside them."""

    def values(self, record: Row) -> Tensor:
        """The stored values of a record."""
        stored = self.trace.tensor(self.step, self.rank, record["summary"])
        assert stored is not None, f"no values stored for {record['slot']}"
        flat = torch.from_numpy(stored.data.copy())
        dtype = getattr(torch, stored.dtype)
        return (
            flat.view(dtype).reshape(stored.shape)
            if stored.data.size
            else torch.empty(stored.shape, dtype=dtype)
        )


def capture(
    path: Path, program: Callable[[], Any], *, step: int = 0, failures: int = 0, **options: Any
) -> Captured:
    """Run ``program`` under capture and read one step of it; capture itself must have met no failure."""
    settings = {"level": "mix", "task": "tensor", "steps": "all", **options}
    with trueup.Tracer(path, **settings):
        program()
    captured = Captured(path, step)
    assert captured.facts["num_failures"] == failures, captured.facts["failures"]
    return captured


def train_once(model: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
    """One training step without an optimizer: forward, sum of what comes out, backward."""
    model.zero_grad()
    total(model(*args, **kwargs)).backward()


def total(value: Any) -> Tensor:
    """A scalar that depends on every differentiable tensor in ``value``, each element with its own weight."""
    tensors = [t for t in torch.utils._pytree.tree_leaves(value) if isinstance(t, Tensor) and t.requires_grad]
    terms = [(t.float() * torch.linspace(0.5, 1.5, t.numel()).reshape(t.shape)).sum() for t in tensors]
    return torch.stack(terms).sum()
