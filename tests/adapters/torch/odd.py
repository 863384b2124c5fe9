"""A model that does what models do and nobody expects: one module called three times, ReLU in place on a
slice, tied weights, dicts of tuples, an input changed by the caller."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH = 32


class Block(nn.Module):
    """A dict with a nested tuple; keyword arguments in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.act = nn.ReLU(inplace=True)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, *, options: dict[str, Tensor]) -> dict[str, Any]:
        y = self.linear(self.norm(x))
        self.act(y)
        return {"hidden": x + y * options["gain"], "aux": (y.mean(), [y.amax()])}


class Odd(nn.Module):
    """Token ids to (logits, auxiliary loss)."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(64, WIDTH)
        self.shared = Block()
        self.other = Block()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.gate = nn.ReLU(inplace=True)
        self.same = nn.Identity()
        self.tail = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sequential(nn.Tanh()))

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        h = self.emb(ids)
        h += 0.1
        aux = torch.zeros(())
        for i, block in enumerate((self.shared, self.other, self.shared, self.shared)):
            out = block(h, options={"gain": torch.full((1,), 0.5 + 0.1 * i)})
            h = self.same(out["hidden"])
            aux = aux + out["aux"][0] + out["aux"][1][0]
        u = self.up(h)
        a, b = u[..., :WIDTH], u[..., WIDTH:]
        self.gate(a)
        return F.linear(self.tail(a * b), self.emb.weight), aux


def loss_of(model: nn.Module, ids: Tensor) -> Tensor:
    """Cross-entropy and a little of the auxiliary loss."""
    logits, aux = model(ids)
    return F.cross_entropy(logits.flatten(0, 1), ids.flatten()) + 1e-3 * aux


def odd(steps: int = 3) -> Any:
    """Train it."""
    torch.manual_seed(0)
    model = Odd()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses, gradients = [], []
    for step in range(steps):
        ids = torch.randint(0, 64, (4, 16), generator=torch.Generator().manual_seed(step))
        loss = loss_of(model, ids)
        loss.backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, gradients, [p.detach().clone() for p in model.parameters()], torch.get_rng_state()
