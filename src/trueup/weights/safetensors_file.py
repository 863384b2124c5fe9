"""safetensors files, alone or as the shards of a Hugging Face folder.

A file is eight bytes of header length, a JSON header (name -> dtype, shape, data_offsets) and the values.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from trueup.errors import WeightsError
from trueup.numerics.dtypes import DTYPES
from trueup.store.tensors import SAFETENSORS_DTYPES
from trueup.weights.mapped import Located, MappedWeights, checked_span, mapped_file
from trueup.weights.weight_set import WeightInfo, WeightSet, raw_bytes

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_METADATA = "__metadata__"
_HEADER_LIMIT_BYTES = 100_000_000
_NAME_OF = {code: name for name, code in SAFETENSORS_DTYPES.items()}


def looks_like_safetensors(start: bytes) -> bool:
    """Whether a file that starts with these nine bytes or more may be one."""
    return len(start) > 8 and start[8:9] == b"{" and struct.unpack("<Q", start[:8])[0] <= _HEADER_LIMIT_BYTES


def read_safetensors(path: Path) -> MappedWeights:
    """The weights of one file.

    Raises:
        WeightsError: missing, cut off, damaged, or of a dtype that is not supported.
    """
    return MappedWeights(path, located_in(path))


def read_folder(folder: Path) -> MappedWeights:
    """The weights of a sharded Hugging Face folder, as its index names them.

    Raises:
        WeightsError: the index or a shard is missing or damaged, or a shard lacks a weight the index names.
    """
    weight_map = read_index(folder / INDEX)
    found = {
        entry.info.name: entry
        for shard in dict.fromkeys(weight_map.values())
        for entry in located_in(folder / shard)
        if weight_map.get(entry.info.name) == shard
    }
    for name, shard in weight_map.items():
        if name not in found:
            raise WeightsError(f"{folder / INDEX} says that {name} is in {shard}, but it is not")
    return MappedWeights(folder, [found[name] for name in weight_map])


def read_index(path: Path) -> dict[str, str]:
    """``weight_map`` of an index: weight name -> file name, which stays inside its folder.

    Raises:
        WeightsError: missing or no index.
    """
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
        weight_map = index["weight_map"]
        pairs = {str(name): str(file) for name, file in weight_map.items()}
    except FileNotFoundError:
        raise WeightsError(f"no such file: {path}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{path} is no index of shards (weight_map: name -> file): {error!r}") from error
    for file in pairs.values():
        if Path(file).name != file:
            raise WeightsError(f"{path} names {file}, which is not a file of its own folder")
    return pairs


def located_in(path: Path) -> list[Located]:
    """Where each weight of one file is."""
    data = mapped_file(path)
    if not looks_like_safetensors(data[:9].tobytes()):
        raise WeightsError(f"{path} is no safetensors file: it does not start with a header")
    (length,) = struct.unpack("<Q", data[:8].tobytes())
    if 8 + length > data.size:
        raise WeightsError(f"{path} was cut off: its header should end at byte {8 + length} of {data.size}")
    try:
        header = json.loads(data[8 : 8 + length].tobytes())
    except ValueError as error:
        raise WeightsError(f"{path}: its header is damaged: {error}") from error
    entries = ((name, entry) for name, entry in header.items() if name != _METADATA)
    return [_located(path, name, entry, 8 + length, data.size) for name, entry in entries]


def _located(path: Path, name: str, entry: Any, base: int, size: int) -> Located:
    try:
        shape = tuple(int(length) for length in entry["shape"])
        begin, end = (base + int(offset) for offset in entry["data_offsets"])
        code = str(entry["dtype"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise WeightsError(f"{path}: the header's entry of {name} is damaged: {error!r}") from error
    if code not in _NAME_OF:
        raise WeightsError(f"{path}: {name} is of dtype {code}; supported are {', '.join(_NAME_OF)}")
    info = WeightInfo(name=name, dtype=_NAME_OF[code], shape=shape)
    return Located(info=info, spans=(checked_span(path, info, begin, end, size),))


def write_safetensors(
    weights: WeightSet, file: IO[bytes], names: Iterable[str] | None = None, *, made_for: str = "pt"
) -> None:
    """Write ``names`` (default: all) one tensor at a time; wide dtypes first, so that all are aligned.

    Args:
        made_for: ``format`` of the file's metadata: ``pt`` is what Hugging Face asks for, ``ms``
            is MindSpore's.

    Raises:
        WeightsError: a dtype the format lacks.
        OSError: the disk is full.
    """
    infos = [weights.table[name] for name in (weights.table if names is None else names)]
    infos.sort(key=lambda info: -DTYPES[info.dtype].itemsize)
    header: dict[str, object] = {_METADATA: {"format": made_for}}
    at = 0
    for info in infos:
        if info.name == _METADATA:
            raise WeightsError(f"safetensors keeps the name {_METADATA} for itself; no weight can have it")
        if info.dtype not in SAFETENSORS_DTYPES:
            raise WeightsError(f"{info.name} is of dtype {info.dtype}, which safetensors does not have")
        header[info.name] = {
            "dtype": SAFETENSORS_DTYPES[info.dtype],
            "shape": list(info.shape),
            "data_offsets": [at, at + info.nbytes],
        }
        at += info.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    for info in infos:
        file.write(raw_bytes(weights.read(info.name)))


def shards(weights: WeightSet, shard_bytes: int) -> list[list[str]]:
    """Names in order, parted so that no part holds more than ``shard_bytes`` unless one weight alone does."""
    parts: list[list[str]] = [[]]
    size = 0
    for name, info in weights.table.items():
        if parts[-1] and size + info.nbytes > shard_bytes:
            parts.append([])
            size = 0
        parts[-1].append(name)
        size += info.nbytes
    return parts


def write_folder(weights: WeightSet, folder: Path, *, shard_bytes: int) -> None:
    """Write ``model.safetensors``, or above ``shard_bytes`` numbered shards and their index.

    Raises:
        WeightsError: a dtype the format lacks.
        OSError: the disk is full.
    """
    parts = shards(weights, shard_bytes)
    files = [f"model-{at + 1:05d}-of-{len(parts):05d}.safetensors" for at in range(len(parts))]
    if len(parts) == 1:
        files = [SINGLE]
    for part, name in zip(parts, files, strict=True):
        with (folder / name).open("wb") as file:
            write_safetensors(weights, file, part)
    if len(parts) > 1:
        weight_map = {name: file for part, file in zip(parts, files, strict=True) for name in part}
        total = sum(info.nbytes for info in weights.table.values())
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index, indent=2, ensure_ascii=False), encoding="utf-8")
