"""Pickles of training frameworks, read with a closed list of names: nothing else is imported or run.

Tensors come back as tensors. Every other object on the list (the ``argparse.Namespace`` of Megatron's
arguments, its enums, the metadata of distributed checkpoints) comes back as ``Inert``, which keeps what the
pickle gave it.
"""

from __future__ import annotations

import pickle
import struct
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import torch

DAMAGED = (
    RuntimeError,
    EOFError,
    ValueError,
    KeyError,
    AttributeError,
    IndexError,
    TypeError,
    OverflowError,
    MemoryError,
    OSError,
    struct.error,
    pickle.UnpicklingError,
    zipfile.BadZipFile,
)
"""how torch and pickle end on a damaged file; an OSError of theirs, of a seek to where nothing is, names no
file"""


class RefusedName(pickle.UnpicklingError):
    """A pickle names something that is not on the list."""


class Inert:
    """Stands for an object of another package: its arguments and its state, without its code."""

    def __init__(self, *arguments: object, **keywords: object) -> None:
        self.arguments = arguments
        self.__dict__.update(keywords)

    def __setstate__(self, state: object) -> None:
        if isinstance(state, Mapping):
            self.__dict__.update({str(key): value for key, value in state.items()})
        else:
            self.state = state

    def append(self, item: object) -> None:
        """What a list's pickle calls."""

    def __setitem__(self, key: object, value: object) -> None:
        """What a mapping's pickle calls."""


def _encoded(text: str, *_: object) -> bytes:
    """How protocol 2 keeps bytes."""
    return str(text).encode("latin1")


def _no_bytes(*arguments: object) -> bytes:
    """How protocol 2 keeps no bytes (an empty ``BytesIO`` of Transformer Engine); of a number ``bytes`` would
    make as many zeros."""
    if arguments:
        raise RefusedName("builtins.bytes with arguments")
    return b""


_KEPT: dict[tuple[str, str], Callable[..., object]] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
    ("torch._utils", "_rebuild_parameter"): torch._utils._rebuild_parameter,
    ("torch", "Size"): torch.Size,
    ("builtins", "set"): set,
    ("__builtin__", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "bytearray"): bytearray,
    ("__builtin__", "bytearray"): bytearray,
    ("_codecs", "encode"): _encoded,
    ("__builtin__", "bytes"): _no_bytes,
    ("builtins", "bytes"): _no_bytes,
    ("__builtin__", "complex"): complex,
    ("builtins", "complex"): complex,
}
"""what is really made: containers and tensors"""
_DCP = "torch.distributed.checkpoint"
_INERT: dict[str, tuple[str, ...]] = {
    "argparse": ("Namespace",),
    "types": ("SimpleNamespace",),
    "pathlib": ("Path", "PosixPath", "PurePosixPath", "WindowsPath"),
    "signal": ("Signals",),
    "_io": ("BytesIO",),
    "io": ("BytesIO",),
    "datetime": ("timedelta", "datetime"),
    "torch": ("device",),
    "torch.serialization": ("_get_layout",),
    "numpy": ("dtype", "ndarray"),
    "numpy.core.multiarray": ("_reconstruct", "scalar"),
    "numpy._core.multiarray": ("_reconstruct", "scalar"),
    "megatron.core.enums": ("ModelType", "Fp8Recipe", "Fp4Recipe"),
    "megatron.model.enums": ("ModelType", "AttnMaskType", "AttnType", "LayerType", "PositionEmbeddingType"),
    "megatron.core.transformer.enums": (
        "AttnBackend",
        "AttnMaskType",
        "AttnType",
        "CudaGraphScope",
        "LayerType",
        "ModelType",
    ),
    "megatron.core.transformer.pipeline_parallel_layer_layout": ("PipelineParallelLayerLayout",),
    "megatron.core.rerun_state_machine": ("RerunDiagnostic", "RerunMode", "RerunState"),
    "megatron.core.dist_checkpointing.strategies.torch": ("MCoreMetadata", "MCoreSavePlan"),
    f"{_DCP}.metadata": (
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    ),
    f"{_DCP}.filesystem": ("_StorageInfo", "_StoragePrefix"),
    f"{_DCP}.planner": ("BytesIOWriteData", "SavePlan", "TensorWriteData", "WriteItem", "WriteItemType"),
}
"""module -> names that are stood for"""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """The object of a name on the list, or what stands for it.

        Raises:
            RefusedName: any other name.
        """
        if (module, name) in _KEPT:
            return _KEPT[module, name]
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        if name in _INERT.get(module, ()):
            return type(name, (Inert,), {})
        raise RefusedName(f"{module}.{name}")


def _load(file: IO[bytes], **_: object) -> object:
    return _Unpickler(file).load()


_MODULE = SimpleNamespace(
    __name__="restricted", Unpickler=_Unpickler, load=_load, UnpicklingError=pickle.UnpicklingError
)
"""what ``torch.load`` asks a pickle module for"""


def load_restricted(path: Path) -> object:
    """What a zip file of ``torch.save`` holds; storages are mapped.

    Raises:
        RefusedName: it names something that is not on the list, or is a TorchScript program.
        RuntimeError, ValueError, KeyError, EOFError, pickle.UnpicklingError: damaged.
    """
    with zipfile.ZipFile(path) as archive:
        if any(name.endswith("constants.pkl") for name in archive.namelist()):
            raise RefusedName("a TorchScript program")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.load(path, map_location="cpu", weights_only=False, mmap=True, pickle_module=_MODULE)


def metadata_of(path: Path) -> object:
    """The ``.metadata`` of a distributed checkpoint, as ``Inert`` objects.

    Raises:
        RefusedName: it names something that is not on the list.
        pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError: damaged.
    """
    with path.open("rb") as file:
        return _load(file)
