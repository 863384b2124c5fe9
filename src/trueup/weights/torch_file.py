"""Files of ``torch.save`` (.pth, .pt, .bin), alone or as shards; needs PyTorch, never runs what they hold."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType

from trueup import adapters
from trueup._optional import require
from trueup.errors import WeightsError
from trueup.weights.plan import Values
from trueup.weights.weight_set import Table, WeightInfo, WeightSet, checked_dtype, known

INDEX = "pytorch_model.bin.index.json"


class TorchFile:
    """A ``WeightSet`` over one file.

    Raises:
        WeightsError: missing, damaged, refused, no tensor in it, or a dtype that is not supported.
        ConfigError: PyTorch is not installed.
    """

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise WeightsError(f"no such file: {path}")
        self.path = path
        self._file = checkpoints().Checkpoint(path)
        self.remarks: tuple[str, ...] = tuple(self._file.remarks)
        self.arguments: Mapping[str, object] = self._file.arguments
        """plain values of the arguments that Megatron keeps beside the weights"""
        self.table: Table = {
            name: WeightInfo(name=name, dtype=checked_dtype(dtype, name, path), shape=shape)
            for name, (dtype, shape) in self._file.table().items()
        }

    def read(self, name: str) -> Values:
        """One tensor; a view of the mapped file where its format allows."""
        values: Values = self._file.values(known(self, name))
        return values


def write_torch(weights: WeightSet, path: Path) -> None:
    """Write a flat state dict; torch holds all of it in memory meanwhile.

    Raises:
        WeightsError: a dtype torch lacks.
        ConfigError: PyTorch is not installed.
        OSError: the disk is full.
    """
    table = weights.table
    checkpoints().write_checkpoint(path, ((n, info.dtype, weights.read(n)) for n, info in table.items()))


def checkpoints() -> ModuleType:
    """PyTorch's side: ``Checkpoint``, ``DistributedCheckpoint``.

    Raises:
        ConfigError: PyTorch is not installed.
    """
    require("torch", purpose="a .pth, .pt or .bin file")
    return import_module(".checkpoint", adapters.load("torch").__name__)
