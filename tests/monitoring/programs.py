"""Small training programs to watch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import trueup

Change = Callable[[nn.Module, int], None]


class Block(nn.Module):
    """A feed-forward block whose second half of units can be switched off for good."""

    def __init__(self, *, dead: bool = False) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)
        if dead:
            with torch.no_grad():
                self.up.weight[16:] = 0
                self.up.bias[16:] = -1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.act(self.up(x)))


def model(*, dead: bool = False) -> nn.Sequential:
    """Two blocks and a head; the same for the same seed."""
    torch.manual_seed(0)
    return nn.Sequential(Block(dead=dead), Block(), nn.Linear(16, 4))


def train(
    net: nn.Module,
    steps: int,
    *,
    change: Change | None = None,
    scale_inputs: Callable[[int], float] = lambda step: 1.0,
    microbatches: int = 1,
    lr: float = 1e-2,
    tracer: trueup.Tracer | None = None,
) -> list[float]:
    """Losses of some AdamW steps on seeded data; ``change`` is called before each update."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=lr)
    losses = []
    for step in range(steps):
        for part in range(microbatches):
            generator = torch.Generator().manual_seed(1000 * step + part)
            x = torch.randn(8, 16, generator=generator) * scale_inputs(step)
            y = torch.randint(4, (8,), generator=generator)
            loss = F.cross_entropy(net(x), y)
            loss.backward()
        if change is not None:
            change(net, step)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def watched(
    folder: Path, steps: int, monitor: trueup.Monitor, net: nn.Module | None = None, **how
) -> list[float]:  # type: ignore[no-untyped-def]
    """The same, monitored."""
    net = model() if net is None else net
    with trueup.Tracer(folder, monitor=monitor):
        return train(net, steps, **how)
