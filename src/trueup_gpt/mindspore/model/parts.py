"""Parts that every transformer has: products, norms, tables, the feed-forward block, the loss.

Suffixes of names as in ``gpt.py``. Parameters are held in params dtype, products computed in compute dtype.
"""

from __future__ import annotations

from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.common.initializer import Zero
from mindspore.mint.nn import functional as F

from trueup_gpt.config import ModelConfig
from trueup_gpt.mindspore.model.activations import activation
from trueup_gpt.mindspore.model.numbers import dtype_named, number, wide


def weight(config: ModelConfig, *shape: int, name: str = "weight") -> Parameter:
    """A parameter without values: ``parallel/apply.py`` gives it this process's part of them."""
    return Parameter(Tensor(shape=shape, dtype=dtype_named(config.params_dtype), init=Zero()), name=name)


class Linear(nn.Cell):
    """x W^T + b in compute dtype; the bias is added apart, for a product that is a sum over processes."""

    def __init__(self, inputs: int, outputs: int, config: ModelConfig, *, bias: bool) -> None:
        super().__init__()
        self.compute_dtype = dtype_named(config.compute_dtype)
        self.weight = weight(config, outputs, inputs)
        self.bias = weight(config, outputs, name="bias") if bias else None

    def multiply(self, x: Tensor) -> Tensor:
        """The product alone."""
        return F.linear(x.astype(self.compute_dtype), self.weight.astype(self.compute_dtype))

    def construct(self, x: Tensor) -> Tensor:
        y = self.multiply(x)
        return y if self.bias is None else y + self.bias.astype(self.compute_dtype)


class Norm(nn.Cell):
    """LayerNorm or RMSNorm over H, computed in float32 or wider, given in compute dtype."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.compute_dtype = dtype_named(config.compute_dtype)
        self.eps = config.norm_epsilon
        self.weight = weight(config, config.hidden_size)
        self.bias = (
            weight(config, config.hidden_size, name="bias") if config.normalization == "LayerNorm" else None
        )

    def construct(self, x_BTH: Tensor) -> Tensor:
        dtype = wide(x_BTH.dtype)
        x = x_BTH.astype(dtype)
        if self.bias is not None:
            x = x - mint.mean(x, -1, keepdim=True)
        y = x * mint.rsqrt(mint.mean(mint.square(x), -1, keepdim=True) + number(self.eps, x))
        y = y * self.weight.astype(dtype)
        if self.bias is not None:
            y = y + self.bias.astype(dtype)
        return y.astype(self.compute_dtype)


class Embedding(nn.Cell):
    """Rows of a table."""

    def __init__(self, rows: int, config: ModelConfig) -> None:
        super().__init__()
        self.rows = rows
        self.weight = weight(config, rows, config.hidden_size)

    def construct(self, ids_BT: Tensor) -> Tensor:
        return ops.gather(self.weight, ids_BT, 0)


class FeedForward(nn.Cell):
    """down(act(up(x))), or down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, ffn, bias = config.hidden_size, config.ffn_hidden_size, config.mlp_has_bias
        gated = config.is_gated
        self.activation = activation(config.hidden_act)
        self.gate = Linear(hidden, ffn, config, bias=bias) if gated else None
        self.up = Linear(hidden, ffn, config, bias=bias)
        self.down = Linear(ffn, hidden, config, bias=bias)

    def construct(self, x_BTH: Tensor) -> Tensor:
        y_BTF = self.up(x_BTH)
        if self.gate is None:
            return self.down(self.activation(y_BTF))
        return self.down(self.activation(self.gate(x_BTH)) * y_BTF)


class CrossEntropy(nn.Cell):
    """-log softmax(logits)[label] of every token, in float32 unless logits are float64 or are kept."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.as_it_is, self.vocab_size = config.fp16_lm_cross_entropy, config.vocab_size

    def construct(self, logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
        logits_MV = self.widened(logits_BTV).reshape(-1, logits_BTV.shape[-1])
        loss_M = ops.cross_entropy(logits_MV, labels_BT.reshape(-1), reduction="none")
        return loss_M.reshape(labels_BT.shape)

    def widened(self, logits_BTV: Tensor) -> Tensor:
        """The logits in the dtype of the loss."""
        return logits_BTV if self.as_it_is else logits_BTV.astype(wide(logits_BTV.dtype))


class TokenSum(nn.Cell):
    """The sum of a number over all tokens of a microbatch: the number itself, where one process has them."""

    def construct(self, number: Tensor) -> Tensor:
        return number
