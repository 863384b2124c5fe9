"""A folder of .npy files, one a weight (or any other arrays that are to be compared).

``weights.json``, where it is there, says which file holds which name and the dtype of what numpy lacks;
without it a name is the path below the folder without ``.npy``. Nothing is unpickled.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from urllib.parse import quote

import numpy as np

from trueup.errors import WeightsError
from trueup.numerics.dtypes import DTYPES
from trueup.store.npz import HEADER_ERRORS
from trueup.types.arrays import Dtype
from trueup.weights.plan import Values
from trueup.weights.weight_set import Table, WeightInfo, WeightSet, checked_dtype, in_storage, known

INDEX = "weights.json"
_LONGEST_NAME = 200
_UNNAMED = {"V2": "bfloat16"}
"""what arrays of dtypes numpy lacks are saved as, where only one dtype can be meant"""


class NpyFolder:
    """A ``WeightSet`` over .npy files.

    Raises:
        WeightsError: no .npy file, a damaged one, objects, or a dtype that is not supported.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.remarks: tuple[str, ...] = ()
        self._files, named = _files(path)
        if not self._files:
            raise WeightsError(f"{path} holds no .npy file")
        self.table: Table = {
            name: _info(name, path / file, named.get(name)) for name, file in self._files.items()
        }

    def read(self, name: str) -> Values:
        """One array, mapped where it is not empty; little-endian."""
        path = self.path / self._files[known(self, name)]
        info = self.table[name]
        array = np.load(path, mmap_mode="r" if info.nbytes else None, allow_pickle=False)
        stored = np.asarray(in_storage(array))
        if stored.dtype.kind == "V":
            stored = stored.view(DTYPES[info.dtype].storage)
        return stored


def _files(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Name -> file, and name -> dtype where the index says it."""
    index = folder / INDEX
    if not index.exists():
        there = sorted(folder.rglob("*.npy"))
        return {str(p.relative_to(folder).with_suffix("")): str(p.relative_to(folder)) for p in there}, {}
    try:
        plain = json.loads(index.read_text(encoding="utf-8"))
        files = {str(name): str(entry["file"]) for name, entry in plain.items()}
        dtypes = {str(name): str(entry["dtype"]) for name, entry in plain.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{index} is no list of weights (name -> file, dtype): {error!r}") from error
    if outside := [file for file in files.values() if Path(file).name != file]:
        raise WeightsError(f"{index} names {outside[0]}, which is not a file of its own folder")
    return files, dtypes


def _info(name: str, path: Path, dtype: str | None) -> WeightInfo:
    shape, stored = _header(path)
    found = dtype or _UNNAMED.get(stored.str.lstrip("<>|="), stored.name)
    checked_dtype(found, name, path)
    if stored.itemsize != DTYPES[found].itemsize:
        raise WeightsError(
            f"{path} holds {stored.itemsize} bytes an element, {found} has {DTYPES[found].itemsize}"
        )
    return WeightInfo(name=name, dtype=found, shape=shape)


def _header(path: Path) -> tuple[tuple[int, ...], Dtype]:
    """Shape and dtype of one file, whose values are all there."""
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            read = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            shape, _, dtype = read(file)
            start = file.tell()
    except FileNotFoundError:
        raise WeightsError(f"no such file: {path}") from None
    except (OSError, *HEADER_ERRORS) as error:
        raise WeightsError(f"{path} is no whole .npy file: {error}") from error
    if dtype.hasobject:
        raise WeightsError(f"{path} holds Python objects; loading them can execute code, so it is refused")
    wanted = math.prod(shape) * dtype.itemsize
    if any(length < 0 for length in shape) or path.stat().st_size - start < wanted:
        raise WeightsError(
            f"{path} was cut off: {wanted} bytes of values are announced, "
            f"{path.stat().st_size - start} are there"
        )
    return shape, dtype


def write_npy_folder(weights: WeightSet, folder: Path) -> None:
    """Write one file a weight and ``weights.json``; names a file system would not take are escaped.

    Raises:
        OSError: the disk is full.
    """
    index = {}
    for at, (name, info) in enumerate(weights.table.items()):
        stem = quote(name, safe=" []()+,=@")
        file = f"{stem}.npy" if stem.strip(".") and len(stem) < _LONGEST_NAME else f"%w{at:06d}.npy"
        np.save(folder / file, np.asarray(weights.read(name)), allow_pickle=False)
        index[name] = {"file": file, "dtype": info.dtype}
    (folder / INDEX).write_text(json.dumps(index, indent=2, ensure_ascii=False), encoding="utf-8")
