"""Parameter groups by weight decay, and the optimizer over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from trueup_gpt.config import OptimizerConfig
from trueup_gpt.optimize.came import Came

Groups = list[dict[str, Any]]


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
    rate, kind = config.learning_rate, config.optimizer_type
    if kind == "SGD":
        return torch.optim.SGD(groups, rate, momentum=config.momentum, nesterov=config.nesterov)
    if kind == "Came":
        betas = config.betas if len(config.betas) == 3 else (0.9, 0.999, 0.9999)
        eps = config.eps if isinstance(config.eps, tuple) else (1e-30, 1e-16)
        return Came(groups, rate, betas=betas, eps=eps)
    first = config.eps[0] if isinstance(config.eps, tuple) else config.eps
    shared: dict[str, Any] = {"lr": rate, "betas": config.betas[:2], "eps": first}
    if kind == "Adam":
        return torch.optim.Adam(groups, **shared)
    return torch.optim.AdamW(groups, **shared, fused=True if kind == "SpeedAdamW" else None)
