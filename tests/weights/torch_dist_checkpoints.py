"""Megatron's ``torch_dist`` checkpoints, written with PyTorch alone: each tensor as its ranks' parts."""

from __future__ import annotations

import argparse
import pickle
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

STRATEGY = "megatron.core.dist_checkpointing.strategies.torch"


class Parts(Tensor):
    """One tensor cut into a grid, as Megatron-core's ``LocalShardsContainer`` hands its parts over."""

    @staticmethod
    def __new__(cls, whole: Tensor, grid: Sequence[int]) -> Parts:
        return Tensor._make_wrapper_subclass(cls, whole.shape)  # type: ignore[attr-defined, no-any-return]

    def __init__(self, whole: Tensor, grid: Sequence[int]) -> None:
        sizes = [size // count for size, count in zip(whole.shape, grid, strict=True)]
        self._parts = {
            torch.Size(offset): whole[
                tuple(slice(o, o + s) for o, s in zip(offset, sizes, strict=True))
            ].clone()
            for offset in product(*(range(0, n, s) for n, s in zip(whole.shape, sizes, strict=True)))
        }

    def __create_write_items__(self, fqn: str, _: object) -> list[WriteItem]:
        return [
            WriteItem(
                index=MetadataIndex(fqn, offset, index),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=ChunkStorageMetadata(offsets=offset, sizes=part.shape),
                    properties=TensorProperties.create_from_tensor(part),
                    size=self.shape,
                ),
            )
            for index, (offset, part) in enumerate(self._parts.items())
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(offsets=o, sizes=part.shape) for o, part in self._parts.items()]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        return self._parts[torch.Size(index.offset or ())]

    @classmethod
    def __torch_dispatch__(cls, func: Callable[..., Any], *_: Any, **__: Any) -> Any:
        raise NotImplementedError(func)


def grid_of(name: str, shape: Sequence[int], tensor: int, expert: int) -> list[int]:
    """How Megatron-core cuts a tensor of ``tensor`` and ``expert`` ranks; stacked layers, and a gate and what
    it gates, are parts of their own."""
    grid = [1] * len(shape)
    if ".layers." in name and not any(word.isdecimal() for word in name.split(".")[:4]):
        grid[0] = shape[0]
    if ".experts.experts.linear" in name:
        grid[1] = expert
    if "linear_fc1.weight" in name and not name.endswith(("_w", "_v")):
        grid[-2] = 2 * tensor
    elif any(
        word in name for word in ("word_embeddings", "output_layer", "linear_qkv", "_w", "_v", "in_proj")
    ):
        grid[-2] = tensor
    elif any(word in name for word in ("linear_proj", "linear_fc2", "out_proj")):
        grid[-1] = tensor
    return grid


def write(
    folder: Path,
    state: Mapping[str, Tensor],
    *,
    tensor: int = 1,
    expert: int = 1,
    arguments: Mapping[str, object] | None = None,
    own_metadata: bool = False,
) -> Path:
    """Write ``state`` by stored names; returns ``folder``. ``own_metadata``: as Megatron-core 0.15 does."""
    place = folder / "iter_0000100"
    place.mkdir(parents=True)
    cut: dict[str, object] = {
        name: Parts(whole, grid_of(name, whole.shape, tensor, expert)) if whole.dim() else whole
        for name, whole in state.items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(cut, checkpoint_id=place, no_dist=True)
    if own_metadata:
        _as_megatron_pickles_it(place / ".metadata")
    if arguments is not None:
        common = {"args": argparse.Namespace(**arguments), "checkpoint_version": 3.0, "iteration": 100}
        torch.save(common, place / "common.pt")
    (folder / "latest_checkpointed_iteration.txt").write_text("100")
    return folder


def _as_megatron_pickles_it(path: Path) -> None:
    """Metadata of a class of Megatron's own, with what it adds of each tensor."""
    described = pickle.loads(path.read_bytes())
    shapes = {name: {"nd_reformulated_orig_global_shape": None} for name in described.state_dict_metadata}
    with _megatron() as (metadata, plan):
        own = metadata()
        own.__dict__.update(vars(described), mcore_data=shapes, all_local_plans=[plan()])
        path.write_bytes(pickle.dumps(own))


@contextmanager
def _megatron() -> Iterator[tuple[type, type]]:
    """Classes under Megatron-core's names, only while something is pickled."""
    names = [STRATEGY.rsplit(".", at)[0] for at in range(4, 0, -1)] + [STRATEGY]
    made = {name: types.ModuleType(name) for name in names}
    own = tuple(type(name, (), {"__module__": STRATEGY}) for name in ("MCoreMetadata", "MCoreSavePlan"))
    for one in own:
        setattr(made[STRATEGY], one.__name__, one)
    sys.modules.update(made)
    try:
        yield own[0], own[1]
    finally:
        for name in names:
            del sys.modules[name]


def without_a_part(path: Path, name: str) -> None:
    """Forget the last part of ``name``, as where a rank's file was never written."""
    described = pickle.loads(path.read_bytes())
    last = max((index for index in described.storage_data if index.fqn == name), key=lambda one: one.offset)
    del described.storage_data[last]
    path.write_bytes(pickle.dumps(described))


def stacked(model: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By Megatron-core's stored names: layers, and experts, along leading dimensions."""
    found: dict[str, dict[tuple[int, ...], Tensor]] = {}
    for name, whole in model.items():
        words, at = name.split("."), []
        if "layers" in words:
            at.append(int(words.pop(words.index("layers") + 1)))
        if "local_experts" in words:
            place = words.index("local_experts")
            at.append(int(words[place + 1]))
            words[place : place + 2] = ["experts"]
        found.setdefault(".".join(words), {})[tuple(at)] = whole
    return {name: _stack(parts) for name, parts in found.items()}


def _stack(parts: Mapping[tuple[int, ...], Tensor]) -> Tensor:
    if () in parts:
        return parts[()]
    below: dict[int, dict[tuple[int, ...], Tensor]] = {}
    for at, part in parts.items():
        below.setdefault(at[0], {})[at[1:]] = part
    return torch.stack([_stack(below[first]) for first in sorted(below)])


def one_by_one(model: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """With a key for each layer and expert, the gate and what it gates apart (``singleton_local_shards``)."""
    found = {}
    for name, whole in model.items():
        stored = name.replace("local_experts", "experts")
        if "linear_fc1.weight" in name:
            found[f"{stored}_w"], found[f"{stored}_v"] = whole.chunk(2)
        else:
            found[stored] = whole
    return found
