"""Torch's calls taken apart (``adapters.trees``)."""

from __future__ import annotations

import torch
import torch.distributed as dist

from trueup.adapters.trees import Trees, slot

__all__ = ["leaves", "slot", "split_call", "split_result"]


def _sums() -> tuple[type, ...]:
    """The type that names what a collective does with numbers of all processes."""
    return (type(dist.ReduceOp.SUM),) if dist.is_available() else ()


_trees = Trees(torch.Tensor, described=(torch.dtype, torch.device, torch.Size, *_sums()))
leaves = _trees.leaves
split_call = _trees.split_call
split_result = _trees.split_result
