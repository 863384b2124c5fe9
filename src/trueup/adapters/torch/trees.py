"""Torch's calls taken apart (``adapters.trees``)."""

from __future__ import annotations

import torch

from trueup.adapters.trees import Trees, slot

__all__ = ["leaves", "slot", "split_call", "split_result"]

_trees = Trees(torch.Tensor, described=(torch.dtype, torch.device, torch.Size))
leaves = _trees.leaves
split_call = _trees.split_call
split_result = _trees.split_result
