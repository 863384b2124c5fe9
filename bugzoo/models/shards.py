"""A rank's part of the weights of the whole model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bugzoo.models.ranks import own_slice
from bugzoo.models.settings import ModelConfig
from bugzoo.models.transformer import Transformer

_BY_ROWS = ("attn.qkv.weight", "mlp.gate_up.weight")
_BY_COLUMNS = ("attn.proj.weight", "mlp.down.weight")


def is_sharded(fqn: str) -> bool:
    """Whether each rank has its own part of this weight."""
    return fqn.endswith(_BY_ROWS + _BY_COLUMNS)


def load_shards(part: Transformer, whole: Transformer) -> None:
    """Give a tensor-parallel model its part of a whole model's weights."""
    weights = dict(whole.named_parameters())
    with torch.no_grad():
        for name, parameter in part.named_parameters():
            parameter.copy_(shard(name, weights[name], part.config))


def shard(name: str, weight: Tensor, config: ModelConfig) -> Tensor:
    """Rows for what goes into heads and inner width, columns for what comes out of them."""
    if name.endswith("attn.qkv.weight"):
        head = config.hidden_size // config.num_heads
        sizes = [head * n for n in (config.num_heads, config.num_kv_heads, config.num_kv_heads)]
        return rows_of_each(weight, sizes)
    if name.endswith("mlp.gate_up.weight"):
        return rows_of_each(weight, [weight.shape[0] // 2] * 2)
    return own_slice(weight, 1) if name.endswith(_BY_COLUMNS) else weight


def rows_of_each(weight: Tensor, sizes: list[int]) -> Tensor:
    """The own rows of every one of the matrices fused into one."""
    return torch.cat([own_slice(matrix, 0) for matrix in weight.split(sizes)])


def norm_like(model: nn.Module) -> list[str]:
    """Weights used on a part of the sequence only: each rank has a share of their gradient."""
    names = [name for name, _ in model.named_parameters()]
    return [name for name in names if not is_sharded(name) and not name.startswith("head")]
