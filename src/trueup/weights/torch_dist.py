"""Distributed checkpoints of PyTorch and Megatron (``.metadata``, ``__0_0.distcp``), without a process group.

The metadata says which file holds which part of which tensor. Megatron stacks layers, and experts, along
leading dimensions (``decoder.layers.mlp...`` of shape (layers, ...)): they are given one by one, as the model
names them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trueup.errors import WeightsError
from trueup.weights.mapping import family_of
from trueup.weights.plan import Values
from trueup.weights.torch_file import checkpoints
from trueup.weights.weight_set import Table, WeightInfo, checked_dtype, known

METADATA = ".metadata"
_STATE = re.compile(
    r"((app|state|checkpoint)\.)?"
    r"((optim|optimizers?|optimizer_states?|optim(izer)?_state_dict|(lr_)?schedulers?|opt_param_scheduler"
    r"|train_state|dataloader|loops)(\.|$)|rng_state|cuda_rng_state|rerun_state_machine|chained_)"
)
"""what programs save beside the model: Megatron, FSDP's tutorials, torchtitan, Accelerate, Lightning"""
_HOLDERS = ("app", "state", "checkpoint", "state_dict", "model_state_dict", "model", "module")
"""before every name where the model, or a wrapper of it, was saved under a key"""
_STACKED = re.compile(r"(?P<before>(?:.*\.)?(?:decoder|encoder)\.layers\.)(?P<after>[^\d].*)")
_EXPERTS = re.compile(r"(?P<before>.*\.mlp\.experts\.)experts\.(?P<after>[^\d].*)")
_ONE_EXPERT = re.compile(r"(?P<before>.*\.mlp\.experts\.)experts\.(?P<after>\d+\..*)")
"""where each is saved under a key of its own"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weight:
    """One weight: a stored tensor, at one place of its leading dimensions."""

    info: WeightInfo
    stored: str
    at: tuple[int, ...]


class DistributedWeights:
    """A ``WeightSet`` over a distributed checkpoint; optimizer and other states are left out.

    Raises:
        WeightsError: damaged, parts missing, no weight, or the metadata names something that is refused.
        ConfigError: PyTorch is not installed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = checkpoints().DistributedCheckpoint(path)
        tensors: dict[str, tuple[str, tuple[int, ...]]] = self._file.table()
        wanted = {name: kind for name, kind in tensors.items() if not _STATE.match(name)}
        wrapper = _holder(list(wanted))
        self._weights = {
            one.info.name: one
            for name, kind in wanted.items()
            for one in _each(path, name, name.removeprefix(wrapper), *kind)
        }
        if not self._weights:
            raise WeightsError(
                f"{path} holds no weight: {len(tensors)} tensors, all of an optimizer or a state"
            )
        self.table: Table = {name: one.info for name, one in self._weights.items()}
        left = len(tensors) - len(wanted)
        self.remarks: tuple[str, ...] = (
            (f"{left} tensors of optimizer and other states are left out",) if left else ()
        )

    def read(self, name: str) -> Values:
        """One weight, put together of the parts that hold some of it."""
        one = self._weights[known(self, name)]
        values: Values = self._file.values(one.stored, one.at)
        return np.ascontiguousarray(values).reshape(one.info.shape)


def _holder(names: Sequence[str]) -> str:
    """The keys before all ``names``, with dots. ``model.`` is one unless a family's names begin so."""
    head = names[0].partition(".")[0] if names else ""
    bare = [name.removeprefix(f"{head}.") for name in names]
    if head not in _HOLDERS or not all(name.startswith(f"{head}.") for name in names):
        return ""
    if head == "model" and family_of(names) is not None:
        return ""
    return f"{head}.{_holder(bare)}"


def _each(path: Path, stored: str, name: str, dtype: str, shape: tuple[int, ...]) -> Iterator[_Weight]:
    """The weights in one stored tensor, by the model's names."""
    names: list[tuple[str, tuple[int, ...]]] = [(name, ())]
    layers = _STACKED.fullmatch(name)
    if layers is not None and shape:
        names = [(f"{layers['before']}{at}.{layers['after']}", (at,)) for at in range(shape[0])]
    split = []
    for named, at in names:
        single = _ONE_EXPERT.fullmatch(named)
        whole = f"{single['before']}local_experts.{single['after']}" if single else named
        experts = _EXPERTS.fullmatch(whole)
        if experts is None or len(shape) <= len(at) + 1:
            split.append((whole, at))
            continue
        split += [
            (f"{experts['before']}local_experts.{expert}.{experts['after']}", (*at, expert))
            for expert in range(shape[len(at)])
        ]
    for whole, at in split:
        info = WeightInfo(name=whole, dtype=checked_dtype(dtype, stored, path), shape=shape[len(at) :])
        yield _Weight(info=info, stored=stored, at=at)
