"""The optimizer over groups of parameters."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn
from torch.optim.optimizer import ParamsT

from trueup_gpt.config import OptimizerConfig
from trueup_gpt.optimize.groups import Group
from trueup_gpt.torch.came import Came

Groups = list[Group[nn.Parameter]]


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
