"""Tensors in files of ``torch.save``: loaded with ``weights_only``, which refuses to run code."""

from __future__ import annotations

import argparse
import pickle
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch

from trueup.adapters.torch.distributed_checkpoint import DistributedCheckpoint
from trueup.adapters.torch.restricted import DAMAGED, Inert, RefusedName, load_restricted
from trueup.errors import WeightsError
from trueup.numerics.dtypes import DTYPES
from trueup.types.arrays import Array

__all__ = [
    "Checkpoint",
    "DistributedCheckpoint",
    "arguments_in",
    "write_checkpoint",
    "write_megatron_part",
]

_HOLDERS = ("model", "state_dict", "model_state_dict", "module", "net", "network")
"""keys under which training scripts keep the weights, beside the optimizer and its kin"""
_SIGNED = {1: torch.int8, 2: torch.int16}
_REFUSED = re.compile(
    r"unsupported (global|class|operand)|is blocked|not an allowed|instantiate", re.IGNORECASE
)
"""how torch says that a file asks for more than tensors"""


class Checkpoint:
    """The tensors of one file, mapped where its format allows.

    Attributes:
        tensors: by name; nested mappings are joined with dots.
        arguments: plain numbers, truth values and text of the Namespace that Megatron keeps beside them.
        remarks: sentences on what is left out.

    Raises:
        WeightsError: the file is damaged, or would execute code when loaded.
    """

    def __init__(self, path: Path) -> None:
        loaded = _loaded(path)
        found, where = _weights_of(loaded)
        self.tensors: dict[str, torch.Tensor] = {}
        self.arguments = _arguments_of(loaded)
        self.remarks: list[str] = [f"{key} is left out: the weights are under {where!r}" for key in found[1]]
        self._gather(found[0], "")
        if not self.tensors:
            raise WeightsError(f"{path} holds no tensor")

    def _gather(self, value: object, name: str) -> None:
        if isinstance(value, Mapping):
            for key, below in value.items():
                self._gather(below, f"{name}.{key}" if name else str(key))
        elif isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_quantized:
            self.tensors[name] = value.detach().resolve_conj().resolve_neg()
        elif not name.endswith("._extra_state"):  # of Transformer Engine, computed anew
            self.remarks.append(f"{name} is left out: {type(value).__name__}, no dense tensor")

    def table(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Dtype and shape by name."""
        return {
            name: (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
            for name, tensor in self.tensors.items()
        }

    def values(self, name: str) -> Array:
        """One tensor in the storage of ``numerics.dtypes``, without a copy."""
        tensor = self.tensors[name]
        storage = np.dtype(DTYPES[str(tensor.dtype).removeprefix("torch.")].storage)
        if storage.name == str(tensor.dtype).removeprefix("torch."):
            return np.asarray(tensor.numpy())
        return np.asarray(tensor.view(_SIGNED[storage.itemsize]).numpy().view(storage))


def arguments_in(path: Path) -> dict[str, object]:
    """The arguments that Megatron keeps in a file without weights (``common.pt``); none where it has none.

    Raises:
        WeightsError: the file is damaged, or would execute code when loaded.
    """
    return _arguments_of(_loaded(path))


def write_checkpoint(path: Path, weights: Iterable[tuple[str, str, Array]]) -> None:
    """Save (name, dtype, values) as a flat state dict; all of them are in memory while it is written.

    Raises:
        WeightsError: a dtype torch lacks.
        OSError: the disk is full.
    """
    tensors = {name: _tensor(name, dtype, values) for name, dtype, values in weights}
    try:
        torch.save(tensors, path)
    except RuntimeError as error:  # how torch's zip writer says that the disk is full
        raise OSError(f"{path} could not be written: {error}") from error


def write_megatron_part(
    path: Path, weights: Iterable[tuple[str, str, Array]], arguments: Mapping[str, object]
) -> None:
    """Save the weights of one rank under ``model``, beside the arguments that say the layout.

    Raises:
        WeightsError: a dtype torch lacks.
        OSError: the disk is full.
    """
    tensors = {name: _tensor(name, dtype, values) for name, dtype, values in weights}
    whole = {
        "args": argparse.Namespace(**arguments),
        "checkpoint_version": 3.0,
        "iteration": 0,
        "model": tensors,
    }
    try:
        torch.save(whole, path)
    except RuntimeError as error:
        raise OSError(f"{path} could not be written: {error}") from error


def _tensor(name: str, dtype: str, values: Array) -> torch.Tensor:
    wanted = getattr(torch, dtype, None)
    if not isinstance(wanted, torch.dtype):
        raise WeightsError(f"{name} is of dtype {dtype}, which torch does not have")
    copied = np.array(values, order="C")
    if copied.dtype.name == dtype:
        return torch.from_numpy(copied)
    return torch.from_numpy(copied.view(f"i{copied.dtype.itemsize}")).view(wanted)


def _loaded(path: Path) -> object:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True, mmap=_is_zip(path))
    except pickle.UnpicklingError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        if any(_REFUSED.search(line) for line in lines):
            return _loaded_restricted(path, next(line for line in lines if _REFUSED.search(line)))
        raise WeightsError(
            f"{path} is no whole file of torch.save: {lines[-1] if lines else error!r}"
        ) from error
    except DAMAGED as error:
        raise WeightsError(
            f"{path} is no whole file of torch.save: {' '.join(str(error).split())}"
        ) from error


def _loaded_restricted(path: Path, met: str) -> object:
    """Through the closed list of names that Megatron's checkpoints need."""
    try:
        if _is_zip(path):
            return load_restricted(path)
    except RefusedName as error:
        met = f"it names {error}"
    except DAMAGED as error:
        raise WeightsError(
            f"{path} is no whole file of torch.save: {' '.join(str(error).split())}"
        ) from error
    raise WeightsError(
        f"{path} holds more than tensors: loading it could execute code, so it is refused. Save the "
        f"state dict alone, torch.save(model.state_dict(), FILE). ({met[:160]})"
    )


def _is_zip(path: Path) -> bool:
    """Files of torch before 1.6 are no zip archives and cannot be mapped."""
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _arguments_of(loaded: object) -> dict[str, object]:
    kept = loaded.get("args") if isinstance(loaded, Mapping) else None
    plain = vars(kept) if isinstance(kept, Inert) else {}
    return {name: value for name, value in plain.items() if isinstance(value, (int, float, str))}


def _weights_of(loaded: object) -> tuple[tuple[object, list[str]], str]:
    """The mapping that holds the weights with the keys beside it, and the key it was under."""
    where, beside = "", []
    if isinstance(loaded, Mapping) and any(map(_is_chunk, loaded)):  # of a virtual pipeline
        chunks = {key: value for key, value in loaded.items() if _is_chunk(key)}
        return (chunks, [str(key) for key in loaded if key not in chunks]), "model0"
    while isinstance(loaded, Mapping) and not any(isinstance(v, torch.Tensor) for v in loaded.values()):
        inner = next(
            (k for k in _HOLDERS if isinstance(loaded.get(k), Mapping) and _has_tensor(loaded[k])), None
        )
        if inner is None:
            break
        beside += [str(key) for key in loaded if key != inner]
        where, loaded = f"{where}.{inner}" if where else inner, loaded[inner]
    return (loaded, beside), where


def _is_chunk(key: object) -> bool:
    return re.fullmatch(r"model\d+", str(key)) is not None


def _has_tensor(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(_has_tensor(below) for below in value.values())
    return isinstance(value, torch.Tensor)
