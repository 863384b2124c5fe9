"""One ``.npy`` file as raw bytes, never as Python objects."""

from __future__ import annotations

import math
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from trueup.errors import TraceError
from trueup.store import StoredTensor
from trueup.store.npz import HEADER_ERRORS
from trueup.types.arrays import Array, Dtype

_ZIP = b"PK\x03\x04"


def read_npy(file: Path, dtype: str) -> StoredTensor:
    """The tensor in ``file``, bit for bit; ``dtype`` is what the dump says it was.

    MindSpore widens bfloat16 to float32 in its ``.npy``; it is narrowed again when no bit is lost.

    Raises:
        TraceError: missing, damaged, not one tensor, or a pickle that would execute code.
    """
    return stored(read_array(file), dtype)


def read_array(file: Path) -> Array:
    """The array in ``file``; memory is asked for what the file holds, not for what its head claims.

    Raises:
        TraceError: missing, damaged, not one tensor, or a pickle that would execute code.
    """
    values, shape = read_memory(file)
    if values.size != math.prod(shape) or any(length < 0 for length in shape):
        raise not_whole(file, values.size, shape)
    return values.reshape(shape)


def not_whole(file: Path, size: int, shape: tuple[int, ...]) -> TraceError:
    """What to raise where a file holds another number of elements than its head says."""
    return TraceError(f"{file} is not a whole .npy file: {size} elements where its head says {list(shape)}")


def read_memory(file: Path) -> tuple[Array, tuple[int, ...]]:
    """All values in ``file``, flat, and the shape its head gives, which may be of fewer or of more.

    Raises:
        TraceError: missing, damaged, not one tensor, or a pickle that would execute code.
    """
    try:
        with file.open("rb") as stream:
            head = _head(file, stream)
            if head.dtype.hasobject:
                raise TraceError(
                    f"{file} holds Python objects, not numbers; it is not read, because that can execute code"
                )
            size = file.stat().st_size - stream.tell()
            values = np.fromfile(stream, head.dtype, size // max(head.dtype.itemsize, 1))
    except OSError as error:
        raise TraceError(f"{file} cannot be read: {error}") from error
    if head.fortran_order and values.size == math.prod(head.shape):
        values = values.reshape(head.shape, order="F").ravel()
    return values, head.shape


def read_shape(file: Path) -> tuple[int, ...]:
    """The shape the head of ``file`` gives.

    Raises:
        TraceError: missing, damaged, or not one tensor.
    """
    try:
        with file.open("rb") as stream:
            return _head(file, stream).shape
    except OSError as error:
        raise TraceError(f"{file} cannot be read: {error}") from error


class _Head(NamedTuple):
    shape: tuple[int, ...]
    fortran_order: bool
    dtype: Dtype


def _head(file: Path, stream: BinaryIO) -> _Head:
    start = stream.read(len(_ZIP))
    stream.seek(0)
    if start == _ZIP:
        raise TraceError(f"{file} is an archive of arrays, not one .npy tensor")
    try:
        version = np.lib.format.read_magic(stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        return _Head(*read[version](stream))
    except KeyError as error:
        raise TraceError(f"{file} is a .npy file of a version that is not known") from error
    except HEADER_ERRORS as error:
        raise TraceError(f"{file} is not a whole .npy file: {error}") from error


def stored(array: Array, dtype: str) -> StoredTensor:
    """A tensor with values in ``array``; bfloat16 that was widened is narrowed again."""
    array = np.ascontiguousarray(array).reshape(array.shape)
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    name = array.dtype.name
    if name == "float32" and dtype == "bfloat16":
        words = array.reshape(-1).view(np.uint32)
        if not (words & 0xFFFF).any():
            narrowed = (words >> 16).astype(np.uint16).reshape(array.shape)
            return StoredTensor(dtype=dtype, shape=array.shape, data=narrowed.reshape(-1).view(np.uint8))
    return StoredTensor(dtype=name, shape=array.shape, data=array.reshape(-1).view(np.uint8))
