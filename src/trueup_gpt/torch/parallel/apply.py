"""Acts on the layout table: gives each process its part of every parameter, moves tensors at the calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trueup_gpt.config import Config, ModelConfig
from trueup_gpt.initial import initial_value
from trueup_gpt.parallel.calls import matching, moved_around
from trueup_gpt.parallel.layout import Layout
from trueup_gpt.parallel.places import ParameterShare, place_of
from trueup_gpt.torch.parallel.mesh import Mesh
from trueup_gpt.torch.parallel.moving import move
from trueup_gpt.torch.parallel.rules import RULES


def apply_layout(model: nn.Module, layout: Layout, mesh: Mesh) -> dict[str, ParameterShare]:
    """Cut the parameters of a model on the meta device, and wrap the calls; returns the places."""
    places = {
        fqn: place_of(fqn, parameter.shape, layout, mesh) for fqn, parameter in model.named_parameters()
    }
    _replace(model, lambda fqn, old: torch.empty(places[fqn].size, dtype=old.dtype, device="meta"))
    for call in layout.calls:
        if mesh.size(call.axis) > 1:
            for owner, name in matching(model.named_modules(), call.pattern, forward="forward"):
                inner = getattr(owner, name)
                if call.rule is not None:
                    inner = RULES[call.rule](owner, inner, mesh, call.axis)
                wrapped = moved_around(inner, call, move, mesh.group(call.axis), Tensor)
                object.__setattr__(owner, name, wrapped)
    return places


def fill(
    model: nn.Module, places: Mapping[str, ParameterShare], config: Config, device: torch.device
) -> None:
    """Make the parameters real on ``device``, with their initial values."""

    def value(fqn: str, old: nn.Parameter) -> Tensor:
        whole = initial_tensor(fqn, places[fqn].shape, config.model, config.training.seed)
        return places[fqn].cut(whole).clone(memory_format=torch.contiguous_format).to(device)

    _replace(model, value)


def initial_tensor(fqn: str, shape: Sequence[int], config: ModelConfig, seed: int) -> Tensor:
    """The whole parameter's initial value on the CPU, in params dtype."""
    value = initial_value(fqn, shape, config, seed, _draw)
    return torch.from_numpy(value).to(getattr(torch, config.params_dtype))


def _draw(shape: tuple[int, ...], std: float, seed: int) -> NDArray[np.float32]:
    generator = torch.Generator().manual_seed(seed)
    return torch.empty(shape).normal_(0.0, std, generator=generator).numpy()


def _replace(model: nn.Module, value: Callable[[str, nn.Parameter], Tensor]) -> None:
    """Give every parameter another value, of another shape or on another device; tied ones stay tied."""
    new = {id(old): nn.Parameter(value(fqn, old)) for fqn, old in model.named_parameters()}
    for module in model.modules():
        for name, old in list(module._parameters.items()):
            if old is not None:
                setattr(module, name, new[id(old)])
