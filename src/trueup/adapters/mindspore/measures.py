"""Measures parameters and chosen outputs of a step that is watched, whether or not it is captured.

On the CPU one C pass a tensor; on other devices, or without the kernel, reductions there, brought to the host
when the step ends. Reads only.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from numpy.typing import NDArray

from trueup.adapters import measures
from trueup.adapters.measures import Wanted
from trueup.adapters.measuring import BaseMeasures, never_raises, num_experts_of, top_k_of
from trueup.adapters.mindspore.stats import dtype_name, is_on_host
from trueup.adapters.mindspore.trees import split_result
from trueup.numerics._native import AVAILABLE, kernels
from trueup.numerics.dtypes import DTYPES, Dtype, float64_from_array
from trueup.numerics.summary import HAS_STATISTICS
from trueup.types.arrays import Array

if TYPE_CHECKING:
    from trueup.adapters.mindspore.engine import Engine

Values: TypeAlias = Any
"""a Tensor, or float64 values that lie here"""


class Measures(BaseMeasures[nn.Cell, Tensor]):
    """The tables of one process."""

    engine: Engine
    SCALED = (measures.LOCAL_GRADIENT,)

    def __init__(self, engine: Engine, wanted: Wanted) -> None:
        super().__init__(engine, wanted)
        self._order: list[tuple[str, tuple[int, ...]]] = []
        """name and shape of the gradients that came last"""
        self._unclipped = False
        """the step's gradients were measured before they were clipped"""
        self._before: dict[int, Values] = {}
        self._places: dict[int, Tensor] = {}
        """number of values of a weight -> which of them are its sample, where it lies on a device"""

    # -- cells ------------------------------------------

    @never_raises
    def root(self, cell: nn.Cell, *, training: bool) -> None:
        """A forward of a root begins."""
        self.choose(cell, training=training)

    def widens(self, module: nn.Cell) -> bool:
        """Whether it is a projection to at least as much as it gets."""
        shape: tuple[int, ...] = getattr(getattr(module, "weight", None), "shape", ())
        return len(shape) == 2 and shape[0] >= shape[1]

    @never_raises
    def output(self, cell: nn.Cell, result: object) -> None:
        """A watched cell has returned."""
        known = None if self.engine.training.in_backward else self.known(cell)
        if known is None:
            return
        name, router = known
        tensors = [tensor for _, tensor in split_result(result)]
        load = _load_of(cell, tensors) if router else None
        if load is not None:
            self._all(measures.ROUTER, [(name, load)])
        if self.wanted.wants_module(name, self.engine.class_of(cell)):
            self._activation(name, tensors)

    def _activation(self, name: str, tensors: list[Tensor]) -> None:
        found = next((t for t in tensors if t.is_floating_point()), None)
        if found is None or found.ndim == 0:
            return
        self._all(measures.ACTIVATION, [(name, found)])
        width = found.shape[-1]
        if _is_readable_here(found) and (
            self.table(measures.ACTIVATION).view(name)["num_zero"] < found.size // max(width, 1)
        ):
            units: Values = np.ones(width)  # too few zeros for a unit to be zero everywhere
        else:
            with mindspore._no_grad():
                units = mint.amax(mint.abs(found.reshape(-1, width)), 0)
        self._all(measures.UNITS, [(name, units)])

    # -- parameters ------------------------------------------

    @never_raises
    def local_gradients(self, named: Sequence[tuple[str, Tensor]]) -> None:
        """A gradient function has returned."""
        self._order, self._unclipped = [(fqn, gradient.shape) for fqn, gradient in named], False
        if self.on and self.wanted.local_gradients:
            self._all(measures.LOCAL_GRADIENT, named)

    @never_raises
    def clipping(self, gradients: Sequence[Tensor]) -> None:
        """Gradients are about to be clipped; they are the step's where they are as many and alike."""
        if self.on and self.wanted.gradients and [g.shape for g in gradients] == [s for _, s in self._order]:
            names = [fqn for fqn, _ in self._order]
            self._all(measures.GRADIENT, zip(names, gradients, strict=True))
            self._unclipped = True

    @never_raises
    def before_update(self, named: Sequence[tuple[Parameter, str]], gradients: Sequence[Tensor]) -> None:
        """An optimizer is about to be called with gradients: they, and a sample of each weight, are kept."""
        if not self.on:
            return
        if self.wanted.gradients and not self._unclipped:
            both = zip(named, gradients, strict=False)
            self._all(measures.GRADIENT, ((n, g) for (_, n), g in both if isinstance(g, Tensor)))
        for parameter, _ in named if self.wanted.updates else ():
            sample = self._sample(parameter)
            if sample is not None:
                self._before[id(parameter)] = sample

    @never_raises
    def after_update(
        self, named: Sequence[tuple[Parameter, str]], states: Iterable[tuple[str, Sequence[Tensor]]]
    ) -> None:
        """An optimizer has returned. ``states``: name and one tensor a parameter."""
        if not self.on:
            return
        if self.wanted.updates:
            self._updates(named)
        if self.wanted.weights:
            self._all(measures.WEIGHT, ((fqn, parameter) for parameter, fqn in named))
        for key, values in states if self.moments_due else ():
            if key in measures.MOMENTS:
                self._all(key, zip((fqn for _, fqn in named), values, strict=True))

    def _updates(self, named: Sequence[tuple[Parameter, str]]) -> None:
        changes: list[tuple[str, Values]] = []
        factors: dict[str, float] = {}
        for parameter, fqn in named:
            before, after = self._before.pop(id(parameter), None), self._sample(parameter)
            if before is not None and after is not None:
                with mindspore._no_grad():
                    changes.append((fqn, after - before))
                factors[fqn] = (parameter.size / after.size) ** 0.5
        self._all(measures.UPDATE, changes, factors)

    def _sample(self, parameter: Parameter) -> Values:
        """The values an update is measured by; a copy. None where they cannot be read."""
        entry = _entry(parameter)
        if entry is None or not parameter.is_contiguous():
            return None
        runs, length, distance = measures.sample_of(parameter.size)
        if _is_readable_here(parameter):
            bytes_ = (ctypes.c_uint8 * (parameter.size * entry.itemsize)).from_address(parameter.data_ptr())
            values = np.frombuffer(bytes_, entry.storage)
            strides = (distance * entry.itemsize, entry.itemsize)
            sample = np.lib.stride_tricks.as_strided(values, (runs, length), strides)
            return float64_from_array(np.ascontiguousarray(sample), entry.name)
        places = self._places.get(parameter.size)
        if places is None:
            numbers = np.arange(runs)[:, None] * distance + np.arange(length)
            places = self._places[parameter.size] = Tensor(numbers.reshape(-1))
        with mindspore._no_grad():
            return mint.gather(parameter.reshape(-1), 0, places).astype(mindspore.float32)

    # -- tables ------------------------------------------

    def _all(
        self, kind: str, tensors: Iterable[tuple[str, Values]], factors: dict[str, float] | None = None
    ) -> None:
        """Summarise values under their names; ``factors`` scale their norms."""
        table = self.table(kind)
        queued: list[tuple[str, Tensor]] = []
        for name, values in tensors:
            if not isinstance(values, np.ndarray):
                entry = _entry(values)
                if entry is None:
                    continue
                if not _is_readable_here(values):
                    queued.append((name, values))
                    continue
                strides = None if values.is_contiguous() else tuple(values.stride())
                pointer, shape = values.data_ptr(), tuple(values.shape)
            else:
                entry, strides, pointer, shape = DTYPES["float64"], None, values.ctypes.data, values.shape
            kernels.summarise(pointer, shape, strides, entry.code, HAS_STATISTICS, table.address(name))
            if factors is not None:
                table.view(name)["l2_norm"] *= factors[name]
        if queued:
            self._queue(kind, queued, factors or {})

    def _queue(self, kind: str, named: list[tuple[str, Tensor]], factors: dict[str, float]) -> None:
        """Norm, largest magnitude and zeros of each, still on the device."""
        numbers = []
        with mindspore._no_grad():
            for name, tensor in named:
                wide = tensor.astype(mindspore.float32)
                norm = mint.sqrt(mint.sum(wide * wide)) * factors.get(name, 1.0)
                zeros = mint.sum((tensor == 0).astype(mindspore.float32))
                numbers.append(ops.stack([norm, mint.max(mint.abs(wide)), zeros]))
            names, numels = [name for name, _ in named], [int(tensor.size) for _, tensor in named]
            together = ops.stack(numbers)
            self._waiting.append((kind, names, numels, lambda: together.asnumpy().tolist()))


def _entry(tensor: Tensor) -> Dtype | None:
    """What can be measured: floating values."""
    entry = DTYPES.get(dtype_name(tensor.dtype))
    return entry if entry is not None and entry.kind == "float" and tensor.size else None


def _is_readable_here(tensor: Tensor) -> bool:
    return AVAILABLE and is_on_host(tensor)


def _load_of(router: nn.Cell, outputs: list[Tensor]) -> NDArray[np.float64] | None:
    """Tokens of each expert over their mean, shape (E,), as ``adapters.torch.router_load`` tells them."""
    num_experts = num_experts_of(router)
    wide = [tensor for tensor in outputs if tensor.ndim >= 2]
    chosen = next((t for t in wide if t.dtype == mindspore.bool_), None)
    if chosen is not None:
        return _over_mean(chosen.asnumpy().reshape(-1, chosen.shape[-1]).sum(0))
    whole = (mindspore.int64, mindspore.int32)
    numbers = next((t.asnumpy() for t in wide if t.dtype in whole), None)
    if numbers is None:
        scores = next((t for t in wide if t.is_floating_point()), None)
        if scores is None or (num_experts is not None and scores.shape[-1] != num_experts):
            return None
        num_experts = scores.shape[-1]
        ranked = np.argsort(-scores.astype(mindspore.float32).asnumpy(), axis=-1, kind="stable")
        numbers = ranked[..., : min(top_k_of(router), num_experts)]
    if num_experts is None:
        weight = getattr(router, "weight", None)
        if not isinstance(weight, Tensor):
            return None
        num_experts = weight.shape[0]
    return _over_mean(np.bincount(numbers.reshape(-1), minlength=num_experts))


def _over_mean(counts: Array) -> NDArray[np.float64]:
    return counts / max(float(counts.mean()), 1e-30)
