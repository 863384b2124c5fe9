"""MindSpore checkpoints (.ckpt), read and written without MindSpore.

A file is a protobuf message, fields numbered as in MindSpore's checkpoint.proto:

    Checkpoint     1: Value (repeated)
    Value          1: tag (name)   2: TensorProto   3: MapTensorProto
    TensorProto    1: dims (repeated int64)   2: tensor_type (such as Float32)   3: tensor_content

A tensor above 512 MiB is stored as several values of one name in a row, each with the dims of the whole. With
a checksum the file ends in ``crc_num`` and ten bytes, the big-endian CRC-32 of all before.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from trueup.errors import WeightsError
from trueup.numerics.dtypes import DTYPES
from trueup.store.protobuf import (
    Damaged,
    field_bytes,
    fields,
    integer_field,
    signed,
    unsigned_values,
)
from trueup.weights.mapped import ByteRange, Bytes, Located, MappedWeights, mapped_file
from trueup.weights.weight_set import WeightInfo, WeightSet, raw_bytes

_TAIL = b"crc_num"
_TAIL_BYTES = len(_TAIL) + 10
_SLICE_BYTES = 512 << 20
_CRC_BLOCK = 1 << 24
_NAME_OF = {
    "Bool": "bool",
    "Int8": "int8",
    "Int16": "int16",
    "Int32": "int32",
    "Int64": "int64",
    "UInt8": "uint8",
    "UInt16": "uint16",
    "UInt32": "uint32",
    "UInt64": "uint64",
    "Float16": "float16",
    "Float32": "float32",
    "Float64": "float64",
    "BFloat16": "bfloat16",
}
_TYPE_OF = {name: code for code, name in _NAME_OF.items()}


@dataclass(slots=True)
class _Value:
    """One value of the file; ``type`` is empty for other values than tensors."""

    name: str
    type: str = ""
    dims: list[int] = field(default_factory=list)
    begin: int = 0
    end: int = 0


def read_ckpt(path: Path) -> MappedWeights:
    """The weights of one checkpoint; strings and hash tables in it are left out by name.

    Raises:
        WeightsError: missing, cut off, damaged, encrypted, with a wrong checksum, or of a dtype that is not
            supported.
    """
    data = mapped_file(path)
    end = _end_of_message(path, data)
    try:
        values = list(_values(data.data, end))
    except Damaged as error:
        raise WeightsError(
            f"{path} is no whole MindSpore checkpoint: {error}. Was it cut off, or is it encrypted?"
        ) from error
    if not values:
        raise WeightsError(f"{path} is no MindSpore checkpoint, or one that holds nothing")
    located, remarks = [], []
    for group in _groups(values):
        first = group[0]
        if first.type in ("", "str"):
            remarks.append(
                f"{first.name} is left out: a {'string' if first.type else 'hash table'}, no weight"
            )
        else:
            located.append(_located(path, group))
    names = [entry.info.name for entry in located]
    if len(set(names)) < len(names):
        twice = next(name for at, name in enumerate(names) if name in names[:at])
        raise WeightsError(f"{path} holds {twice} twice, in two places")
    return MappedWeights(path, located, remarks=remarks)


def looks_like_ckpt(start: bytes) -> bool:
    """Whether a file that starts so may be one: a value, and in it a name."""
    return len(start) > 3 and start[0] == 0x0A and 0x0A in start[2:12]


def _end_of_message(path: Path, data: Bytes) -> int:
    """Where the message ends: before the checksum, which must fit, or at the end of the file."""
    tail = data[-_TAIL_BYTES:].tobytes()
    if not tail.startswith(_TAIL) or len(tail) < _TAIL_BYTES:
        return data.size
    end = data.size - _TAIL_BYTES
    found = 0
    for start in range(0, end, _CRC_BLOCK):
        found = zlib.crc32(data[start : min(start + _CRC_BLOCK, end)].data, found)
    expected = int.from_bytes(tail[len(_TAIL) :], "big")
    if found != expected:
        raise WeightsError(
            f"{path} is damaged: its checksum is {expected:#010x}, its bytes give {found:#010x}"
        )
    return end


def _values(data: memoryview, end: int) -> Iterator[_Value]:
    for number, begin, stop in fields(data, 0, end):
        if number == 1:
            yield _value(data, begin, stop)


def _value(data: memoryview, begin: int, end: int) -> _Value:
    value = _Value("")
    for number, start, stop in fields(data, begin, end):
        if number == 1:
            value.name = _text(data[start:stop])
        elif number == 2:
            _read_tensor(value, data, start, stop)
    return value


def _read_tensor(value: _Value, data: memoryview, begin: int, end: int) -> None:
    for number, start, stop in fields(data, begin, end):
        if number == 1:
            value.dims += [signed(word) for word in unsigned_values(data, start, stop)]
        elif number == 2:
            value.type = _text(data[start:stop])
        elif number == 3:
            value.begin, value.end = start, stop


def _text(data: memoryview) -> str:
    try:
        return bytes(data).decode()
    except UnicodeDecodeError as error:
        raise Damaged(f"a name or type is not UTF-8: {error}") from error


def _groups(values: list[_Value]) -> list[list[_Value]]:
    """Values of one name in a row: the slices of one tensor."""
    groups: list[list[_Value]] = []
    for value in values:
        if groups and groups[-1][0].name == value.name:
            groups[-1].append(value)
        else:
            groups.append([value])
    return groups


def _located(path: Path, group: list[_Value]) -> Located:
    first = group[0]
    if any((value.dims, value.type) != (first.dims, first.type) for value in group):
        raise WeightsError(f"{path}: the slices of {first.name} do not agree in shape or dtype")
    if first.type not in _NAME_OF:
        raise WeightsError(
            f"{path}: {first.name} is of dtype {first.type}; supported are {', '.join(_NAME_OF)}"
        )
    nbytes = sum(value.end - value.begin for value in group)
    info = WeightInfo(name=first.name, dtype=_NAME_OF[first.type], shape=_shape(first, nbytes))
    if min(info.shape, default=0) < 0 or info.nbytes != nbytes:
        raise WeightsError(
            f"{path}: {info.name} is {info.dtype} {list(info.shape)}, but {nbytes} bytes are there; "
            "a shard of a larger tensor, or damage"
        )
    spans = tuple(ByteRange(path=path, begin=value.begin, end=value.end) for value in group)
    return Located(info=info, spans=spans)


def _shape(value: _Value, nbytes: int) -> tuple[int, ...]:
    """The dims as they are, but for ``[0]`` with one element: older versions wrote scalars so."""
    if value.dims == [0] and nbytes == DTYPES[_NAME_OF[value.type]].itemsize:
        return ()
    return tuple(value.dims)


def write_ckpt(
    weights: WeightSet, file: IO[bytes], *, slice_bytes: int = _SLICE_BYTES, crc: bool = False
) -> None:
    """Write all weights one at a time, as MindSpore's ``load_checkpoint`` reads them.

    Args:
        slice_bytes: a larger tensor becomes several values.
        crc: end in a checksum, which versions of MindSpore before 2.0 cannot read.

    Raises:
        WeightsError: a dtype the format lacks, such as fp8.
        OSError: the disk is full.
    """
    checksum = 0
    for name, info in weights.table.items():
        if info.dtype not in _TYPE_OF:
            raise WeightsError(f"{name} is of dtype {info.dtype}, which a .ckpt does not have")
        data = raw_bytes(weights.read(name))
        for start in range(0, max(len(data), 1), slice_bytes):
            part = data[start : start + slice_bytes]
            head = _head(info, len(part))
            file.write(head)
            file.write(part)
            if crc:
                checksum = zlib.crc32(part, zlib.crc32(head, checksum))
    if crc:
        file.write(_TAIL + checksum.to_bytes(10, "big"))


def _head(info: WeightInfo, num_bytes: int) -> bytes:
    """All of one value but its content, which comes last."""
    tensor = b"".join(integer_field(1, length) for length in info.shape)
    tensor += field_bytes(2, _TYPE_OF[info.dtype].encode()) + field_bytes(3, b"", length=num_bytes)
    value = field_bytes(1, info.name.encode()) + field_bytes(2, tensor, length=len(tensor) + num_bytes)
    return field_bytes(1, value, length=len(value) + num_bytes)
