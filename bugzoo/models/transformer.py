"""A family of small decoders, each base program one setting of its switches.

Shapes: B batch, T tokens, D hidden, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bugzoo.models.attention import Attention
from bugzoo.models.feed_forward import FEED_FORWARD, Experts
from bugzoo.models.ranks import gather_for_all, own_slice
from bugzoo.models.settings import ModelConfig


class RMSNorm(nn.Module):
    """Root mean square norm, computed in float32 and cast back before the weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return wide.to(x.dtype) * self.weight.to(x.dtype)


def norm(config: ModelConfig) -> nn.Module:
    """The norm a configuration asks for."""
    if config.norm == "rms":
        return RMSNorm(config.hidden_size, config.norm_eps)
    return nn.LayerNorm(config.hidden_size, eps=config.norm_eps)


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.ln1 = norm(config)
        self.attn = Attention(config)
        self.ln2 = norm(config)
        self.mlp = FEED_FORWARD[config.feed_forward](config)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x_BTD: Tensor, positions_BT: Tensor, documents_BT: Tensor | None = None) -> Tensor:
        x_BTD = x_BTD + self.drop(self.attn(self.ln1(x_BTD), positions_BT, documents_BT))
        return x_BTD + self.drop(self.mlp(self.ln2(x_BTD)))


class Criterion(nn.Module):
    """Cross-entropy summed over the tokens that count, over the number of tokens of the whole batch."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.vocab_size = config.vocab_size
        self.masks_padding = config.padded_vocab_size > config.vocab_size
        self.label_smoothing = 0.0

    def forward(self, logits: Tensor, labels: Tensor, mask: Tensor, denominator: Tensor) -> Tensor:
        scores = logits.float()
        if self.masks_padding:
            padding = torch.arange(scores.shape[-1]) >= self.vocab_size
            scores = scores.masked_fill(padding, -1e9)
        return (self.of_token(scores, labels) * mask).sum() / denominator

    def of_token(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy of every token."""
        flat = F.cross_entropy(
            scores.flatten(0, 1), labels.flatten(), reduction="none", label_smoothing=self.label_smoothing
        )
        return flat.view(labels.shape)


class Transformer(nn.Module):
    """Token ids and labels (B, T) to the loss."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.emb = nn.Embedding(config.padded_vocab_size, config.hidden_size, padding_idx=config.padding_id)
        learned = config.position == "learned"
        self.pos = nn.Embedding(config.max_length, config.hidden_size) if learned else None
        self.drop = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = norm(config)
        self.head = nn.Linear(config.hidden_size, config.padded_vocab_size, bias=False)
        self.criterion = Criterion(config)
        initialize(self)
        if config.tied:
            self.head.weight = self.emb.weight

    def forward(
        self,
        ids: Tensor,
        labels: Tensor,
        mask: Tensor,
        denominator: Tensor,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        if positions is None:
            positions = torch.arange(ids.shape[1]).expand_as(ids)
        x = self.embed(ids, positions)
        for layer in self.layers:
            x = self.through(layer, x, positions, documents)
        x = self.norm(x)
        if self.config.parallel == "tensor":
            x = gather_for_all(x, 1)
        loss = self.criterion(self.head(x), labels, mask, denominator)
        return self.with_auxiliary(loss, mask, denominator)

    def embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Token and position embedding, the own part of the sequence where it is split."""
        x = self.emb(ids)
        if self.pos is not None:
            x = x + self.pos(positions)
        return self.drop(own_slice(x, 1) if self.config.parallel == "tensor" else x)

    def through(self, layer: nn.Module, x: Tensor, positions: Tensor, documents: Tensor | None) -> Tensor:
        """One block, kept or to be computed again in backward."""
        if self.config.recompute:
            out: Tensor = checkpoint(layer, x, positions, documents, use_reentrant=False)
            return out
        return layer(x, positions, documents)

    def with_auxiliary(self, loss: Tensor, mask: Tensor, denominator: Tensor) -> Tensor:
        """The experts' balance loss joins, for this batch's share of the tokens."""
        routers = [layer.mlp for layer in self.layers if isinstance(layer.mlp, Experts)]
        if not routers:
            return loss
        balance = torch.stack([router.auxiliary for router in routers]).mean()
        return loss + self.config.auxiliary_weight * balance * mask.sum() / denominator


def initialize(model: nn.Module) -> None:
    """Weights as after some training: no norm is all ones, no bias zero, no attention uniform."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, parameter.shape[1] ** -0.5)
            elif name.endswith("bias"):
                parameter.normal_(0.0, 0.05)
            else:
                parameter.normal_(1.0, 0.1)
        for module in model.modules():
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx].zero_()
