"""The activations of the feed-forward block, by their names in the configuration."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional as F

Activation = Callable[[Tensor], Tensor]


def fast_gelu(x: Tensor) -> Tensor:
    """x * sigmoid(1.702 x), as MindSpore has it."""
    return x * (1.702 * x).sigmoid()


def squared_relu(x: Tensor) -> Tensor:
    """max(x, 0)^2."""
    return F.relu(x).square()


_BY_NAME: dict[str, Activation] = {
    "gelu": F.gelu,
    "fast_gelu": fast_gelu,
    "swiglu": F.silu,
    "squared_relu": squared_relu,
    "silu": F.silu,
    "relu": F.relu,
}


def activation(name: str) -> Activation:
    """The function; of a gated one that of the gate."""
    return _BY_NAME[name]
