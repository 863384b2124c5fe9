"""A file in Ascend's own dump format, which O2 writes without ``"file_format": "npy"``: one operator a file.

Eight bytes, little-endian, give the length of a protobuf message ``toolkit.dumpdata.DumpData`` (MindSpore's
public ``dump_data.proto``); after it lie the values of all inputs, then of all outputs, each of the ``size``
the message gives. Values are in the device's format. Where that is no plain row-major one (``FRACTAL_NZ`` and
its kin), or the dtype has no counterpart here, they are not taken apart.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trueup.errors import TraceError
from trueup.numerics.dtypes import DTYPES
from trueup.store import StoredTensor
from trueup.store.protobuf import fields, unsigned, unsigned_values

DTYPE_OF_CODE = {
    1: "float32",
    2: "float16",
    3: "int8",
    4: "uint8",
    5: "int16",
    6: "uint16",
    7: "int32",
    8: "int64",
    9: "uint32",
    10: "uint64",
    11: "bool",
    12: "float64",
    16: "complex64",
    17: "complex128",
    27: "bfloat16",
}
"""``OutputDataType`` -> our name"""
_FORMAT_OF_CODE = {
    0: "NCHW",
    1: "NHWC",
    2: "ND",
    3: "NC1HWC0",
    4: "FRACTAL_Z",
    12: "NC1HWC0_C04",
    16: "HWCN",
    25: "C1HWNCoC0",
    27: "NDHWC",
    29: "FRACTAL_NZ",
    30: "NCDHW",
    32: "NDC1HWC0",
    33: "FRACTAL_Z_3D",
}
_OUTPUT, _INPUT = 3, 4
_FIELDS = {_INPUT: {"data": 4, "size": 5, "original": 6}, _OUTPUT: {"data": 5, "size": 6, "original": 7}}
_TYPE, _FORMAT, _SHAPE = 1, 2, 3
ADVICE = 'dump again with "file_format": "npy" in common_dump_settings'


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTensor:
    """One tensor of an operator's file."""

    side: str
    slot: int
    dtype: str
    shape: tuple[int, ...]
    format: str
    offset: int
    """where its values begin in the file"""
    size_bytes: int
    trouble: str | None
    """why its values are not taken apart, if they are not"""


def read_tensors(file: Path) -> list[DeviceTensor]:
    """What ``file`` holds, inputs first; values stay where they are.

    Raises:
        TraceError: cut off, or not in Ascend's format.
    """
    try:
        with file.open("rb") as stream:
            head = stream.read(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else -1
            whole = file.stat().st_size
            message = stream.read(length) if 0 <= length <= whole - 8 else b""
    except OSError as error:
        raise TraceError(f"{file} cannot be read: {error.strerror or error}") from error
    if not message:
        found = "is empty" if not head else f"is no dump of Ascend, or is cut off after {whole} bytes"
        raise TraceError(f"{file} {found}; {ADVICE}, or remove the file")
    try:
        return _tensors(memoryview(message), 8 + length, whole)
    except ValueError as error:
        raise TraceError(
            f"{file} is no whole dump of Ascend ({error}); {ADVICE}, or remove the file"
        ) from error


def _tensors(message: memoryview, start: int, whole: int) -> list[DeviceTensor]:
    parts: dict[int, list[memoryview]] = {_INPUT: [], _OUTPUT: []}
    for number, begin, end in fields(message, 0, len(message)):
        if number in parts:
            parts[number].append(message[begin:end])
    found, offset = [], start
    for number, side in ((_INPUT, "input"), (_OUTPUT, "output")):
        for slot, part in enumerate(parts[number]):
            tensor = _tensor(part, side, slot, _FIELDS[number], offset)
            offset += tensor.size_bytes
            if offset > whole:
                raise ValueError(f"{side} {slot} ends at byte {offset}, the file at {whole}")
            found.append(tensor)
    if not found:
        raise ValueError("it names no input and no output")
    return found


def _tensor(part: memoryview, side: str, slot: int, numbers: dict[str, int], offset: int) -> DeviceTensor:
    values: dict[int, int] = {}
    shapes: dict[int, tuple[int, ...]] = {}
    inline = 0
    for number, begin, end in fields(part, 0, len(part)):
        if number in (_SHAPE, numbers["original"]):
            dims = [place for place in fields(part, begin, end) if place[0] == 1]
            shapes[number] = tuple(size for _, *place in dims for size in unsigned_values(part, *place))
        elif number == numbers["data"]:
            inline = end - begin
        elif number in (_TYPE, _FORMAT, numbers["size"]):
            values[number] = unsigned(part, begin, end)
    device, original = shapes.get(_SHAPE, ()), shapes.get(numbers["original"], ())
    shape = original or device
    kind = _FORMAT_OF_CODE.get(values.get(_FORMAT, 0), f"format {values.get(_FORMAT, 0)}")
    dtype = DTYPE_OF_CODE.get(values.get(_TYPE, 0), f"ascend type {values.get(_TYPE, 0)}")
    size = values.get(numbers["size"], 0)
    trouble = "its values lie inside the message" if inline else _trouble(dtype, kind, device, shape, size)
    return DeviceTensor(
        side=side,
        slot=slot,
        dtype=dtype,
        shape=shape,
        format=kind,
        offset=offset,
        size_bytes=size,
        trouble=None if trouble is None else f"values left alone: {trouble}; {ADVICE}",
    )


def _trouble(dtype: str, kind: str, device: tuple[int, ...], shape: tuple[int, ...], size: int) -> str | None:
    if dtype not in DTYPES:
        return f"they are of {dtype}"
    if device and device != shape:
        return f"they are in the device's format {kind}, shape {list(device)} for {list(shape)}"
    wanted = math.prod(shape) * DTYPES[dtype].itemsize
    return None if wanted == size else f"{size} bytes for {list(shape)} of {dtype}, which takes {wanted}"


def read_tensor(file: Path, side: str, slot: int) -> StoredTensor | None:
    """The values of one tensor, or None where they are not taken apart.

    Raises:
        TraceError: the file is damaged, or holds no such tensor.
    """
    tensor = next((t for t in read_tensors(file) if (t.side, t.slot) == (side, slot)), None)
    if tensor is None:
        raise TraceError(f"{file} has no {side} {slot}: was it changed since it was opened?")
    if tensor.trouble is not None:
        return None
    return values_of(file, tensor)


def values_of(file: Path, tensor: DeviceTensor) -> StoredTensor:
    """The values of one tensor that ``read_tensors`` found, mapped."""
    data = (
        np.memmap(file, np.uint8, "r", offset=tensor.offset, shape=(tensor.size_bytes,))
        if tensor.size_bytes
        else np.zeros(0, np.uint8)
    )
    return StoredTensor(dtype=tensor.dtype, shape=tensor.shape, data=np.asarray(data))
