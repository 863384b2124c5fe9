"""Acts on the layout table: gives each process its part of every parameter, moves tensors at the calls."""

from __future__ import annotations

import numpy as np
from mindspore import Parameter, Tensor, nn

from trueup_gpt.config import Config
from trueup_gpt.initial import initial_value
from trueup_gpt.mindspore.model.numbers import dtype_named
from trueup_gpt.mindspore.parallel.mesh import Mesh
from trueup_gpt.mindspore.parallel.moving import move
from trueup_gpt.mindspore.parallel.rules import RULES
from trueup_gpt.normal import draw_normal
from trueup_gpt.parallel.calls import matching, moved_around
from trueup_gpt.parallel.layout import Layout
from trueup_gpt.parallel.places import ParameterShare, place_of


def apply_layout(model: nn.Cell, layout: Layout, mesh: Mesh, config: Config) -> dict[str, ParameterShare]:
    """Give every parameter this process's part of its first value, and wrap the calls; returns the places."""
    places = {fqn: place_of(fqn, one.shape, layout, mesh) for fqn, one in named_parameters(model).items()}
    _fill(model, places, config)
    for call in layout.calls:
        if mesh.size(call.axis) > 1:
            for owner, name in matching(model.cells_and_names(), call.pattern, forward="construct"):
                inner = getattr(owner, name)
                if call.rule is not None:
                    inner = RULES[call.rule](owner, inner, mesh, call.axis)
                wrapped = moved_around(inner, call, move, mesh.group(call.axis), Tensor)
                object.__setattr__(owner, name, wrapped)
    return places


def named_parameters(cell: nn.Cell) -> dict[str, Parameter]:
    """By their places in the tree of cells; a tied one under its first."""
    found: dict[str, Parameter] = {}
    seen: set[int] = set()
    for path, inner in cell.cells_and_names():
        for name, parameter in inner._params.items():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                found[f"{path}.{name}".lstrip(".")] = parameter
    return found


def _fill(model: nn.Cell, places: dict[str, ParameterShare], config: Config) -> None:
    """Tied parameters stay tied."""
    dtype, seed = dtype_named(config.model.params_dtype), config.training.seed
    new: dict[int, Parameter] = {}
    for fqn, old in named_parameters(model).items():
        whole = initial_value(fqn, places[fqn].shape, config.model, seed, draw_normal)
        part = np.ascontiguousarray(places[fqn].cut(whole))
        new[id(old)] = Parameter(Tensor(part).astype(dtype), name=fqn)
    for _, cell in model.cells_and_names():
        for name, old in list(cell._params.items()):
            if old is not None:
                setattr(cell, name, new[id(old)])
