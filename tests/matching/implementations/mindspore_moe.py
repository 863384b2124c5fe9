"""A mixture of experts for MindSpore: the experts' weights stacked, the router's a parameter of the layer.

``StackedExperts`` gives every token to every expert and weighs what it need not have done with 0,
``SortedExperts`` brings tokens into the order of their experts.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

from tests.matching.implementations import mindspore_gpt
from tests.matching.implementations.sizes import Sizes


class StackedExperts(nn.Cell):
    """Dense: batched products over all experts."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        experts, width, inner = sizes.num_experts, sizes.hidden_size, sizes.ffn_size
        self.num_chosen, self.num_experts = sizes.num_chosen, experts
        self.router = Parameter(Tensor(np.zeros((width, experts), np.float32)), name="router")
        self.wide = Parameter(Tensor(np.zeros((experts, width, 2 * inner), np.float32)), name="wide")
        self.narrow = Parameter(Tensor(np.zeros((experts, inner, width), np.float32)), name="narrow")

    def routed(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Share and number of the chosen experts, [T, chosen] each."""
        likely = mint.nn.functional.softmax(mint.matmul(tokens, self.router), dim=-1)
        shares, chosen = ops.topk(likely, self.num_chosen)
        return shares / mint.sum(shares, -1, keepdim=True), chosen

    def construct(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        shares, chosen = self.routed(tokens)
        weights = mint.sum(ops.one_hot(chosen, self.num_experts, 1.0, 0.0) * ops.expand_dims(shares, -1), 1)
        spread = mint.broadcast_to(tokens, (self.num_experts, *tokens.shape))
        gate, up = mint.chunk(mint.matmul(spread, self.wide), 2, -1)
        each = mint.matmul(mint.nn.functional.silu(gate) * up, self.narrow)
        return mint.sum(each * ops.expand_dims(mint.transpose(weights, 0, 1), -1), 0).reshape(x.shape)


class SortedExperts(StackedExperts):
    """Sparse: tokens in the order of their experts, each expert a slice of them."""

    def construct(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        shares, chosen = self.routed(tokens)
        flat = chosen.reshape(-1)
        order = ops.sort(flat.astype(ms.float32))[1]
        counts = [int(n) for n in np.bincount(flat.asnumpy(), minlength=self.num_experts)]
        rows = ops.floor_divide(order, self.num_chosen)
        parts = mint.split(ops.gather(tokens, rows, 0), counts, 0)
        made = []
        for expert in range(self.num_experts):
            gate, up = mint.chunk(mint.matmul(parts[expert], self.wide[expert]), 2, -1)
            made.append(mint.matmul(mint.nn.functional.silu(gate) * up, self.narrow[expert]))
        weighed = mint.cat(made, 0) * ops.expand_dims(ops.gather(shares.reshape(-1), order, 0), -1)
        back = ops.gather(weighed, ops.sort(order.astype(ms.float32))[1], 0)
        return mint.sum(back.reshape(tokens.shape[0], self.num_chosen, -1), 1).reshape(x.shape)


class Model(mindspore_gpt.Model):
    """The same model with experts in every layer."""

    def feed_forward(self, sizes: Sizes) -> nn.Cell:
        return StackedExperts(sizes)


class SortedModel(mindspore_gpt.Model):
    """The same with sorted tokens."""

    def feed_forward(self, sizes: Sizes) -> nn.Cell:
        return SortedExperts(sizes)
