"""CAME, an optimizer with the memory of Adafactor and confidence-guided steps.

Source: Luo et al., "CAME: Confidence-guided Adaptive Memory Efficient Optimization" (ACL 2023), algorithm 2,
without relative step sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict, cast

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT


class _Group(TypedDict):
    lr: float
    betas: tuple[float, float, float]
    eps: tuple[float, float]
    clip_threshold: float
    weight_decay: float


class Came(torch.optim.Optimizer):
    """Means over rows and columns of g^2 and of the update's instability, instead of whole second moments.

    Args:
        params: parameters, or groups of them.
        lr: learning rate.
        betas: of the update, of g^2, of the instability.
        eps: added to g^2, and to the instability.
        clip_threshold: largest root mean square of an update.
        weight_decay: decoupled, as AdamW's.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        betas: tuple[float, float, float] = (0.9, 0.999, 0.9999),
        eps: tuple[float, float] = (1e-30, 1e-16),
        clip_threshold: float = 1.0,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "clip_threshold": clip_threshold,
                "weight_decay": weight_decay,
            },
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step over all parameters that have a gradient."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            settings = cast(_Group, group)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, settings)
        return loss

    def _update(self, parameter: Tensor, group: _Group) -> None:
        state, (beta1, beta2, beta3) = self.state[parameter], group["betas"]
        gradient = parameter.grad
        assert gradient is not None
        update = gradient * self._inverse_root(state, "square", gradient.square() + group["eps"][0], beta2)
        update /= (update.square().mean().sqrt() / group["clip_threshold"]).clamp(min=1.0)
        mean = state.setdefault("mean", torch.zeros_like(parameter))
        mean.lerp_(update, 1.0 - beta1)
        if parameter.dim() > 1:
            instability = (update - mean).square() + group["eps"][1]
            update = mean * self._inverse_root(state, "instability", instability, beta3)
        else:
            update = mean
        parameter.mul_(1.0 - group["lr"] * group["weight_decay"]).sub_(update, alpha=group["lr"])

    @staticmethod
    def _inverse_root(state: dict[str, Tensor], name: str, square: Tensor, beta: float) -> Tensor:
        """1 / sqrt of the running mean, for matrices of the outer product of its row and column means."""
        if square.dim() < 2:
            kept = state.setdefault(name, torch.zeros_like(square)).lerp_(square, 1.0 - beta)
            return kept.rsqrt()
        rows = state.setdefault(f"{name}_rows", torch.zeros_like(square.mean(-1)))
        columns = state.setdefault(f"{name}_columns", torch.zeros_like(square.mean(-2)))
        rows.lerp_(square.mean(-1), 1.0 - beta)
        columns.lerp_(square.mean(-2), 1.0 - beta)
        row = (rows / rows.mean(-1, keepdim=True)).rsqrt()[..., None]
        return row * columns.rsqrt()[..., None, :]
