"""Changes a run by as much as rounding does, so that reruns of one program show how far rounding carries.

With ``CaptureOptions.perturb`` a seed, every floating parameter of a root is changed once, at its first
training forward, and every floating input of a root at every forward:

    x (1 + u s),   u the unit roundoff of the dtype the run computes in,
                   s = +1 or -1 in one of EVERY elements at random, else 0

That dtype is autocast's where autocast is on, that which FSDP2 gathers weights and casts inputs to where it
mixes precisions, else the tensor's own, and never finer than the tensor's own.
x (1 + u) is the next number of its dtype, so an element moves by a whole step or not at all. Rounding is an
error of 1/12 of a step squared on average; moving one of twelve elements by a step is as much. Moved
everywhere, the weights alone would be three times noisier than rounding is, and hide as much.

The signs come from generators of their own, one a tensor, seeded from the seed and the tensor's name: the
run's random state is untouched, and ranks that hold copies of a parameter change them alike.
"""

from __future__ import annotations

import hashlib
import weakref
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from trueup.adapters.names import ParameterReference, parameter_references
from trueup.adapters.torch.quiet import quiet
from trueup.numerics.hidden import HIDDEN

if TYPE_CHECKING:
    from trueup.adapters.torch.engine import Engine

EVERY = 12
BLOCK = 1 << 22
"""elements changed at a time, in float64"""


class Perturbation:
    """What has been changed so far in one session of this process."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._roots: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._parameters: dict[int, ParameterReference[Tensor]] = {}
        self._num_forwards = 0

    def enter(
        self, engine: Engine, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        """A top-level call begins: the arguments it is to get. Never raises."""
        try:
            with quiet():
                return self._enter(engine, module, args, kwargs)
        except Exception as error:
            engine.failed("perturbation", error)
            return args, kwargs

    def _enter(
        self, engine: Engine, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        parameters = dict(module.named_parameters())
        if not parameters:
            return args, kwargs
        training = torch.is_grad_enabled() and any(p.requires_grad for p in parameters.values())
        if training and module not in self._roots:
            self._roots.add(module)
            references: dict[int, ParameterReference[Tensor]] = parameter_references(
                module.modules(), engine.OWN_PARAMETERS
            )
            computed_in = dtypes_of_weights(module)
            for name, parameter in parameters.items():
                known = self._parameters.get(id(parameter))
                if known is None or known() is not parameter:
                    self._change_parameter(name, parameter, computed_in.get(id(parameter)))
            self._parameters |= references
            engine.summariser.forget()
        self._num_forwards += 1
        position = iter(range(1 << 30))
        cast_to = _mixed_with(module)

        def changed(tensor: Tensor) -> Tensor:
            return self._changed_input(tensor, f"input {self._num_forwards} {next(position)}", cast_to)

        mapped: tuple[tuple[object, ...], dict[str, object]] = tree_map_only(Tensor, changed, (args, kwargs))
        return mapped

    def _change_parameter(self, name: str, parameter: Tensor, computed_in: torch.dtype | None) -> None:
        if torch.nn.parameter.is_lazy(parameter):
            return
        local = getattr(parameter, "_local_tensor", parameter)
        if not _can_be_changed(local):
            return
        change_in_place(local.data, self._generator(name, local), roundoff(local, computed_in))

    def _changed_input(self, tensor: Tensor, name: str, cast_to: torch.dtype | None) -> Tensor:
        if isinstance(tensor, nn.Parameter) or not _can_be_changed(tensor):
            return tensor
        copy = tensor.detach().clone()
        change_in_place(copy, self._generator(name, copy), roundoff(copy, cast_to))
        if not (tensor.requires_grad and torch.is_grad_enabled()):
            return copy
        return tensor + (copy - tensor.detach())

    def _generator(self, name: str, tensor: Tensor) -> torch.Generator:
        drawn = hashlib.sha256(f"{self.seed} {name}".encode()).digest()
        return torch.Generator(tensor.device).manual_seed(int.from_bytes(drawn[:7], "little"))


def dtypes_of_weights(module: nn.Module) -> dict[int, torch.dtype]:
    """Identity of each weight that FSDP2 gathers in a dtype of its own -> that dtype; of modules in one
    another the innermost decides."""
    return {
        id(parameter): dtype
        for inner in module.modules()
        if (dtype := _mixed_with(inner)) is not None
        for parameter in inner.parameters()
    }


def _mixed_with(module: nn.Module) -> torch.dtype | None:
    """The dtype that FSDP2 has a module compute in, where it is told one."""
    ask = getattr(module, "_get_fsdp_state", None)
    policy = None if ask is None else getattr(ask(), "_mp_policy", None)
    dtype = getattr(policy, "param_dtype", None)
    return dtype if isinstance(dtype, torch.dtype) and dtype.is_floating_point else None


def roundoff(tensor: Tensor, computed_in: torch.dtype | None = None) -> float:
    """Unit roundoff of the dtype computations with this tensor round to: ``computed_in``, where that is
    known and coarser than others that are."""
    own = torch.finfo(tensor.dtype).eps / 2
    if computed_in is not None:
        own = max(own, torch.finfo(computed_in).eps / 2)
    kind = tensor.device.type
    if not torch.is_autocast_enabled(kind):
        return own
    return max(own, torch.finfo(torch.get_autocast_dtype(kind)).eps / 2)


def change_in_place(tensor: Tensor, generator: torch.Generator, size: float) -> None:
    """``x (1 + size s)`` in some elements, rounded to the tensor's dtype."""
    flat = tensor.view(-1) if tensor.is_contiguous() else None
    blocks = [tensor] if flat is None else list(flat.split(BLOCK))
    for block in blocks:
        drawn = torch.randint(0, 2 * EVERY, block.shape, generator=generator, device=block.device)
        factor = 1.0 + size * ((drawn == 1).double() - (drawn == 0).double())
        wide = block.double()
        block.copy_(torch.where(wide <= HIDDEN, wide, wide * factor))  # a mask stays one


def _can_be_changed(tensor: Tensor) -> bool:
    return (
        tensor.is_floating_point()
        and tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and tensor.numel() > 0
        and not tensor.is_nested
        and tensor.dtype.itemsize > 1
    )
