"""MindSpore's calls taken apart (``adapters.trees``)."""

from __future__ import annotations

from mindspore import Tensor
from mindspore import dtype as ms_dtype

from trueup.adapters.trees import Trees

_trees = Trees(Tensor, described=(type(ms_dtype.float32), type(ms_dtype.int32), type(ms_dtype.bool_)))
leaves = _trees.leaves
split_call = _trees.split_call
split_result = _trees.split_result
