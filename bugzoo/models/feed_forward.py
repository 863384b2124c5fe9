"""What follows attention in a block: GELU, SwiGLU, or experts with a router."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bugzoo.models.ranks import gather, rank_and_world, sum_to_part
from bugzoo.models.settings import ModelConfig


class Gelu(nn.Module):
    """Two linear layers with GELU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden_size, 4 * config.hidden_size)
        self.act = nn.GELU()
        self.down = nn.Linear(4 * config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.up(x)))


class SwiGLU(nn.Module):
    """Gate and up in one matrix: the first half of its rows is the gate's."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.parallel = config.parallel
        share = rank_and_world()[1] if config.parallel == "tensor" else 1
        inner = 2 * config.hidden_size // share
        self.gate_up = nn.Linear(config.hidden_size, 2 * inner, bias=False)
        self.down = nn.Linear(inner, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.parallel == "tensor":
            x = gather(x, 1)
        out = self.down(self.gated(*self.gate_up(x).chunk(2, dim=-1)))
        return sum_to_part(out, 1) if self.parallel == "tensor" else out

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """The gate goes through SiLU."""
        return F.silu(gate) * up


class Experts(nn.Module):
    """A router sends every token to its best experts, weighed so that the weights sum to one."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.per_token = config.experts_per_token
        self.router = nn.Linear(config.hidden_size, config.num_experts, bias=False)
        self.experts = nn.ModuleList(SwiGLU(config) for _ in range(config.num_experts))
        self.auxiliary: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)
        probabilities = self.route(tokens)
        weights, chosen = self.choose(probabilities)
        self.auxiliary = self.balance(probabilities, chosen)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            token, place = (chosen == number).nonzero(as_tuple=True)
            share = expert(tokens[token]) * weights[token, place, None]
            out = out.index_add(0, token, share.to(out.dtype))
        return out.view_as(x)

    def route(self, tokens: Tensor) -> Tensor:
        """Probability of every expert, in float32."""
        return F.softmax(F.linear(tokens.float(), self.router.weight.float()), dim=-1)

    def choose(self, probabilities: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and numbers of each token's experts."""
        weights, chosen = probabilities.topk(self.per_token, dim=-1)
        return weights / weights.sum(dim=-1, keepdim=True), chosen

    def balance(self, probabilities: Tensor, chosen: Tensor) -> Tensor:
        """Auxiliary loss: smallest when every expert gets as many tokens."""
        number = probabilities.shape[-1]
        share = F.one_hot(chosen, number).float().mean(dim=(0, 1))
        return number * (share * probabilities.mean(dim=0)).sum()


FEED_FORWARD: dict[str, type[nn.Module]] = {"gelu": Gelu, "swiglu": SwiGLU, "experts": Experts}
