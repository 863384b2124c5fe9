"""Training loops that the capture tests run with and without capture: one per feature that capture must
survive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.models.gpt import GPT, GPTConfig, batch, loss_of

SMALL = GPTConfig(vocab_size=64, num_layers=2, hidden_size=32, num_heads=4, seq_length=16, dropout=0.1)

Result = tuple[list[float], list[Tensor], list[Tensor], Tensor]
"""losses, gradients of the last step, weights, random state"""


def plain(steps: int = 3) -> Result:
    """One batch a step."""
    return _train(steps)


def accumulation(steps: int = 3) -> Result:
    """Three microbatches a step, clipping."""
    return _train(steps, microbatches=3, clip=0.1)


def autocast(steps: int = 3) -> Result:
    """bf16 autocast with a gradient scaler that skips a step."""
    return _train(steps, amp=True)


def checkpointed(steps: int = 3) -> Result:
    """Activation checkpointing, not reentrant."""
    return _train(steps, recompute=False)


def checkpointed_reentrant(steps: int = 3) -> Result:
    """Activation checkpointing, reentrant."""
    return _train(steps, recompute=True)


def two_optimizers(steps: int = 3) -> Result:
    """Embedding and rest under two optimizers."""
    return _train(steps, split_optimizer=True)


def transformer_layers(steps: int = 3) -> Result:
    """torch's own layers with in-place operations, and an evaluation on their fast path."""
    torch.manual_seed(0)
    model = _InPlace()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses, gradients = [], []
    for step in range(steps):
        ids = torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(step))
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            losses.append(model(ids).sum().item())
        model.train()
    return losses, gradients, [p.detach().clone() for p in model.parameters()], torch.get_rng_state()


LOOPS: dict[str, Callable[..., Result]] = {
    f.__name__: f
    for f in (
        plain,
        accumulation,
        autocast,
        checkpointed,
        checkpointed_reentrant,
        two_optimizers,
        transformer_layers,
    )
}


class _InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(64, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.act = nn.ReLU(inplace=True)
        self.head = nn.Linear(32, 64)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.emb(ids)
        h += 1.0
        h = self.encoder(h)
        self.act(h)
        return self.head(h)


def _train(
    steps: int,
    *,
    microbatches: int = 1,
    clip: float | None = None,
    amp: bool = False,
    recompute: bool | None = None,
    split_optimizer: bool = False,
) -> Result:
    torch.manual_seed(0)
    model = GPT(SMALL).train()
    if recompute is not None:
        _checkpoint_blocks(model, use_reentrant=recompute)
    if split_optimizer:
        rest = [p for n, p in model.named_parameters() if not n.startswith("emb")]
        optimizers: list[Any] = [torch.optim.SGD(model.emb.parameters(), 0.1), torch.optim.AdamW(rest, 1e-3)]
    else:
        optimizers = [torch.optim.AdamW(model.parameters(), 1e-3)]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**100 if amp else 1.0, enabled=amp)
    losses: list[float] = []
    gradients: list[Tensor] = []
    for step in range(steps):
        for micro in range(microbatches):
            ids, labels = batch(SMALL, step=10 * step + micro, size=2)
            with torch.autocast("cpu", torch.bfloat16, enabled=amp):
                loss = loss_of(model, ids, labels) / microbatches
            scaler.scale(loss).backward()
            losses.append(loss.item())
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        for optimizer in optimizers:
            optimizer.zero_grad()
    return losses, gradients, [p.detach().clone() for p in model.parameters()], torch.get_rng_state()


def _checkpoint_blocks(model: GPT, *, use_reentrant: bool) -> None:
    for block in model.layers:
        inner = block.forward
        block.forward = lambda x, inner=inner: checkpoint(inner, x, use_reentrant=use_reentrant)
