"""The boxes of a whole tensor that one process holds, for torch's distributed checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from trueup_gpt.parallel.places import ParameterShare, ranges
from trueup_gpt.torch.parallel.pieces import local


@dataclass(frozen=True, slots=True)
class Box:
    """A box of the whole tensor, and its elements."""

    offset: tuple[int, ...]
    values: Tensor


@dataclass(frozen=True, slots=True)
class Boxes:
    """Boxes of one tensor; torch's distributed checkpoint finds its methods by their names."""

    shape: torch.Size
    boxes: tuple[Box, ...]

    @classmethod
    def of(cls, tensor: Tensor, found: tuple[torch.Size, Sequence[Box]]) -> Boxes:
        """From what ``boxes_of`` gives."""
        return cls(found[0], tuple(found[1]))

    def __create_write_items__(self, fqn: str, _: object) -> list[WriteItem]:
        return [
            WriteItem(
                index=MetadataIndex(fqn, torch.Size(box.offset)),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=ChunkStorageMetadata(torch.Size(box.offset), box.values.size()),
                    properties=TensorProperties.create_from_tensor(box.values),
                    size=self.shape,
                ),
            )
            for box in self.boxes
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size(box.offset), box.values.size()) for box in self.boxes]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        return next(box.values for box in self.boxes if torch.Size(box.offset) == index.offset)


class SavePlanner(DefaultSavePlanner):
    """Finds the elements of a box."""

    def lookup_object(self, index: MetadataIndex) -> object:
        """See torch."""
        found = self.state_dict[index.fqn]
        return found.__get_tensor_shard__(index) if isinstance(found, Boxes) else super().lookup_object(index)


class LoadPlanner(DefaultLoadPlanner):
    """Finds the elements of a box."""

    def set_up_planner(
        self, state_dict: dict[str, object], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        """As torch's, which would replace what it does not know by None; the names are flat already."""
        self.original_state_dict = self.state_dict = state_dict
        self.flatten_state_dict = False
        self.metadata, self.is_coordinator = metadata, is_coordinator

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        """See torch."""
        found = self.state_dict[index.fqn]
        return found.__get_tensor_shard__(index) if isinstance(found, Boxes) else super().lookup_tensor(index)


def boxes_of(
    place: ParameterShare, tensor: Tensor, flat: tuple[int, int] | None = None
) -> tuple[torch.Size, list[Box]]:
    """Where the elements of a tensor lie in the whole parameter.

    Args:
        place: of the parameter in this process.
        tensor: like the parameter: this process's part, FSDP2's part of it, or with ``flat`` those elements.
        flat: which elements of the flattened part.
    """
    values = local(tensor)
    if flat is None:
        inner = _inner_offset(tensor)
        offset = tuple(a + b for a, b in zip(place.offset, inner, strict=True))
        return torch.Size(place.shape), [Box(offset, values)] if values.numel() else []
    start = flat[0]
    found = []
    for inner, size, (low, high) in ranges(place.size, *flat):
        offset = tuple(a + b for a, b in zip(place.offset, inner, strict=True))
        found.append(Box(offset, values[low - start : high - start].view(size)))
    return torch.Size(place.shape), found


def _inner_offset(tensor: Tensor) -> tuple[int, ...]:
    if isinstance(tensor, DTensor):
        return compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)[1]
    return (0,) * tensor.dim()
