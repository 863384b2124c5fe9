"""Initial weights from the seed and the parameter's name: the same in every layout, on every device."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from trueup_gpt.config import ModelConfig


def generator_for(seed: int, *names: object) -> torch.Generator:
    """A CPU generator whose stream belongs to these names alone."""
    digest = hashlib.blake2b("/".join(map(str, (seed, *names))).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


def initial_value(fqn: str, shape: torch.Size, config: ModelConfig, seed: int) -> Tensor:
    """The whole tensor, float32 drawn, in params dtype, on the CPU; stacked experts are drawn one by one."""
    dtype = getattr(torch, config.params_dtype)
    kind, name = fqn.rpartition(".")[::2]
    if kind.endswith("norm"):
        return torch.ones(shape, dtype=dtype) if name == "weight" else torch.zeros(shape, dtype=dtype)
    method = config.bias_init if name == "bias" else config.init_method
    if method != "normal":
        return torch.full(shape, float(method == "ones"), dtype=dtype)
    if len(shape) == 3:
        parts = [_normal(torch.Size(shape[1:]), config, generator_for(seed, fqn, e)) for e in range(shape[0])]
        return torch.stack(parts).to(dtype)
    return _normal(shape, config, generator_for(seed, fqn)).to(dtype)


def _normal(shape: torch.Size, config: ModelConfig, generator: torch.Generator) -> Tensor:
    return torch.empty(shape).normal_(0.0, config.init_method_std, generator=generator)
