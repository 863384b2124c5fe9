"""Train a small byte-level GPT on real English: Python's own documentation, shipped with the interpreter.

A plain training script: it knows nothing of trueup. ``--fault`` turns it into a port of itself with one
mistake, the kind a person makes when moving a model.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HIDDEN, HEADS, LAYERS, LENGTH, BATCH = 128, 4, 4, 128, 8
FAULTS = {
    "none": "the model as it should be",
    "rope-bf16": "rotary angles of layer 2 computed in bfloat16, as a port without the fp32 upcast does",
    "norm-eps": "norm eps 1e-6 instead of 1e-5 in layer 2",
    "gelu-tanh": "the tanh approximation of GELU in layer 1",
    "mask": "causal mask off by one in layer 3: each token sees its successor",
    "weight-decay": "weight decay 0.1 instead of 0.01",
}


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = 1e-5

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps))


class Rotary(nn.Module):
    """Rotary position embedding of (batch, heads, tokens, head size)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer(
            "frequency", 10000.0 ** -(torch.arange(0, size, 2).float() / size), persistent=False
        )
        self.dtype = torch.float32

    def forward(self, x: Tensor) -> Tensor:
        position = torch.arange(x.shape[-2]).to(self.dtype)
        angle = torch.outer(position, self.frequency.to(self.dtype))
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.proj = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.rotary = Rotary(HIDDEN // HEADS)
        self.diagonal = 0

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            t.view(batch, length, HEADS, -1).transpose(1, 2) for t in self.qkv(x).split(HIDDEN, dim=-1)
        )
        q, k = self.rotary(q), self.rotary(k)
        scores = q @ k.transpose(-2, -1) / (HIDDEN // HEADS) ** 0.5
        visible = torch.ones(length, length, dtype=torch.bool).tril(self.diagonal)
        weights = F.softmax(scores.masked_fill(~visible, float("-inf")), dim=-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(batch, length, HIDDEN))


class MLP(nn.Module):
    """Feed-forward part."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(HIDDEN, 4 * HIDDEN)
        self.act = nn.GELU()
        self.down = nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.up(x)))


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attn = RMSNorm(HIDDEN), Attention()
        self.norm2, self.mlp = RMSNorm(HIDDEN), MLP()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Bytes (batch, tokens) to logits (batch, tokens, 256)."""

    def __init__(self, layers: int = LAYERS) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, HIDDEN)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.norm = RMSNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, 256, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def plant(model: GPT, fault: str) -> None:
    """Make the mistake in the model."""
    if fault == "rope-bf16":
        model.layers[2].attn.rotary.dtype = torch.bfloat16
    elif fault == "norm-eps":
        model.layers[2].norm1.eps = 1e-6
    elif fault == "gelu-tanh":
        model.layers[1].mlp.act = nn.GELU(approximate="tanh")
    elif fault == "mask":
        model.layers[3].attn.diagonal = 1


def settings_of(file: Path | None, fault: str) -> dict[str, float]:
    """Learning rate, weight decay and clipping: lines of ``name: value`` in the file, else the usual ones."""
    decay = 0.1 if fault == "weight-decay" else 0.01
    settings = {"learning_rate": 1e-3, "weight_decay": decay, "clip_grad": 1.0}
    lines = [] if file is None else file.read_text(encoding="utf-8").splitlines()
    given = (line.partition(":") for line in lines if ":" in line)
    return settings | {name.strip(): float(value) for name, _, value in given}


def main() -> None:
    """Train and print the loss of every step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--length", type=int, default=LENGTH, help="tokens of a sequence")
    parser.add_argument("--layers", type=int, default=LAYERS, help="blocks of the model")
    parser.add_argument("--settings", type=Path, metavar="FILE", help="lines of name: value")
    parser.add_argument(
        "--fault", choices=FAULTS, default="none", help="; ".join(f"{k}: {v}" for k, v in FAULTS.items())
    )
    args = parser.parse_args()
    text = torch.frombuffer(bytearray("\n".join(topics.values()).encode()), dtype=torch.uint8).long()
    torch.manual_seed(1234)
    model = GPT(args.layers)
    plant(model, args.fault)
    settings = settings_of(args.settings, args.fault)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings["learning_rate"], weight_decay=settings["weight_decay"]
    )
    for step in range(args.steps):
        starts = (torch.arange(BATCH) * 4096 + step * args.length) % (len(text) - args.length - 1)
        window = torch.stack([text[s : s + args.length + 1] for s in starts.tolist()])
        logits = model(window[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings["clip_grad"])
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
