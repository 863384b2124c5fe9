"""The reference: a small Llama-style GPT on real English (Python's own documentation), trained with PyTorch.

A plain training script that knows nothing of trueup. Runs on one process, or data-parallel under torchrun.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, HIDDEN, HEADS, KV_HEADS, FFN, LAYERS, LENGTH, BATCH = 256, 64, 4, 2, 160, 2, 32, 8
LEARNING_RATE = 1e-3


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5))


def rotated(x: Tensor) -> Tensor:
    """Rotary position embedding of (batch, heads, tokens, head size), half-split."""
    size = x.shape[-1]
    frequency = 10000.0 ** -(torch.arange(0, size, 2).float() / size)
    angle = torch.outer(torch.arange(x.shape[-2]).float(), frequency)
    cos, sin = (torch.cat((t, t), -1) for t in (angle.cos(), angle.sin()))
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    """Causal attention, queries in groups that share keys and values."""

    def __init__(self) -> None:
        super().__init__()
        size = HIDDEN // HEADS
        self.q_proj = nn.Linear(HIDDEN, HIDDEN)
        self.k_proj = nn.Linear(HIDDEN, KV_HEADS * size)
        self.v_proj = nn.Linear(HIDDEN, KV_HEADS * size)
        self.o_proj = nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            layer(x).view(batch, length, -1, HIDDEN // HEADS).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, dim=1) for t in (rotated(k), v))
        y = F.scaled_dot_product_attention(rotated(q), k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, HIDDEN))


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(HIDDEN, FFN, bias=False)
        self.up_proj = nn.Linear(HIDDEN, FFN, bias=False)
        self.down_proj = nn.Linear(FFN, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Pre-norm transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm, self.self_attn = RMSNorm(), Attention()
        self.post_attention_layernorm, self.mlp = RMSNorm(), MLP()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Model(nn.Module):
    """Tokens (batch, length) to hidden states (batch, length, hidden)."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.norm = RMSNorm()

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class CausalLM(nn.Module):
    """Tokens (batch, length) to logits (batch, length, vocabulary)."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.model = Model(layers)
        self.lm_head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        for name, weight in self.named_parameters():
            if weight.ndim > 1:
                nn.init.normal_(weight, std=0.02 if "embed" not in name else 0.1)
            elif name.endswith("bias"):
                nn.init.normal_(weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.lm_head(self.model(tokens))


def batch(text: Tensor, step: int, rank: int, ranks: int, turn: int) -> tuple[Tensor, Tensor]:
    """Tokens and labels (batch // ranks, length) of one rank: windows at random places, always the same."""
    places = torch.Generator().manual_seed(step)
    starts = torch.randint(0, len(text) - LENGTH - 1, (BATCH,), generator=places).roll(turn)[rank::ranks]
    window = torch.stack([text[s : s + LENGTH + 1] for s in starts.tolist()])
    return window[:, :-1], window[:, 1:]


def log(path: Path | None, step: int, loss: float, norm: float) -> None:
    """To the file, or to the screen."""
    if path is None:
        print(f"step {step} loss {loss:.6f} grad_norm {norm:.6f}", flush=True)
        return
    with path.open("a" if step else "w") as file:
        file.write(json.dumps({"step": step, "loss": loss, "grad_norm": norm, "lr": LEARNING_RATE}) + "\n")


def main() -> None:
    """Train and print the loss of every step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--turn", type=int, default=0, help="turn the rows of a batch: sums in another order")
    parser.add_argument("--curve", type=Path, help="a line of JSON for every step")
    args = parser.parse_args()
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if ranks > 1 else 0
    torch.manual_seed(1234)
    model: nn.Module = CausalLM(args.layers)
    if ranks > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.1)
    text = torch.frombuffer(bytearray("\n".join(topics.values()).encode()), dtype=torch.uint8).long()
    for step in range(args.steps):
        tokens, labels = batch(text, step, rank, ranks, args.turn)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
        loss.backward()
        if ranks > 1:
            dist.all_reduce(mean := loss.detach() / ranks)
        else:
            mean = loss.detach()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            log(args.curve, step, mean.item(), norm.item())
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
