"""One ``.npy`` file as raw bytes, never as Python objects."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trueup.errors import TraceError
from trueup.store import StoredTensor


def read_npy(file: Path, dtype: str) -> StoredTensor:
    """The tensor in ``file``, bit for bit; ``dtype`` is what the dump says it was.

    MindSpore widens bfloat16 to float32 in its ``.npy``; it is narrowed again when no bit is lost.

    Raises:
        TraceError: missing, damaged, not one tensor, or a pickle that would execute code.
    """
    try:
        array = np.load(file, allow_pickle=False)
    except ValueError as error:
        if "allow_pickle" in str(error) or "pickled" in str(error):
            raise TraceError(
                f"{file} holds Python objects, not numbers; it is not read, because that can execute code"
            ) from error
        raise TraceError(f"{file} is not a whole .npy file: {error}") from error
    except (MemoryError, OverflowError) as error:
        raise TraceError(f"{file} is not a whole .npy file: its head asks for more than there is") from error
    except (OSError, EOFError) as error:
        raise TraceError(f"{file} cannot be read: {error}") from error
    if not isinstance(array, np.ndarray):
        raise TraceError(f"{file} is an archive of arrays, not one .npy tensor")
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
