"""Initial weights from the seed and the parameter's name: the same in every layout, on either framework."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from trueup_gpt.config import ModelConfig

Draw = Callable[[tuple[int, ...], float, int], NDArray[np.float32]]
"""float32 numbers of a normal distribution: shape, standard deviation, seed"""


def seed_of(seed: int, *names: object) -> int:
    """The seed of the random stream that belongs to these names alone."""
    digest = hashlib.blake2b("/".join(map(str, (seed, *names))).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def initial_value(
    fqn: str, shape: Sequence[int], config: ModelConfig, seed: int, draw: Draw
) -> NDArray[np.float32]:
    """The whole tensor in float32, to be rounded to params dtype; stacked experts are drawn one by one."""
    kind, name = fqn.rpartition(".")[::2]
    if kind.endswith("norm"):
        return np.full(shape, float(name == "weight"), np.float32)
    method, std = config.bias_init if name == "bias" else config.init_method, config.init_method_std
    if method != "normal":
        return np.full(shape, float(method == "ones"), np.float32)
    if len(shape) == 3:
        return np.stack([draw(tuple(shape[1:]), std, seed_of(seed, fqn, e)) for e in range(shape[0])])
    return draw(tuple(shape), std, seed_of(seed, fqn))
