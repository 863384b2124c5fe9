"""Measures parameters and chosen outputs of a step that is watched, whether or not it is captured.

On the CPU one C pass a tensor; on other devices, or without the kernel, a few multi-tensor operations,
brought to the host when the step ends. Reads only: no hook is put on a module, nothing enters the graph.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from trueup.adapters import measures
from trueup.adapters.measures import Wanted
from trueup.adapters.measuring import BaseMeasures, never_raises, num_experts_of, top_k_of
from trueup.adapters.torch.memory import data_ptr, storage_of
from trueup.adapters.torch.stats import CODES
from trueup.adapters.torch.trees import split_result
from trueup.numerics._native import AVAILABLE, kernels
from trueup.numerics.summary import HAS_STATISTICS

if TYPE_CHECKING:
    from trueup.adapters.torch.engine import Engine


_graph_task = torch._C._current_graph_task_id

Named = Iterable[tuple[str, Tensor]]


class Measures(BaseMeasures[nn.Module, Tensor]):
    """The tables of one process."""

    def __init__(self, engine: Engine, wanted: Wanted) -> None:
        super().__init__(engine, wanted)
        self._before: dict[int, Tensor] = {}

    def outside_graph(self) -> AbstractContextManager[object]:
        """A context in which what is computed becomes no part of the program's graph."""
        return torch.no_grad()

    # -- modules ------------------------------------------

    @never_raises
    def root(self, module: nn.Module, *, training: bool) -> None:
        """A forward of a root begins."""
        self.choose(module, training=training)

    def widens(self, module: nn.Module) -> bool:
        """Whether it is a projection to at least as much as it gets."""
        return isinstance(module, nn.Linear) and module.out_features >= module.in_features

    @never_raises
    def output(self, module: nn.Module, result: object) -> None:
        """A watched module has returned."""
        known = self.known(module) if _graph_task() == -1 else None
        if known is None:
            return
        name, router = known
        tensors = [tensor for _, tensor in split_result(result)]
        load = load_of(module, tensors) if router else None
        if load is not None:
            self._all(measures.ROUTER, [(name, load)])
        if self.wanted.wants_module(name, self.engine.class_of(module)):
            self._activation(name, tensors)

    def _activation(self, name: str, tensors: list[Tensor]) -> None:
        found = next((t.detach() for t in tensors if t.is_floating_point()), None)
        if found is None or found.ndim == 0:
            return
        self._all(measures.ACTIVATION, [(name, found)])
        rows = found.numel() // max(found.shape[-1], 1)
        exact = found.is_cpu and AVAILABLE
        if exact and self.table(measures.ACTIVATION).view(name)["num_zero"] < rows:
            units = found.new_ones(found.shape[-1])  # too few zeros for a unit to be zero everywhere
        else:
            units = found.reshape(-1, found.shape[-1]).abs().amax(0)
        self._all(measures.UNITS, [(name, units)])

    # -- parameters ------------------------------------------

    @never_raises
    def local_gradient(self, fqn: str, gradient: Tensor) -> None:
        """A parameter's own gradient of this backward has come."""
        if self.on and self.wanted.local_gradients:
            with self.engine.lock:
                self._all(measures.LOCAL_GRADIENT, [(fqn, gradient)])

    @never_raises
    def gradients(self, parameters: Iterable[tuple[Tensor, str]]) -> None:
        """Backward is over."""
        if self.on and self.wanted.gradients:
            self._all(measures.GRADIENT, ((fqn, p.grad) for p, fqn in parameters if p.grad is not None))

    @never_raises
    def before_update(self, parameters: Iterable[tuple[Tensor, str]]) -> None:
        """An optimizer is about to step: a sample of each weight is kept."""
        if not (self.on and self.wanted.updates):
            return
        for parameter, _ in parameters:
            sample = _sample(parameter) if parameter.grad is not None else None
            if sample is None:
                continue
            kept = self._before.get(id(parameter))
            if kept is None or kept.shape != sample.shape or kept.dtype != sample.dtype:
                self._before[id(parameter)] = sample.clone()
            else:
                kept.copy_(sample)

    @never_raises
    def after_update(self, optimizer: torch.optim.Optimizer, updated: Iterable[tuple[Tensor, str]]) -> None:
        """An optimizer has stepped."""
        if not self.on:
            return
        wanted, parameters = self.wanted, [(p, fqn) for p, fqn in updated if p.requires_grad]
        if wanted.updates:
            self._updates(parameters)
        if wanted.weights:
            self._all(measures.WEIGHT, ((fqn, p) for p, fqn in parameters))
        for key in measures.MOMENTS if self.moments_due else ():
            states = ((fqn, optimizer.state.get(p, {}).get(key)) for p, fqn in parameters)
            self._all(key, ((fqn, state) for fqn, state in states if isinstance(state, Tensor)))

    def _updates(self, parameters: list[tuple[Tensor, str]]) -> None:
        changes, factors = [], {}
        for parameter, fqn in parameters:
            before = self._before.get(id(parameter))
            sample = _sample(parameter) if before is not None and parameter.grad is not None else None
            if before is None or sample is None or sample.shape != before.shape:
                continue
            torch.sub(sample, before, out=before)
            changes.append((fqn, before))
            factors[fqn] = (_local(parameter).numel() / max(before.numel(), 1)) ** 0.5
        self._all(measures.UPDATE, changes, factors)

    # -- tables ------------------------------------------

    def _all(self, kind: str, tensors: Named, factors: dict[str, float] | None = None) -> None:
        """Summarise tensors under their names; ``factors`` scale their norms."""
        table = self.table(kind)
        queued: list[tuple[str, Tensor]] = []
        for name, whole in tensors:
            tensor = _readable(whole)
            if tensor is None:
                continue
            if tensor.is_cpu and AVAILABLE:
                strides = None if tensor.is_contiguous() else tensor.stride()
                code = CODES[tensor.dtype][0]
                address = table.address(name)
                kernels.summarise(data_ptr(tensor), tensor.shape, strides, code, HAS_STATISTICS, address)
                if factors is not None:
                    table.view(name)["l2_norm"] *= factors[name]
            else:
                queued.append((name, tensor))
        for device in {tensor.device for _, tensor in queued}:
            self._queue(kind, [one for one in queued if one[1].device == device], factors or {})

    def _queue(self, kind: str, named: list[tuple[str, Tensor]], factors: dict[str, float]) -> None:
        """Two multi-tensor operations and a count of zeros, still on the device."""
        tensors = [tensor for _, tensor in named]
        norms = torch.stack(torch._foreach_norm(tensors, 2, dtype=torch.float32))
        largest = torch.stack(torch._foreach_norm(tensors, float("inf"), dtype=torch.float32))
        counted = kind in (measures.UPDATE, measures.UNITS, measures.ROUTER)
        zeros = [t.numel() - torch.count_nonzero(t) for t in tensors] if counted else []
        num_zero = torch.stack(zeros).to(torch.float32) if zeros else torch.where(largest == 0, 1.0, 0.0)
        norms = norms * norms.new_tensor([factors.get(name, 1.0) for name, _ in named])
        names, numels = [name for name, _ in named], [tensor.numel() for tensor in tensors]
        numbers = torch.stack([norms, largest, num_zero], dim=1)
        self._waiting.append((kind, names, numels, lambda: numbers.cpu().tolist()))


def _local(tensor: Tensor) -> Tensor:
    """The shard of a distributed tensor that lies here."""
    local: Tensor = getattr(tensor, "_local_tensor", tensor)
    return local


def _readable(tensor: Tensor) -> Tensor | None:
    """What can be measured of a tensor, None where it has no plain floating values here."""
    tensor = _local(tensor)
    if tensor.layout is not torch.strided or tensor.dtype not in CODES or not tensor.is_floating_point():
        return None
    if tensor.is_nested or tensor.numel() == 0 or tensor.device.type == "meta":
        return None
    if storage_of(tensor).nbytes() < tensor.element_size() * tensor.numel() and tensor.is_contiguous():
        return None  # given back by a wrapper that gathers parameters only while they are used
    return tensor.detach()


def _sample(parameter: Tensor) -> Tensor | None:
    """A view of the values an update is measured by."""
    tensor = _readable(parameter)
    if tensor is None or not tensor.is_contiguous():
        return None
    runs, length, distance = measures.sample_of(tensor.numel())
    return tensor.as_strided((runs, length), (distance, 1), tensor.storage_offset())


def load_of(module: nn.Module, outputs: list[Tensor]) -> Tensor | None:
    """Tokens of each expert over their mean, shape (E,); None where the outputs do not say.

    Told, in this order, by a map of tokens to experts (booleans, (T, E)), by the experts chosen (integers,
    (T, A)), or by the A largest of the scores ((T, E), as many as the module says, else the largest alone).
    """
    num_experts = num_experts_of(module)
    chosen = next((t for t in outputs if t.dtype is torch.bool and t.ndim >= 2), None)
    if chosen is not None:
        return _over_mean(chosen.reshape(-1, chosen.shape[-1]).sum(0))
    whole = (torch.int64, torch.int32)
    numbers = next((t for t in outputs if t.dtype in whole and t.ndim >= 2), None)
    if numbers is None:
        scores = next((t for t in outputs if t.is_floating_point() and t.ndim >= 2), None)
        if scores is None or (num_experts is not None and scores.shape[-1] != num_experts):
            return None
        num_experts = scores.shape[-1]
        top_k = min(top_k_of(module), num_experts)
        numbers = scores.detach().topk(top_k, dim=-1).indices
    if num_experts is None:
        weight = getattr(module, "weight", None)
        if not isinstance(weight, Tensor):
            return None
        num_experts = weight.shape[0]
    experts = torch.arange(num_experts, device=numbers.device)
    return _over_mean((numbers.reshape(-1, 1) == experts).sum(0))


def _over_mean(counts: Tensor) -> Tensor:
    wide = counts.to(torch.float32)
    return wide / wide.mean().clamp(min=1e-30)
