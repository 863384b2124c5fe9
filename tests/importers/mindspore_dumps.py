"""Builds small dumps of MindSpore by hand, file by file."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from trueup.errors import TraceError
from trueup.importers import open_trace
from trueup.importers.mindspore.names import mangled
from trueup.importers.mindspore.order import HEADER

LINEAR = "Default/network-WithLossCell/_backbone-Net/fc1-Dense/MatMul-op0"
HEADING = "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape"


def refusal(path: Path) -> str:
    """What is said where reading everything of ``path`` fails, as it must."""
    with pytest.raises(TraceError) as caught:
        read_all(path)
    return str(caught.value)


def read_all(path: Path) -> None:
    """Read every step of every rank."""
    trace = open_trace(path)
    for step, ranks in trace.steps().items():
        for rank in ranks:
            trace.read(step, rank)


def iteration(root: Path, step: int = 0, *, rank: int = 0, net: str = "Net", graph: int = 0) -> Path:
    """The folder of one iteration, made."""
    folder = root / f"rank_{rank}" / net / str(graph) / str(step)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_tensor(
    folder: Path,
    name: str,
    place: str,
    array: np.ndarray,
    *,
    op_type: str = "",
    timestamp: int = 1,
    dtype: str = "Float32",
) -> Path:
    """One ``.npy`` file; ``place`` is such as ``input.0``."""
    op_type = op_type or name.rpartition("/")[2].partition("-")[0]
    file = folder / f"{op_type}.{mangled(name)}.0.0.{timestamp}.{place}.DefaultFormat.{dtype}.npy"
    np.save(file, array)
    return file


def write_order(root: Path, *names: str, rank: int = 0, graph: int = 0) -> Path:
    """An execution order."""
    file = root / f"rank_{rank}" / "execution_order" / f"ms_execution_order_graph_{graph}.csv"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join([HEADER, *names]) + "\n")
    return file


def device_bytes(inputs: list[dict], outputs: list[dict]) -> bytes:
    """A file in Ascend's format. Each tensor: ``array``, ``code`` of its type, perhaps ``format``, ``device``
    (its shape on the device), ``original`` and ``size``."""
    parts = [_field(4, _tensor(t, data=4, size=5, original=6)) for t in inputs]
    parts += [_field(3, _tensor(t, data=5, size=6, original=7)) for t in outputs]
    message = _field(1, b"1.0") + b"".join(parts) + _field(6, b"op")
    return (
        struct.pack("<Q", len(message)) + message + b"".join(t["array"].tobytes() for t in inputs + outputs)
    )


def _tensor(tensor: dict, **numbers: int) -> bytes:
    array: np.ndarray = tensor["array"]
    shape = tensor.get("device", array.shape)
    parts = [_number(1, tensor["code"]), _number(2, tensor.get("format", 2)), _field(3, _shape(shape))]
    parts.append(_number(numbers["size"], tensor.get("size", array.nbytes)))
    if "original" in tensor:
        parts.append(_field(numbers["original"], _shape(tensor["original"])))
    return b"".join(parts)


def _shape(shape: tuple[int, ...]) -> bytes:
    return _field(1, b"".join(_varint(size) for size in shape)) if shape else b""


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _field(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])
