"""The mixture of experts: a router chooses A of E blocks for each token. Suffixes as in ``gpt.py``.

Which token goes where is decided on the host: it is a matter of integers. The router's own losses are
attached to the stream that leaves the block, so that they take part in backward in every pipeline stage
without being passed on.
"""

from __future__ import annotations

import math

import numpy as np
from mindspore import Tensor, _Function, mint, nn, ops
from mindspore.mint.nn import functional as F
from numpy.typing import NDArray

from trueup_gpt.config import ModelConfig, MoEConfig
from trueup_gpt.mindspore.model.activations import activation
from trueup_gpt.mindspore.model.numbers import dtype_named, number, wide
from trueup_gpt.mindspore.model.parts import TokenSum, weight

Numbers = NDArray[np.int64]


class _WithLoss(_Function):
    """x as it is; backward also starts at ``loss`` with gradient 1."""

    @staticmethod
    def forward(ctx: _Function, x: Tensor, loss: Tensor) -> Tensor:
        ctx.save_for_backward(loss)
        return x + 0.0

    @staticmethod
    def backward(ctx: _Function, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, ops.ones_like(ctx.saved_tensors[0])


class Router(nn.Cell):
    """Scores of experts: the A largest logits, softmax over those."""

    def __init__(self, config: ModelConfig, moe: MoEConfig) -> None:
        super().__init__()
        self.moe = moe
        self.weight = weight(config, moe.num_experts, config.hidden_size)
        self.over_tokens = TokenSum()
        self.loss_share = 1.0
        """of the router's losses that is this process's, where several compute the same"""

    def construct(self, x_MH: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Weights (M, A) of the experts (M, A) chosen for each token, and the router's loss."""
        dtype = wide(x_MH.dtype)
        logits_ME = F.linear(x_MH.astype(dtype), self.weight.astype(dtype))
        top_MA, experts_MA = ops.topk(logits_ME, self.moe.moe_router_topk)
        return F.softmax(top_MA, dim=-1), experts_MA, self._loss(logits_ME, experts_MA)

    def _loss(self, logits_ME: Tensor, experts_MA: Tensor) -> Tensor | None:
        """E * sum over experts of (share of choices) * (mean probability), and the mean squared logsumexp."""
        moe, parts = self.moe, []
        balanced = moe.moe_router_load_balancing_type == "aux_loss" and moe.moe_aux_loss_coeff > 0
        if not self.training or not (balanced or moe.moe_z_loss_coeff):
            return None
        dtype = logits_ME.dtype
        num_tokens = self.over_tokens(Tensor(float(len(logits_ME)), dtype))
        if balanced:
            counts = np.bincount(experts_MA.asnumpy().ravel(), minlength=moe.num_experts)
            share_E = self.over_tokens(Tensor(counts, dtype)) / (num_tokens * moe.moe_router_topk)
            probability_E = mint.sum(F.softmax(logits_ME, dim=-1), 0) / num_tokens
            share = number(moe.moe_aux_loss_coeff * moe.num_experts, logits_ME)
            parts.append(mint.sum(share_E * probability_E) * share)
        if moe.moe_z_loss_coeff:
            share = number(moe.moe_z_loss_coeff, logits_ME)
            parts.append(mint.sum(mint.square(ops.logsumexp(logits_ME, -1))) / num_tokens * share)
        return sum(parts[1:], parts[0]) * number(self.loss_share, logits_ME)


class Experts(nn.Cell):
    """E feed-forward blocks without biases, their weights stacked; tokens come sorted by expert."""

    def __init__(self, config: ModelConfig, moe: MoEConfig) -> None:
        super().__init__()
        self.compute_dtype = dtype_named(config.compute_dtype)
        experts, hidden, ffn = moe.num_experts, config.hidden_size, config.ffn_hidden_size
        self.activation = activation(config.hidden_act)
        gated = config.is_gated
        self.gate = weight(config, experts, ffn, hidden, name="gate") if gated else None
        self.up = weight(config, experts, ffn, hidden, name="up")
        self.down = weight(config, experts, hidden, ffn, name="down")

    def construct(self, x_MH: Tensor, counts_E: Tensor) -> Tensor:
        """Expert e is applied to its ``counts_E[e]`` rows."""
        sizes = counts_E.asnumpy().tolist()
        x_MH, ends = x_MH.astype(self.compute_dtype), np.cumsum(sizes).tolist()
        parts = [
            self._one(number, x_MH[end - size : end])
            for number, (size, end) in enumerate(zip(sizes, ends, strict=True))
            if size
        ]
        return mint.cat(parts) if parts else x_MH

    def _one(self, number: int, x_MH: Tensor) -> Tensor:
        up, down = (one[number].astype(self.compute_dtype) for one in (self.up, self.down))
        y_MF = F.linear(x_MH, up)
        if self.gate is None:
            return F.linear(self.activation(y_MF), down)
        gate = self.gate[number].astype(self.compute_dtype)
        return F.linear(self.activation(F.linear(x_MH, gate)) * y_MF, down)


class MixtureOfExperts(nn.Cell):
    """Each token's A experts, weighted and summed. Beyond its capacity an expert adds nothing."""

    def __init__(self, config: ModelConfig, moe: MoEConfig) -> None:
        super().__init__()
        self.moe = moe
        self.router, self.experts = Router(config, moe), Experts(config, moe)

    def construct(self, x_BTH: Tensor, loss_weight: Tensor | None = None) -> Tensor:
        x_MH = x_BTH.reshape(-1, x_BTH.shape[-1])
        weights_MA, experts_MA, loss = self.router(x_MH)
        chosen_MA = self._within_capacity(weights_MA.asnumpy(), experts_MA.asnumpy())
        order = np.argsort(chosen_MA, axis=None, kind="stable")
        counts_E = np.bincount(chosen_MA.ravel(), minlength=self.moe.num_experts)[: self.moe.num_experts]
        taken = order[: counts_E.sum()]
        rows_MH = ops.gather(x_MH, Tensor(taken // chosen_MA.shape[1]), 0)
        sorted_MH = self.experts(rows_MH, Tensor(counts_E))
        if len(taken) < len(order):
            dropped = ops.zeros((len(order) - len(taken), x_MH.shape[1]), sorted_MH.dtype)
            sorted_MH = mint.cat((sorted_MH, dropped))
        y_MAH = ops.gather(sorted_MH, Tensor(np.argsort(order)), 0).reshape(*chosen_MA.shape, -1)
        y_BTH = self.combine(y_MAH, weights_MA, x_BTH.shape)
        if loss is None:
            return y_BTH
        return _WithLoss.apply(
            y_BTH, loss if loss_weight is None else loss * mint.sum(loss_weight).astype(loss.dtype)
        )

    def _within_capacity(self, weights_MA: NDArray[np.float64], experts_MA: Numbers) -> Numbers:
        """The experts, number E standing for one that has taken its share of tokens already."""
        moe, factor = self.moe, self.moe.moe_expert_capacity_factor
        if factor is None:
            return experts_MA
        capacity = math.ceil(experts_MA.size * factor / moe.num_experts)
        share_ME = np.zeros((len(experts_MA), moe.num_experts), weights_MA.dtype)
        if moe.moe_token_drop_policy == "position":
            np.put_along_axis(share_ME, experts_MA, 1.0, 1)
            place_ME = share_ME.cumsum(0) - 1
        else:
            np.put_along_axis(share_ME, experts_MA, weights_MA, 1)
            place_ME = np.argsort(np.argsort(-share_ME, axis=0, kind="stable"), axis=0)
        within = np.take_along_axis(place_ME, experts_MA, 1) < capacity
        return np.where(within, experts_MA, moe.num_experts)

    def combine(self, y_MAH: Tensor, weights_MA: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The weighted sum over a token's experts, (B, T, H)."""
        return mint.sum(y_MAH * weights_MA.expand_dims(-1).astype(y_MAH.dtype), 1).reshape(shape)
