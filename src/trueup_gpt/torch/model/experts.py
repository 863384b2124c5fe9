"""The mixture of experts: a router chooses A of E blocks for each token. Suffixes as in ``gpt.py``.

The router's own losses are attached to the stream that leaves the block, so that they take part in backward
in every pipeline stage without being passed on.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trueup_gpt.config import ModelConfig, MoEConfig
from trueup_gpt.torch.model.activations import activation
from trueup_gpt.torch.model.parts import SavedTensors, TokenSum


class _WithLoss(torch.autograd.Function):
    """x as it is; backward also starts at ``loss`` with gradient 1."""

    @staticmethod
    def forward(ctx: SavedTensors, x: Tensor, loss: Tensor) -> Tensor:
        ctx.save_for_backward(loss)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: SavedTensors, *gradients: Tensor) -> tuple[Tensor, ...]:
        return gradients[0], torch.ones_like(ctx.saved_tensors[0])


class Router(nn.Module):
    """Scores of experts: the A largest logits, softmax over those."""

    def __init__(self, config: ModelConfig, moe: MoEConfig) -> None:
        super().__init__()
        self.moe = moe
        dtype = getattr(torch, config.params_dtype)
        self.weight = nn.Parameter(torch.empty(moe.num_experts, config.hidden_size, dtype=dtype))
        self.over_tokens = TokenSum()
        self.loss_share = 1.0
        """of the router's losses that is this process's, where several compute the same"""

    def forward(self, x_MH: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Weights (M, A) of the experts (M, A) chosen for each token, and the router's loss."""
        wide = torch.promote_types(x_MH.dtype, torch.float32)
        logits_ME = F.linear(x_MH.to(wide), self.weight.to(wide))
        top_MA, experts_MA = logits_ME.topk(self.moe.moe_router_topk, dim=-1)
        return top_MA.softmax(-1), experts_MA, self._loss(logits_ME, experts_MA)

    def _loss(self, logits_ME: Tensor, experts_MA: Tensor) -> Tensor | None:
        """E * sum over experts of (share of choices) * (mean probability), and the mean squared logsumexp."""
        moe, parts = self.moe, []
        balanced = moe.moe_router_load_balancing_type == "aux_loss" and moe.moe_aux_loss_coeff > 0
        if not self.training or not (balanced or moe.moe_z_loss_coeff):
            return None
        num_tokens = self.over_tokens(logits_ME.new_tensor(float(len(logits_ME))))
        if balanced:
            counts_E = torch.bincount(experts_MA.flatten(), minlength=moe.num_experts).to(logits_ME.dtype)
            share_E = self.over_tokens(counts_E) / (num_tokens * moe.moe_router_topk)
            probability_E = logits_ME.softmax(-1).sum(0) / num_tokens
            parts.append(moe.moe_aux_loss_coeff * moe.num_experts * (share_E * probability_E).sum())
        if moe.moe_z_loss_coeff:
            parts.append(moe.moe_z_loss_coeff * logits_ME.logsumexp(-1).square().sum() / num_tokens)
        return torch.stack(parts).sum() * self.loss_share


class Experts(nn.Module):
    """E feed-forward blocks without biases, their weights stacked; tokens come sorted by expert."""

    def __init__(self, config: ModelConfig, moe: MoEConfig) -> None:
        super().__init__()
        dtype = getattr(torch, config.params_dtype)
        self.compute_dtype = getattr(torch, config.compute_dtype)
        experts, hidden, wide = moe.num_experts, config.hidden_size, config.ffn_hidden_size
        self.activation = activation(config.hidden_act)
        gated = config.is_gated
        self.gate = nn.Parameter(torch.empty(experts, wide, hidden, dtype=dtype)) if gated else None
        self.up = nn.Parameter(torch.empty(experts, wide, hidden, dtype=dtype))
        self.down = nn.Parameter(torch.empty(experts, hidden, wide, dtype=dtype))

    def forward(self, x_MH: Tensor, counts_E: Tensor) -> Tensor:
        """Expert e is applied to its ``counts_E[e]`` rows."""
        parts = x_MH.to(self.compute_dtype).split(counts_E.tolist())
        return torch.cat([self._one(number, part_MH) for number, part_MH in enumerate(parts)])

    def _one(self, number: int, x_MH: Tensor) -> Tensor:
        up, down = (weight[number].to(self.compute_dtype) for weight in (self.up, self.down))
        y_MF = F.linear(x_MH, up)
        if self.gate is None:
            return F.linear(self.activation(y_MF), down)
        gate = self.gate[number].to(self.compute_dtype)
        return F.linear(self.activation(F.linear(x_MH, gate)) * y_MF, down)


class MixtureOfExperts(nn.Module):
    """Each token's A experts, weighted and summed. Beyond its capacity an expert adds nothing."""

    def __init__(self, config: ModelConfig, moe: MoEConfig) -> None:
        super().__init__()
        self.moe = moe
        self.router, self.experts = Router(config, moe), Experts(config, moe)

    def forward(self, x_BTH: Tensor, loss_weight: Tensor | None = None) -> Tensor:
        x_MH = x_BTH.flatten(0, 1)
        weights_MA, experts_MA, loss = self.router(x_MH)
        chosen_MA = self._within_capacity(weights_MA, experts_MA)
        order = chosen_MA.flatten().argsort(stable=True)
        counts_E = torch.bincount(chosen_MA.flatten(), minlength=self.moe.num_experts)[: self.moe.num_experts]
        taken = order if chosen_MA is experts_MA else order[: int(counts_E.sum())]
        sorted_MH = self.experts(x_MH[taken // experts_MA.shape[1]], counts_E)
        if taken is not order:
            sorted_MH = F.pad(sorted_MH, (0, 0, 0, len(order) - len(taken)))
        y_MAH = sorted_MH[order.argsort()].unflatten(0, experts_MA.shape)
        y_BTH = self.combine(y_MAH, weights_MA, x_BTH.shape)
        if loss is None:
            return y_BTH
        weighted = loss if loss_weight is None else loss * loss_weight.sum()
        return _WithLoss.apply(y_BTH, weighted)

    def _within_capacity(self, weights_MA: Tensor, experts_MA: Tensor) -> Tensor:
        """The experts, number E standing for one that has taken its share of tokens already."""
        moe, factor = self.moe, self.moe.moe_expert_capacity_factor
        if factor is None:
            return experts_MA
        capacity = math.ceil(experts_MA.numel() * factor / moe.num_experts)
        none_ME = weights_MA.new_zeros(len(weights_MA), moe.num_experts)
        if moe.moe_token_drop_policy == "position":
            place_ME = none_ME.scatter(1, experts_MA, 1.0).cumsum(0) - 1
        else:
            share_ME = none_ME.scatter(1, experts_MA, weights_MA.detach())
            place_ME = share_ME.argsort(dim=0, descending=True, stable=True).argsort(dim=0)
        return experts_MA.where(place_ME.gather(1, experts_MA) < capacity, moe.num_experts)

    def combine(self, y_MAH: Tensor, weights_MA: Tensor, shape: torch.Size) -> Tensor:
        """The weighted sum over a token's experts, (B, T, H)."""
        return (y_MAH * weights_MA[..., None].to(y_MAH.dtype)).sum(1).view(shape)
