"""Torch's part of the engine: how modules, parameters and tensors are asked, and what only torch has."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from operator import attrgetter
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from trueup.adapters.base import Sink
from trueup.adapters.called import Described
from trueup.adapters.engine import BaseEngine, ModuleFrame
from trueup.adapters.torch import long_run
from trueup.adapters.torch.content import content_total, unsigned
from trueup.adapters.torch.device.recording import is_recorded_as_graph
from trueup.adapters.torch.long_run import LongRun
from trueup.adapters.torch.memory import FREED, in_transform, is_freed
from trueup.adapters.torch.overflow import OverflowWatch
from trueup.adapters.torch.perturb import Perturbation
from trueup.adapters.torch.quiet import quiet
from trueup.adapters.torch.stats import Summariser
from trueup.adapters.torch.threads import Threads
from trueup.adapters.torch.training import Training
from trueup.adapters.torch.uninitialised import Uninitialised

if TYPE_CHECKING:
    from trueup.adapters.torch.forcing import Forcing
    from trueup.adapters.torch.measures import Measures

__all__ = ["TRANSPARENT", "Engine", "ModuleFrame", "ModuleTraits", "class_name", "has_parameters"]

TRANSPARENT = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "CheckpointWrapper")
"""wrappers that only forward: not sites themselves, so that a wrapped run has the sites of a bare one"""


class Engine(BaseEngine[nn.Module, Tensor]):
    """State behind the hooks of one process."""

    summariser: Summariser
    forcing: Forcing | None
    perturbation: Perturbation | None
    long_run: LongRun | None
    measures: Measures | None
    overflow: OverflowWatch | None
    MAX_DEPTH = 20_000
    """autograd nodes in a row that may be touched from Python; torch overflows the C stack when it frees
    some 45,000"""
    TRANSPARENT = TRANSPARENT
    hidden = (os.path.dirname(torch.__file__) + os.sep,)
    machinery = nn.Module._call_impl.__code__
    requires_grad = attrgetter("requires_grad")
    quiet = staticmethod(quiet)

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self.uninitialised = Uninitialised()
        self.enter_thread: Callable[[], None] = lambda: None
        self.leave_thread: Callable[[], None] = lambda: None
        """puts the function mode on this thread's stack where it is needed; set by ``api``"""
        self.kinds: dict[type[nn.Module], ModuleTraits] = {}
        """classes of modules called in the step under way"""
        self.depths: dict[int, int] = {}
        self.shallow = True
        self.collective_watch: Callable[[Engine], AbstractContextManager[object]] = lambda _: nullcontext()
        self.uncompiled = False
        """nothing that the program compiles is: what it wraps is seen"""
        self.training = Training(self)
        self.threads = Threads(self)
        self.adopt(sink)

    def adopt(self, sink: Sink) -> None:
        """Take the choices of the session (again, after a hot switch)."""
        super().adopt(sink)
        self.summariser = Summariser(sink, self.lock)
        self.take = self.summariser.take
        self.overflow = OverflowWatch(self) if sink.options.task.value == "overflow_check" else None
        self.draws_on = sink.options.with_draws

    def perturbed(self, seed: int) -> Perturbation:
        """Changes of weights and inputs by rounding, at random from ``seed``."""
        return Perturbation(seed)

    def let_go(self) -> None:
        """Change nothing of the program any more: the session is over."""
        super().let_go()
        long_run.end()

    def too_deep(self) -> None:
        """The graph is so deep that touching more of its nodes would crash torch when it frees them."""
        self.shallow = False
        self.sink.limit(
            f"a graph deeper than {self.MAX_DEPTH} nodes: "
            "gradients of API calls are left out from there to the step's end"
        )

    def end_step(self) -> None:
        """Forget everything tied to the step under way."""
        self.kinds = {}
        self.depths = {}
        self.shallow = True
        self.training.end_step()
        super().end_step()

    def is_of_the_run(self) -> bool:
        """Whether what this thread trains is part of the run."""
        return not self.threads.beside

    def watch_collectives(self) -> AbstractContextManager[object]:
        """A context for one backward that records the collectives in it; set by ``collectives``."""
        return self.collective_watch(self)

    # -- how torch's things are asked ------------------------------------------

    def modules_below(self, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        """The module itself and every module below it, without what wrappers put into names."""
        shifts = _shifts(module)
        return ((_plain(name, shifts), child) for name, child in module.named_modules())

    def parameters_below(self, module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
        """Every parameter by name, tied ones under each of their names."""
        shifts = _shifts(module)
        return ((_plain(n, shifts), p) for n, p in module.named_parameters(remove_duplicate=False))

    def fingerprint(self, module: nn.Module) -> list[int]:
        """Identities of all modules and parameters below, in a fixed order."""
        return _fingerprint(module)

    def bare(self, module: nn.Module) -> nn.Module:
        """The model inside a wrapper that only forwards."""
        return module.get_submodule("module") if class_name(module) in TRANSPARENT else module

    def class_of(self, module: nn.Module) -> str:
        """Name of the class the program wrote."""
        return class_name(module)

    def table_row(self, parameter: Tensor) -> dict[str, object] | None:
        """shape, dtype, numel and requires_grad of a parameter; None for one that has no values yet."""
        if is_lazy(parameter):
            return None
        return {
            "shape": list(parameter.shape),
            "dtype": str(parameter.dtype).removeprefix("torch."),
            "numel": parameter.numel(),
            "requires_grad": parameter.requires_grad,
            **_parallel(parameter),
        }

    def content_hash(self, parameter: Tensor) -> int | Callable[[], int] | None:
        """Hash of the values in any order, or what waits for it; None for what has no plain values of its own
        here."""
        on_device = not (parameter.is_cpu or parameter.is_meta)
        total = None if on_device and is_recorded_as_graph(parameter.device) else content_total(parameter)
        if total is None or total.is_cpu:
            return None if total is None else unsigned(total)
        arrived = self.summariser.number(total)
        return lambda: unsigned(arrived())

    def sum_of(self, first: Tensor, second: Tensor) -> Tensor:
        """Sum of two gradients, outside any graph; nothing where all is recorded to run later."""
        if not (first.is_cpu or first.is_meta) and is_recorded_as_graph(first.device):
            return first
        with torch.no_grad():
            return first + second

    def described(self, tensor: Tensor) -> Described:
        """Dtype and shape."""
        return str(tensor.dtype).removeprefix("torch."), [int(size) for size in tensor.shape]

    def why_without_values(self, tensor: Tensor) -> str | None:
        """A reason to be expected why a tensor cannot be summarised."""
        if in_transform(tensor):
            return "inside a function transform (vmap, grad): no values of its own"
        if is_freed(tensor):
            return FREED
        return None


_MEGATRON = ("partition_dim", "partition_stride", "sequence_parallel", "allreduce")


def _parallel(parameter: Tensor) -> dict[str, object]:
    """What Megatron's layers say of their parameters: attributes on them."""
    if not getattr(parameter, "tensor_model_parallel", False):
        return {}
    found = {name: getattr(parameter, name) for name in _MEGATRON if hasattr(parameter, name)}
    return {"parallel": {name: int(value) for name, value in found.items()}}


def has_parameters(module: nn.Module) -> bool:
    """Whether the module owns anything trainable or at least a parameter."""
    return next(module.parameters(), None) is not None


def class_name(module: nn.Module) -> str:
    """Name of the class the program wrote, not of the one a wrapper made of it."""
    kind = type(module)
    if kind.__name__ == "OptimizedModule":
        return class_name(module.get_submodule("_orig_mod"))
    if isinstance(module, torch.jit.ScriptModule):
        return str(getattr(module, "original_name", kind.__name__))
    return _name_of_class(kind)


def _name_of_class(kind: type[nn.Module]) -> str:
    if (
        kind.__name__.startswith("FSDP")
        and len(kind.__mro__) > 2
        and kind.__mro__[1].__name__ == "FSDPModule"
    ):
        return kind.__mro__[2].__name__
    return kind.__name__


class ModuleTraits:
    """What the class of a module says of it, asked at every call."""

    __slots__ = ("name", "opaque", "transparent")

    def __init__(self, kind: type[nn.Module]) -> None:
        self.transparent = kind.__name__ in TRANSPARENT
        self.opaque = issubclass(kind, torch.jit.ScriptModule) or kind.__name__ == "OptimizedModule"
        self.name = None if self.opaque else _name_of_class(kind)
        """what the program calls it; None where every module has a name of its own"""


_WRAPPED = {"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"}
"""parts of names that wrappers put in"""


def _plain(name: str, shifts: Mapping[str, int]) -> str:
    for layers, shift in shifts.items():
        if name.startswith(layers):
            number, dot, rest = name[len(layers) :].partition(".")
            name = f"{layers}{int(number) + shift}{dot}{rest}"
    if "_mod" not in name:
        return name
    return ".".join(part for part in name.split(".") if part not in _WRAPPED)


def _shifts(root: nn.Module) -> dict[str, int]:
    """Lists of layers of which a pipeline stage has some -> what is added to their numbers.

    Megatron's layers say theirs, counted from 1, in ``layer_number``.
    """
    found: dict[str, int] = {}
    for name, module in root.named_modules():
        if isinstance(module, nn.ModuleList) and len(module):
            numbers = [getattr(layer, "layer_number", None) for layer in module]
            first = numbers[0] if isinstance(numbers[0], int) else 1
            if first > 1 and numbers == list(range(first, first + len(numbers))):
                found[f"{name}."] = first - 1
    return found


def _fingerprint(root: nn.Module) -> list[int]:
    """Identities of all modules and parameters below, in a fixed order."""
    found: list[int] = []
    seen: set[int] = set()
    todo = [root]
    while todo:
        module = todo.pop()
        if id(module) in seen:
            found.append(-1)
            continue
        seen.add(id(module))
        found.append(id(module))
        found.extend(map(id, module._parameters.values()))
        todo.extend(child for child in module._modules.values() if child is not None)
    return found
