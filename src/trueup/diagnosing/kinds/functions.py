"""Activation functions by name, to recognise which of them a site applies."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import numpy as np

from trueup.diagnosing.evidence.facts import Floats


def _erf(x: Floats) -> Floats:
    """Abramowitz and Stegun 7.1.26, within 1.5e-7."""
    sign, x = np.sign(x), np.abs(x)
    t = 1.0 / (1.0 + 0.3275911 * x)
    terms = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
    poly = np.zeros_like(x)
    for c in reversed(terms):
        poly = (poly + c) * t
    return np.asarray(sign * (1.0 - poly * np.exp(-x * x)))


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(x, -700, 700))))


def gelu(x: Floats) -> Floats:
    """x Phi(x)."""
    return np.asarray(0.5 * x * (1.0 + _erf(x / sqrt(2))))


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
