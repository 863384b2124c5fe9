"""Stored tensors of a dump: ``.pt`` through torch, restricted to data, ``.npy`` through numpy."""

from __future__ import annotations

import warnings
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from trueup import _optional
from trueup.errors import TraceError
from trueup.importers.npy import read_npy
from trueup.store import StoredTensor


def read_values(file: Path, dtype: str) -> StoredTensor:
    """The tensor in ``file``, bit for bit; ``dtype`` is what the dump says it was.

    MindSpore's dumps widen bfloat16 to float32 in their ``.npy``; it is narrowed again when no bit is lost.

    Raises:
        TraceError: damaged, not one tensor, or a pickle that would execute code.
        ConfigError: a ``.pt`` file and no PyTorch.
    """
    return read_npy(file, dtype) if file.suffix == ".npy" else _read_pt(file)


def _read_pt(file: Path) -> StoredTensor:
    torch: Any = _optional.require("torch", purpose=f"Reading {file.name}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a pickle protocol that is about to be refused
            value = torch.load(file, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise TraceError(
            f"{file} is refused: it holds more than tensor data ({_first_line(error)}), and loading it could "
            "execute code. msprobe writes plain tensors; ask where this file comes from."
        ) from error
    except (OSError, EOFError, RuntimeError, ValueError, KeyError, AttributeError) as error:
        raise TraceError(f"{file} is not a whole .pt file: {_first_line(error)}") from error
    if not isinstance(value, torch.Tensor):
        raise TraceError(f"{file} holds a {type(value).__name__}, not the one tensor msprobe writes")
    tensor = value.detach()
    if tensor.is_sparse or tensor.is_quantized or tensor.layout != torch.strided:
        raise TraceError(f"{file} holds a {tensor.layout} tensor, which has no plain bytes")
    tensor = tensor.resolve_conj().resolve_neg().contiguous()
    data = tensor.reshape(-1).view(torch.uint8).numpy()
    return StoredTensor(dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape), data=data)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
