"""How a replay reads, compares and overwrites torch's tensors (``adapters.forcing``)."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sized
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils._pytree import tree_map

from trueup.adapters.base import GraphNode, Slotted
from trueup.adapters.forcing import BaseForcing, shape_differs
from trueup.adapters.forcing_plan import ForcedRecord, HostValues
from trueup.adapters.torch.gradients import consumers_of
from trueup.adapters.torch.memory import bytes_of
from trueup.adapters.torch.quiet import quiet
from trueup.adapters.torch.trial import TrialRun
from trueup.adapters.trial import Trial
from trueup.types.codes import LeftFree
from trueup.types.reason import Reason, reason

if TYPE_CHECKING:
    from trueup.adapters.torch.engine import Engine

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_LOOKED_FOR = (
    *("AmaxBackward0", "AminBackward0", "AminmaxBackward0", "MaxBackward1", "MinBackward1"),
    *("MedianBackward0", "NanmedianBackward0"),
)
"""backwards that compare what went in with what came out; those of ``max(dim)`` keep the places"""
FUNCTION_TRANSFORM = Reason(LeftFree.FUNCTION_TRANSFORM)


class Forcing(BaseForcing[nn.Module, Tensor]):
    """A replay in a torch program."""

    engine: Engine

    def __init__(self, engine: Engine, folder: Path) -> None:
        super().__init__(engine, folder)
        trial = Trial.read(folder)
        self.trial = None if trial is None else TrialRun(engine, trial)
        self._fixed: set[int] = set()
        """where parameters and buffers live"""
        self._nodes: dict[int, object] = {}
        """keeps nodes that are told apart by identity alive"""

    def end_step(self) -> None:
        """Forget everything tied to the step under way."""
        super().end_step()
        self._nodes = {}

    def facts(self) -> dict[str, object]:
        """With the modules in which a supposed cause was tried."""
        tried = {} if self.trial is None else {"tried": sorted(self.trial.tried)}
        return {**super().facts(), **tried}

    # -- values ------------------------------------------

    def local(self, tensor: Tensor) -> Tensor:
        """The local shard of a distributed tensor."""
        local: Tensor = getattr(tensor, "_local_tensor", tensor)
        return local

    def incomparable(self, local: Tensor, entry: ForcedRecord) -> Reason | None:
        """Why the values cannot be compared at all; None: they can."""
        if torch._C._functorch.is_functorch_wrapped_tensor(local):
            return FUNCTION_TRANSFORM
        if local.layout is not torch.strided or local.is_nested or local.is_quantized:
            return reason(LeftFree.LAYOUT, layout=str(local.layout).removeprefix("torch."))
        if tuple(local.shape) != entry.shape:
            return shape_differs(local.shape, entry)
        return None

    def dtype_name(self, local: Tensor) -> str:
        """The dtype's common name."""
        return str(local.dtype).removeprefix("torch.")

    def host_values(self, local: Tensor) -> HostValues:
        """The program's values, row-major on the host."""
        data = bytes_of(local.detach().resolve_conj().resolve_neg().cpu().contiguous())
        return HostValues(data=data, dtype=self.dtype_name(local), shape=tuple(local.shape))

    def wanted(self, local: Tensor, expected: HostValues) -> Tensor:
        """The reference's values in the tensor's dtype, on its device."""
        return self.given(local, expected).to(local.dtype)

    def given(self, local: Tensor, expected: HostValues) -> Tensor:
        """The reference's values in their own dtype, where ``local`` lives."""
        dtype = getattr(torch, expected.dtype)
        values = torch.from_numpy(expected.data).view(dtype).reshape(expected.shape)
        return values.to(device=local.device)

    def same_bits(self, local: Tensor, wanted: Tensor) -> bool:
        """Whether two tensors of one dtype, shape and device hold the same bits."""
        if local.is_conj() or local.is_neg():
            local = local.resolve_conj().resolve_neg()
        if local.is_complex():
            local, wanted = torch.view_as_real(local), torch.view_as_real(wanted.resolve_conj())
        kind = _BITS[local.element_size()]
        return torch.equal(local.detach().view(kind), wanted.detach().view(kind))

    def written_copy(self, tensor: Tensor, wanted: Tensor) -> Tensor:
        """Another tensor like this one, holding ``wanted``."""
        copy = tensor.detach().clone()
        self.local(copy).copy_(wanted)
        return copy

    def write(self, tensor: Tensor, wanted: Tensor) -> None:
        """Put ``wanted`` into the tensor's memory: graph, aliasing and version counter stay."""
        with torch.no_grad(), quiet():
            self.local(tensor.data).copy_(wanted)
        self.engine.summariser.forget()

    # -- what a tensor is ------------------------------------------

    def note_fixed(self, module: nn.Module) -> None:
        """Remember where parameters and buffers of a root live."""
        tensors = [self.local(t) for t in (*module.parameters(), *module.buffers())]
        self._fixed |= {t.untyped_storage().data_ptr() for t in tensors if t.layout is torch.strided}
        self._fixed.discard(0)

    def is_fixed(self, tensor: Tensor) -> bool:
        """Whether it is a parameter or buffer, or a view of one."""
        return isinstance(tensor, nn.Parameter) or tensor.untyped_storage().data_ptr() in self._fixed

    def is_looked_for(self, tensor: Tensor) -> bool:
        """A largest or smallest element, or a view of one: ``amax``, ``max()``, a norm of order infinity."""
        made = [one.grad_fn for one in (tensor, tensor._base) if one is not None]
        return any(
            node.name() in _LOOKED_FOR or getattr(node, "_saved_ord", None) in (math.inf, -math.inf)
            for node in made
            if node is not None
        )

    def is_foreign(self, tensor: Tensor) -> bool:
        """Made by no operation of this step, as far as its graph tells."""
        return tensor.grad_fn is None and not tensor.requires_grad

    def with_leaves_replaced(
        self, args: tuple[object, ...], kwargs: dict[str, object], chosen: Callable[[object], object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        """The arguments with what is chosen for each of their leaves, asked in their order."""
        new: tuple[tuple[object, ...], dict[str, object]] = tree_map(chosen, (args, kwargs))
        return new

    # -- gradients ------------------------------------------

    def no_graph(self) -> AbstractContextManager[object]:
        """A context in which operations make no graph."""
        return torch.no_grad()

    def has_gradient(self, tensor: Tensor) -> bool:
        """Whether a gradient will arrive at an output."""
        return tensor.requires_grad and tensor.grad_fn is not None

    def made_by(self, tensor: Tensor) -> tuple[Node, int]:
        """The backward node of the operation that made a tensor, and which of its outputs it is."""
        assert tensor.grad_fn is not None  # asked of what has a gradient alone
        return tensor.grad_fn, tensor.output_nr

    def identity(self, node: GraphNode) -> int:
        """A number that tells nodes apart for as long as the step lives."""
        self._nodes[id(node)] = node
        return id(node)

    def hooks_of(self, tensor: Tensor) -> Sized | None:
        """Hooks the program itself has put on a tensor."""
        hooks: Sized | None = tensor._backward_hooks
        return hooks

    def hook_first(self, tensor: Tensor, hook: Callable[[Tensor], Tensor | None]) -> int:
        """Put a hook in front of those; returns how many there are then."""
        handle = tensor.register_hook(hook)
        hooks = cast("OrderedDict[int, object]", tensor._backward_hooks)
        hooks.move_to_end(handle.id, last=False)
        return len(hooks)

    def uses(self, tensor: Tensor, results: Slotted[Tensor]) -> bool:
        """Whether one of the other results was made from the tensor."""
        node = tensor.grad_fn
        assert node is not None
        others = [t.grad_fn for _, t in results if t.requires_grad and t.grad_fn is not node]
        edge = ("output", node, tensor.output_nr, None)
        return bool(others) and bool(consumers_of([edge], others, node._sequence_nr() + 1))

    def norm(self, gradient: Tensor) -> float:
        """L2 norm."""
        return float(torch.linalg.vector_norm(gradient.detach().float()))

    def zeros_like(self, gradient: Tensor) -> Tensor:
        """Zeros of its shape and dtype."""
        return torch.zeros_like(gradient)

    def less(self, wanted: Tensor, passed: Tensor, like: Tensor) -> Tensor:
        """``wanted - passed``, as exactly as ``like``'s dtype holds it."""
        if like.is_floating_point() and type(like) is Tensor:
            return (wanted.double() - passed.double()).to(like.dtype)
        return wanted - passed


def forcing_from_options(engine: Engine) -> Forcing | None:
    """What a replay needs, where the session's options ask for one."""
    folder = engine.sink.options.replay
    return None if folder is None else Forcing(engine, Path(folder))
