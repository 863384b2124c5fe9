"""The activations of the feed-forward block, by their names in the configuration."""

from __future__ import annotations

from collections.abc import Callable

from mindspore import Tensor, mint, ops
from mindspore.mint.nn import functional as F

from trueup_gpt.mindspore.model.numbers import number

Activation = Callable[[Tensor], Tensor]


def gelu(x: Tensor) -> Tensor:
    """x * Phi(x), exactly."""
    return ops.gelu(x, approximate="none")


def fast_gelu(x: Tensor) -> Tensor:
    """x * sigmoid(1.702 x)."""
    return x * mint.sigmoid(x * number(1.702, x))


def squared_relu(x: Tensor) -> Tensor:
    """max(x, 0)^2."""
    return mint.square(F.relu(x))


_BY_NAME: dict[str, Activation] = {
    "gelu": gelu,
    "fast_gelu": fast_gelu,
    "swiglu": F.silu,
    "squared_relu": squared_relu,
    "silu": F.silu,
    "relu": F.relu,
}


def activation(name: str) -> Activation:
    """The function; of a gated one that of the gate."""
    return _BY_NAME[name]
