"""Programs without a model library: a GPT in nanoGPT's style, a convolutional net, a graph net, two tasks."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bugzoo.public.encoders import classes, image
from bugzoo.public.language import text
from bugzoo.public.run import Batch, Run


class Attention(nn.Module):
    """Causal attention with one projection for queries, keys and values."""

    flash = False

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width, bias=False)
        self.c_proj = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        q, k, v = (
            part.view(rows, length, self.heads, -1).transpose(1, 2)
            for part in self.c_attn(x).split(width, dim=2)
        )
        if self.flash:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
            y = F.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1) @ v
        out: Tensor = self.c_proj(y.transpose(1, 2).contiguous().view(rows, length, width))
        return out


class Mlp(nn.Module):
    """Four times as wide, GELU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width, bias=False)
        self.gelu = nn.GELU()
        self.c_proj = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.c_proj(self.gelu(self.c_fc(x)))
        return out


class Block(nn.Module):
    """Pre-norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.attn, self.mlp = Attention(width, heads), Mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class NanoGpt(nn.Module):
    """Learned positions, tied head, residual projections initialised smaller."""

    def __init__(self, *, vocabulary: int = 128, width: int = 48, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(32, width)
        self.h = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.ln_f = nn.LayerNorm(width, bias=False)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight
        for name, weight in self.named_parameters():
            if weight.dim() >= 2:
                deviation = 0.08 / math.sqrt(2 * layers) if name.endswith("c_proj.weight") else 0.08
                nn.init.normal_(weight, std=deviation)

    def forward(self, idx: Tensor) -> Tensor:
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            x = block(x)
        logits: Tensor = self.lm_head(self.ln_f(x))
        return logits


class Nano(Run):
    """nanoGPT's loop: full rows, two microbatches."""

    accumulation = 2
    rows = 8
    length = 24

    def make_model(self) -> nn.Module:
        return NanoGpt()

    def units(self, model: Any) -> list[nn.Module]:
        return list(model.h)

    def whole_batch(self, step: int) -> Batch:
        size = self.length + 1
        rows = [text(step, row, least=size, most=size) for row in range(self.rows)]
        tokens = torch.stack(rows)
        return {"idx": tokens[:, :-1].contiguous(), "targets": tokens[:, 1:].contiguous()}

    def mean(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Of the loss over tokens."""
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    def loss(self, batch: Batch) -> Tensor:
        return self.mean(self.wrapped(batch["idx"]), batch["targets"]) / self.accumulation


class NanoBf16(Nano):
    """bfloat16 autocast; clipping bites."""

    precision = "bf16"
    max_norm = 0.3


class NanoFp16(Nano):
    """float16 autocast with a scaler; clipping bites."""

    precision = "fp16"
    max_norm = 0.2


class NanoMaster(Nano):
    """bfloat16 weights, float32 master copies that the optimizer updates."""

    precision = "master"
    learning_rate = 3e-4

    def build(self) -> None:
        super().build()
        self.model.to(torch.bfloat16)

    def make_optimizer(self) -> torch.optim.Optimizer:
        self.copies = [(weight, weight.detach().float().clone()) for weight in self.model.parameters()]
        masters = [master.requires_grad_() for _, master in self.copies]
        return torch.optim.AdamW(
            [
                {"params": [m for m in masters if m.dim() >= 2], "weight_decay": self.weight_decay},
                {"params": [m for m in masters if m.dim() < 2], "weight_decay": 0.0},
            ],
            lr=self.learning_rate,
            betas=self.betas,
        )

    def clip(self) -> None:
        for weight, master in self.copies:
            master.grad = weight.grad.float() if weight.grad is not None else None
        super().clip()

    def update(self) -> None:
        super().update()
        with torch.no_grad():
            for weight, master in self.copies:
                weight.copy_(master)

    def clear(self) -> None:
        super().clear()
        self.model.zero_grad()


class NanoDdp(Nano):
    """Two processes, two microbatches each."""

    parallel = "ddp"


class NanoFsdp(Nano):
    """FSDP2 over two processes, one microbatch; clipping bites."""

    parallel = "fsdp"
    accumulation = 1
    max_norm = 0.2


class Residual(nn.Module):
    """Two convolutions with batch norms and a shortcut."""

    def __init__(self, width: int, momentum: float, eps: float) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.bn1, self.bn2 = (nn.BatchNorm2d(width, momentum=momentum, eps=eps) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(x + self.bn2(self.conv2(y)))


class ConvNet(nn.Module):
    """A small residual net."""

    def __init__(self, momentum: float, eps: float) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(16, momentum=momentum, eps=eps)
        self.blocks = nn.Sequential(*(Residual(16, momentum, eps) for _ in range(2)))
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.bn(self.stem(x))))
        out: Tensor = self.fc(x.mean((2, 3)))
        return out


class Cnn(Run):
    """Image classification with SGD and momentum."""

    rows = 8
    learning_rate = 0.1
    weight_decay = 1e-3
    momentum = 0.1
    norm_eps = 1e-5
    nesterov = True

    def make_model(self) -> nn.Module:
        return ConvNet(self.momentum, self.norm_eps)

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            self.groups(),
            lr=self.learning_rate,
            momentum=0.9,
            nesterov=self.nesterov,
            **self.optimizer_options,
        )

    def whole_batch(self, step: int) -> Batch:
        return {"images": image(step, self.rows) * 2 - 1, "labels": classes(step, self.rows, 10)}

    def loss(self, batch: Batch) -> Tensor:
        return F.cross_entropy(self.wrapped(batch["images"]).float(), batch["labels"]) / self.accumulation


class CnnDdp(Cnn):
    """Two processes."""

    parallel = "ddp"


class GraphConvolution(nn.Module):
    """Sum over neighbours, symmetric normalisation, self-loops."""

    self_loops = True

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.lin = nn.Linear(width_in, width_out)

    def weights(self, edges: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """Edges with loops, and the weight of each."""
        if self.self_loops:
            edges = torch.cat([edges, torch.arange(number).expand(2, -1)], dim=1)
        degree = torch.zeros(number).index_add(0, edges[1], torch.ones(edges.shape[1])).clamp(min=1)
        return edges, degree[edges[0]].rsqrt() * degree[edges[1]].rsqrt()

    def gather(self, x: Tensor, edges: Tensor, weights: Tensor) -> Tensor:
        """Messages added up at their ends."""
        return torch.zeros_like(x).index_add(0, edges[1], x[edges[0]] * weights[:, None])

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        edges, weights = self.weights(edges, x.shape[0])
        return self.gather(self.lin(x), edges, weights)


class GraphNet(nn.Module):
    """Two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = GraphConvolution(12, 32), GraphConvolution(32, 5)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        out: Tensor = self.conv2(F.relu(self.conv1(x, edges)), edges)
        return out


class Gnn(Run):
    """Classes of the nodes of a random graph; half of the nodes count."""

    def make_model(self) -> nn.Module:
        return GraphNet()

    def whole_batch(self, step: int) -> Batch:
        generator = torch.Generator().manual_seed(3 * step + 2)
        edges = torch.randint(40, (2, 120), generator=generator)
        edges = edges[:, edges[0] != edges[1]]
        return {
            "x": torch.randn(40, 12, generator=generator),
            "edges": torch.cat([edges, edges.flip(0)], dim=1),
            "labels": torch.randint(5, (40,), generator=generator),
            "counts": torch.rand(40, generator=generator) < 0.5,
        }

    def batches(self, step: int) -> list[Batch]:
        return [self.whole_batch(step)]

    def loss(self, batch: Batch) -> Tensor:
        out = self.wrapped(batch["x"], batch["edges"])
        return F.cross_entropy(out[batch["counts"]], batch["labels"][batch["counts"]])


class TwoHeads(nn.Module):
    """A trunk with a head for classes and one for a number; uncertainties are learned."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU())
        self.classes, self.number = nn.Linear(48, 4), nn.Linear(48, 1)
        self.log_vars = nn.Parameter(torch.tensor([0.3, -0.2]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.trunk(x)
        return self.classes(hidden), self.number(hidden).squeeze(-1)


class Multitask(Run):
    """Losses weighted by learned uncertainties; a class is unknown in some rows."""

    rows = 16

    def make_model(self) -> nn.Module:
        return TwoHeads()

    def whole_batch(self, step: int) -> Batch:
        generator = torch.Generator().manual_seed(5 * step + 4)
        labels = torch.randint(4, (self.rows,), generator=generator)
        return {
            "x": torch.randn(self.rows, 16, generator=generator),
            "labels": labels.masked_fill(torch.rand(self.rows, generator=generator) < 0.25, -1),
            "numbers": torch.randn(self.rows, generator=generator),
        }

    unknown = -1

    def losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Of each task."""
        scores, number = self.wrapped(batch["x"])
        return (
            F.cross_entropy(scores, batch["labels"], ignore_index=self.unknown),
            F.mse_loss(number, batch["numbers"]),
        )

    def combine(self, first: Tensor, second: Tensor) -> Tensor:
        """Each by its precision, plus the logarithm."""
        log_vars = self.model.log_vars
        return (torch.exp(-log_vars) * torch.stack([first, second]) + log_vars).sum()

    def loss(self, batch: Batch) -> Tensor:
        return self.combine(*self.losses(batch))
