"""Tensors of ``torch.distributed.checkpoint``: parts in ``.distcp`` files, described by ``.metadata``."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trueup.adapters.torch.restricted import DAMAGED, Inert, RefusedName, metadata_of
from trueup.errors import WeightsError
from trueup.numerics.dtypes import DTYPES
from trueup.types.arrays import Array

_SIGNED = {1: torch.int8, 2: torch.int16}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    begin: int
    length: int


class DistributedCheckpoint:
    """Tensors by name, each put together of its parts when it is read.

    Raises:
        WeightsError: the metadata is damaged or refused, or a file it names is missing or cut off.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            described = metadata_of(path / ".metadata")
            self._kinds = dict(_kinds(described))
            self._parts = _parts(described, self._kinds)
        except RefusedName as error:
            raise WeightsError(
                f"{path / '.metadata'} names {error}, which such a file does not need: loading it could "
                "execute code, so it is refused"
            ) from error
        except DAMAGED as error:
            raise WeightsError(f"{path / '.metadata'} is no whole metadata file: {error}") from error
        for parts in self._parts.values():
            for part in parts:
                self._check(part)

    def _check(self, part: _Part) -> None:
        file = self._path / part.file
        if Path(part.file).name != part.file:
            raise WeightsError(f"{self._path / '.metadata'} names {part.file}, no file of its own folder")
        if not file.is_file() or file.stat().st_size < part.begin + part.length:
            raise WeightsError(f"{file} is missing or was cut off: {part.begin + part.length} bytes expected")

    def table(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Dtype and shape by name."""
        return {name: self._kinds[name] for name in self._parts}

    def values(self, name: str, at: tuple[int, ...]) -> Array:
        """The tensor at ``at`` of its leading dimensions, in the storage of ``numerics.dtypes``.

        Raises:
            WeightsError: a part is damaged, or some elements are in no part.
        """
        dtype, shape = self._kinds[name]
        lead, rest = len(at), shape[len(at) :]
        whole = np.zeros(rest, DTYPES[dtype].storage)
        covered = 0
        for part in self._parts[name]:
            span = list(zip(part.offsets, part.sizes, strict=True))
            if any(not begin <= place < begin + size for place, (begin, size) in zip(at, span, strict=False)):
                continue
            values = self._read(part, dtype)
            values = values[tuple(place - begin for place, (begin, _) in zip(at, span, strict=False))]
            whole[tuple(slice(begin, begin + size) for begin, size in span[lead:])] = values
            covered += values.size
        if covered != whole.size:
            raise WeightsError(f"{self._path}: parts of {name} cover {covered} of its {whole.size} elements")
        return whole

    def _read(self, part: _Part, dtype: str) -> Array:
        file = self._path / part.file
        try:
            with file.open("rb") as stream:
                stream.seek(part.begin)
                data = io.BytesIO(stream.read(part.length))
            tensor = torch.load(data, map_location="cpu", weights_only=True)
        except DAMAGED as error:
            raise WeightsError(f"{file}, byte {part.begin}: no whole tensor: {error}") from error
        if not isinstance(tensor, torch.Tensor) or tuple(tensor.shape) != part.sizes:
            raise WeightsError(f"{file}, byte {part.begin}: not the tensor that .metadata describes")
        storage = np.dtype(DTYPES[dtype].storage)
        if storage.name == dtype:
            return np.asarray(tensor.detach().numpy())
        return np.asarray(tensor.detach().view(_SIGNED[storage.itemsize]).numpy().view(storage))


def _kinds(described: object) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
    """Dtype and shape of every tensor."""
    for name, kind in _mapping(described, "state_dict_metadata").items():
        properties = getattr(kind, "properties", None)
        if isinstance(properties, Inert):
            state = vars(properties)
            dtype = state["dtype"] if "dtype" in state else state["state"][0]
            yield str(name), (str(dtype).removeprefix("torch."), tuple(int(n) for n in kind.size))


def _parts(described: object, kinds: Mapping[str, object]) -> dict[str, list[_Part]]:
    sizes = {
        (str(name), tuple(chunk.offsets)): tuple(int(n) for n in chunk.sizes)
        for name, kind in _mapping(described, "state_dict_metadata").items()
        for chunk in getattr(kind, "chunks", ())
    }
    found: dict[str, list[_Part]] = {}
    for index, place in _mapping(described, "storage_data").items():
        if index.fqn not in kinds:
            continue
        if getattr(place, "transform_descriptors", None):
            raise ValueError(f"{index.fqn} is compressed")
        offsets = tuple(int(n) for n in index.offset or ())
        found.setdefault(index.fqn, []).append(
            _Part(
                offsets=offsets,
                sizes=sizes[index.fqn, offsets],
                file=str(place.relative_path),
                begin=int(place.offset),
                length=int(place.length),
            )
        )
    return found


def _mapping(described: object, name: str) -> Mapping[Any, Any]:
    found = getattr(described, name)
    if not isinstance(found, Mapping):
        raise ValueError(f"{name} is no mapping")
    return found
