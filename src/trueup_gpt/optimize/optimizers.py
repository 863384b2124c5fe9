"""Parameter groups by weight decay, and the optimizer over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypedDict, cast

import torch
from torch import nn
from torch.optim.optimizer import ParamsT

from trueup_gpt.config import OptimizerConfig
from trueup_gpt.optimize.came import Came


class Group(TypedDict):
    """Parameters of one weight decay, and their names."""

    params: list[nn.Parameter]
    names: list[str]
    weight_decay: float
    decays: bool


Groups = list[Group]


def decays(fqn: str, num_dims: int) -> bool:
    """Whether weight decay applies: not to norms, biases and one-dimensional weights.

    Example:
        >>> decays("layers.0.input_norm.weight", 1), decays("layers.0.mlp.up.weight", 2)
        (False, True)
    """
    return "norm" not in fqn and "bias" not in fqn and num_dims > 1


def weight_decay_groups(
    named: Iterable[tuple[str, nn.Parameter, int]],
    weight_decay: float,
    *,
    rule: Callable[[str, int], bool] = decays,
) -> Groups:
    """Two groups, with decay and without; each knows the names of its parameters. An empty one is left out.

    Args:
        named: fqn, parameter and number of dims of the whole parameter.
        weight_decay: of the first group.
        rule: whether a parameter decays.
    """
    groups: Groups = [
        {"params": [], "names": [], "weight_decay": weight_decay, "decays": True},
        {"params": [], "names": [], "weight_decay": 0.0, "decays": False},
    ]
    for fqn, parameter, num_dims in named:
        group = groups[0 if rule(fqn, num_dims) else 1]
        group["params"].append(parameter)
        group["names"].append(fqn)
    return [group for group in groups if group["params"]]


def build_optimizer(config: OptimizerConfig, groups: Groups) -> torch.optim.Optimizer:
    """The optimizer of a configuration."""
    params = cast("ParamsT", groups)
    rate, kind = config.learning_rate, config.optimizer_type
    if kind == "SGD":
        return torch.optim.SGD(params, rate, momentum=config.momentum, nesterov=config.nesterov)
    if kind == "Came":
        betas = config.betas if len(config.betas) == 3 else (0.9, 0.999, 0.9999)
        eps = config.eps if isinstance(config.eps, tuple) else (1e-30, 1e-16)
        return Came(params, rate, betas=betas, eps=eps)
    first = config.eps[0] if isinstance(config.eps, tuple) else config.eps
    pair = cast("tuple[float, float]", config.betas[:2])
    if kind == "Adam":
        return torch.optim.Adam(params, rate, pair, first)
    return torch.optim.AdamW(params, rate, pair, first, fused=True if kind == "SpeedAdamW" else None)
