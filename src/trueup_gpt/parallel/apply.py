"""Acts on the layout table: gives each process its part of every parameter, moves tensors at the calls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from trueup import Placement, Shard, part_of
from trueup_gpt.config import Config
from trueup_gpt.model.initial import initial_value
from trueup_gpt.parallel.layout import Call, Layout
from trueup_gpt.parallel.mesh import Mesh
from trueup_gpt.parallel.moving import move
from trueup_gpt.parallel.rules import RULES, Function


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which part of a parameter this process has."""

    fqn: str
    shape: torch.Size
    """of the whole"""
    offset: tuple[int, ...]
    """of the part"""
    size: tuple[int, ...]
    """of the part"""
    placements: Mapping[str, Placement]
    """axis -> placement"""

    def cut(self, whole: Tensor) -> Tensor:
        """The part, of the whole tensor."""
        for dim, (offset, size) in enumerate(zip(self.offset, self.size, strict=True)):
            whole = whole.narrow(dim, offset, size)
        return whole

    def axes(self, kind: type[Placement]) -> tuple[str, ...]:
        """The axes along which it is placed so."""
        return tuple(axis for axis, placement in self.placements.items() if isinstance(placement, kind))


def place_of(fqn: str, shape: torch.Size, layout: Layout, mesh: Mesh) -> Place:
    """The part of the parameter ``fqn``, ``shape`` as a whole, that this process has."""
    placements = layout.of(fqn)
    offset, size = [0] * len(shape), list(shape)
    for axis, placement in placements.items():
        if isinstance(placement, Shard):
            dim = placement.dim
            start, size[dim] = part_of(size[dim], mesh.size(axis), mesh.coordinate(axis))
            offset[dim] += start
    return Place(fqn=fqn, shape=shape, offset=tuple(offset), size=tuple(size), placements=placements)


def apply_layout(model: nn.Module, layout: Layout, mesh: Mesh) -> dict[str, Place]:
    """Cut the parameters of a model on the meta device, and wrap the calls; returns the places."""
    places = {
        fqn: place_of(fqn, parameter.shape, layout, mesh) for fqn, parameter in model.named_parameters()
    }
    _replace(model, lambda fqn, old: torch.empty(places[fqn].size, dtype=old.dtype, device="meta"))
    for call in layout.calls:
        if mesh.size(call.axis) > 1:
            for owner, name in _matching(model, call.pattern):
                _wrap(owner, name, call, mesh)
    return places


def fill(model: nn.Module, places: Mapping[str, Place], config: Config, device: torch.device) -> None:
    """Make the parameters real on ``device``, with their initial values."""

    def value(fqn: str, old: nn.Parameter) -> Tensor:
        whole = initial_value(fqn, places[fqn].shape, config.model, config.training.seed)
        return places[fqn].cut(whole).clone(memory_format=torch.contiguous_format).to(device)

    _replace(model, value)


def _replace(model: nn.Module, value: Callable[[str, nn.Parameter], Tensor]) -> None:
    """Give every parameter another value, of another shape or on another device; tied ones stay tied."""
    new = {id(old): nn.Parameter(value(fqn, old)) for fqn, old in model.named_parameters()}
    for module in model.modules():
        for name, old in list(module._parameters.items()):
            if old is not None:
                setattr(module, name, new[id(old)])


def _matching(model: nn.Module, pattern: str) -> Iterator[tuple[nn.Module, str]]:
    """Module and attribute for each call that fits: a module's forward, or the method it names."""
    head, dot, method = pattern.rpartition(".")
    for fqn, module in model.named_modules():
        if fnmatchcase(fqn, pattern):
            yield module, "forward"
        elif dot and fnmatchcase(fqn, head) and method not in module._modules and hasattr(module, method):
            yield module, method


def _wrap(owner: nn.Module, name: str, call: Call, mesh: Mesh) -> None:
    inner: Function = getattr(owner, name)
    if call.rule is not None:
        inner = RULES[call.rule](owner, inner, mesh, call.axis)
    group, changes, output = mesh.group(call.axis), call.inputs, call.output

    @functools.wraps(inner)
    def outer(*args: object, **kwargs: object) -> Tensor:
        given = [
            move(x, changes[number].have, changes[number].need, group)
            if number in changes and isinstance(x, Tensor)
            else x
            for number, x in enumerate(args)
        ]
        y = inner(*given, **kwargs)
        return y if output is None else move(y, output.have, output.need, group)

    object.__setattr__(owner, name, outer)
