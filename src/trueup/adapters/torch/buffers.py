"""Buffers of the models that train: what each holds when capture first sees it, and what a step leaves in
them, such as running statistics, which training itself does not read.

Kernels that write running statistics do not count up the version of the tensor, so that every floating buffer
is looked at.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterator
from types import FunctionType
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from trueup.adapters.torch.memory import in_transform

if TYPE_CHECKING:
    from trueup.adapters.torch.engine import Engine


class Buffers:
    """Buffers of one process by name; keeps neither them nor their modules alive."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.table: dict[str, dict[str, object]] = {}
        """fqn -> shape, dtype and digest as first seen, and the numbers of a short one"""
        self.modes: dict[str, bool] = {}
        """fqn of a module whose code asks for its mode -> whether it was in training mode, as first seen"""
        self.evaluated: dict[str, bool] = {}
        """the same of models as first called without gradients"""
        self._asking: dict[type[nn.Module], bool] = {}
        self._roots: list[weakref.ref[nn.Module]] = []
        self._evaluated: list[weakref.ref[nn.Module]] = []

    def root(self, module: nn.Module) -> None:
        """A training forward of a root begins."""
        if any(known() is module for known in self._roots):
            return
        self._roots.append(weakref.ref(module))
        self._note_modes(module, self.modes)
        for fqn, buffer in self._below(module):
            if fqn not in self.table:
                self.table[fqn] = self._entry(fqn, buffer)

    def _entry(self, fqn: str, buffer: Tensor) -> dict[str, object]:
        digest = self._engine.summariser.digest([buffer])
        entry: dict[str, object] = {
            "fqn": fqn,
            "shape": list(buffer.shape),
            "dtype": str(buffer.dtype).removeprefix("torch."),
            "content": None if digest is None else f"{digest:016x}",
        }
        is_short = 0 < buffer.numel() <= MOST_KEPT and buffer.dim() == 1 and buffer.is_floating_point()
        if is_short and digest is not None and type(buffer) is Tensor:
            entry["values"] = buffer.detach().double().tolist()
        return entry

    def norms(self) -> tuple[list[str], Tensor] | None:
        """Names of the floating buffers after an update; for each its l2 norm and ``weighted_sum``, (2, N) on
        the device of the first. None where there are none."""
        found = {
            fqn: buffer.detach()
            for root in self._roots
            if (module := root()) is not None
            for fqn, buffer in self._below(module)
            if buffer.is_floating_point()
        }
        if not found:
            return None
        norms = [torch.linalg.vector_norm(buffer, dtype=torch.float32) for buffer in found.values()]
        both = [*norms, *map(weighted_sum, found.values())]
        return list(found), torch.stack([one.to(both[0].device) for one in both]).view(2, -1)

    def evaluation_root(self, module: nn.Module) -> None:
        """A forward of a root without gradients begins."""
        if any(known() is module for known in self._evaluated):
            return
        self._evaluated.append(weakref.ref(module))
        self._note_modes(module, self.evaluated)

    def modes_of_all(self) -> dict[str, bool]:
        """Modes in training, and those of models that are never called with gradients."""
        return self.evaluated | self.modes

    def _note_modes(self, module: nn.Module, modes: dict[str, bool]) -> None:
        root = self._engine.root_name(module)
        for name, child in self._engine.modules_below(self._engine.bare(module)):
            kind = type(child)
            if kind not in self._asking:
                self._asking[kind] = _asks_for_mode(kind)
            if self._asking[kind]:
                modes.setdefault(".".join(part for part in (root, name) if part), child.training)

    def end_step(self) -> None:
        """The step under way is over."""
        self._roots = []

    def _below(self, module: nn.Module) -> Iterator[tuple[str, Tensor]]:
        root = self._engine.root_name(module)
        for name, child in self._engine.modules_below(self._engine.bare(module)):
            for own, buffer in child._buffers.items():
                if buffer is not None and _has_values(buffer):
                    yield ".".join(part for part in (root, name, own) if part), buffer


MOST_KEPT = 1024
"""numbers of a buffer that are kept with it: slopes of heads, frequencies, what routers add to choose"""


def weighted_sum(buffer: Tensor) -> Tensor:
    """sum_i cos(i) b_i of the first ``MOST_SUMMED`` elements: what has one norm with another sign or in
    another order has not one such sum."""
    first = buffer.reshape(-1)[:MOST_SUMMED].float()
    return first @ torch.arange(len(first), dtype=torch.float32, device=first.device).cos()


MOST_SUMMED = 65536
"""elements: what a step may spend on a large buffer, a mask or a cache"""


def _has_values(buffer: Tensor) -> bool:
    return buffer.layout is torch.strided and not buffer.is_meta and not in_transform(buffer)


def _asks_for_mode(kind: type[nn.Module]) -> bool:
    """Whether what a module computes depends on ``training``: dropout, batch norms, layers that call them."""
    forward = inspect.getattr_static(kind, "forward", None)  # that of a scripted module is no function
    function = inspect.unwrap(forward) if isinstance(forward, FunctionType) else None
    return isinstance(function, FunctionType) and "training" in function.__code__.co_names
