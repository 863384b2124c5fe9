"""A mixture of experts for PyTorch: each expert a module of its own that is called with its tokens.

Names and attention are those of ``torchtitan``; B batch, T sequence, D model width, E experts.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.matching.implementations import torchtitan
from tests.matching.implementations.sizes import Sizes


class SparseFeedForward(nn.Module):
    """The chosen experts' sum, weighted by the router."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.num_chosen = sizes.num_chosen
        self.gate = nn.Linear(sizes.hidden_size, sizes.num_experts, bias=False)
        self.experts = nn.ModuleList(torchtitan.FeedForward(sizes) for _ in range(sizes.num_experts))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.view(-1, x.shape[-1])
        probabilities = F.softmax(self.gate(tokens), dim=-1)
        shares, chosen = torch.topk(probabilities, self.num_chosen, dim=-1)
        shares = shares / shares.sum(dim=-1, keepdim=True)
        result = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            token, rank = torch.where(chosen == number)
            result.index_add_(0, token, expert(tokens[token]) * shares[token, rank, None])
        return result.view(x.shape)


class Transformer(torchtitan.Transformer):
    """The same model with experts in every layer."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        for layer in self.layers.values():
            layer.feed_forward = SparseFeedForward(sizes)
