"""Activation functions by name, to recognise which of them a site applies."""

from __future__ import annotations

from collections.abc import Callable
from math import erf, sqrt

import numpy as np

from trueup.types.arrays import Floats

_erf = np.frompyfunc(erf, 1, 1)


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(x, -700, 700))))


def gelu(x: Floats) -> Floats:
    """x Phi(x)."""
    return np.asarray(0.5 * x * (1.0 + np.asarray(_erf(x / sqrt(2)), np.float64)))


def gelu_tanh(x: Floats) -> Floats:
    """Its approximation with tanh."""
    return np.asarray(0.5 * x * (1.0 + np.tanh(sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


def gelu_quick(x: Floats) -> Floats:
    """x sigmoid(1.702 x)."""
    return x * _sigmoid(1.702 * x)


def silu(x: Floats) -> Floats:
    """x sigmoid(x)."""
    return x * _sigmoid(x)


def relu(x: Floats) -> Floats:
    """max(x, 0)."""
    return np.maximum(x, 0.0)


def relu_squared(x: Floats) -> Floats:
    """max(x, 0)^2."""
    return np.square(np.maximum(x, 0.0))


def hard_sigmoid(x: Floats) -> Floats:
    """min(max(x + 3, 0), 6) / 6, as PyTorch has it."""
    return np.asarray(np.clip(x + 3.0, 0.0, 6.0) / 6.0)


def hard_sigmoid_keras(x: Floats) -> Floats:
    """min(max(0.2 x + 0.5, 0), 1), as Keras had it before version 3 and ONNX has it."""
    return np.asarray(np.clip(0.2 * x + 0.5, 0.0, 1.0))


ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "gelu": gelu,
    "gelu with approximate='tanh'": gelu_tanh,
    "quick gelu": gelu_quick,
    "silu": silu,
    "relu": relu,
    "squared relu": relu_squared,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
}
GATES: dict[str, Callable[[Floats], Floats]] = {
    "sigmoid": _sigmoid,
    "hard sigmoid": hard_sigmoid,
    "hard sigmoid of 0.2 x + 0.5": hard_sigmoid_keras,
    "tanh": np.tanh,
    "relu": relu,
}
"""functions that a channel, or a token, is multiplied by one number of"""
