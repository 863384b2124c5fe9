"""AdamW as the base programs set it up, its warm-up, and master copies of low-precision weights."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from bugzoo.bases import Base


def adamw(named: list[tuple[str, nn.Parameter]], base: Base, **changed: object) -> torch.optim.AdamW:
    """Weight decay on matrices only, as is usual; ``changed`` settings replace the usual ones."""
    matrices = [weight for _, weight in named if weight.dim() > 1]
    vectors = [weight for _, weight in named if weight.dim() == 1]
    groups = [
        {"params": matrices, "weight_decay": base.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    settings = {"lr": base.learning_rate, "betas": (0.9, 0.95), "eps": 1e-8, **changed}
    return torch.optim.AdamW(groups, **settings)  # type: ignore[arg-type]


def warm_up(optimizer: torch.optim.Optimizer, base: Base) -> LambdaLR:
    """Linear to the full rate, constant after."""
    return LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / base.warmup))


class MasterWeights:
    """Float32 copies the optimizer updates, and gradients accumulated in float32."""

    def __init__(self, model: nn.Module) -> None:
        self.working = dict(model.named_parameters())
        self.copies = {name: nn.Parameter(weight.detach().float()) for name, weight in self.working.items()}

    def named(self) -> list[tuple[str, nn.Parameter]]:
        """The copies with the weights' names."""
        return list(self.copies.items())

    def accumulate(self) -> None:
        """Add the working weights' gradients to the copies', and begin at zero again."""
        for name, weight in self.working.items():
            if weight.grad is None:
                continue
            copy, gradient = self.copies[name], weight.grad.float()
            copy.grad = gradient if copy.grad is None else copy.grad.add_(gradient)
            weight.grad.zero_()

    def copy_out(self) -> None:
        """The working weights are the copies, rounded."""
        with torch.no_grad():
            for name, weight in self.working.items():
                weight.copy_(self.copies[name])
