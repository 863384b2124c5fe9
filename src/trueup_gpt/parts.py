"""The tensors of a checkpoint as the boxes that each process holds, in one file a process.

    part_N.ckpt, part_N.safetensors     what process N holds: boxes of whole tensors, ``NAME@OFFSET``

A name is ``model.FQN``, ``optimizer.FQN.STATE``, ``master.FQN`` or ``random.RANK``. Each process writes the
boxes it holds and reads those it needs, of any layout, on either framework. A .ckpt is what MindSpore's
``load_checkpoint`` reads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from trueup.errors import ConfigError
from trueup.types.arrays import Array
from trueup.weights.opening import open_weights
from trueup.weights.weight_set import MemoryWeights, WeightSet
from trueup.weights.writing import write_weights
from trueup_gpt.parallel.places import ParameterShare, ranges
from trueup_gpt.saved import RunFacts, begin_folder, name_folder

SUFFIXES = ("ckpt", "safetensors")
"""formats, by ``ckpt_format``"""
Parts = Mapping[str, Sequence[tuple[tuple[int, ...], Array]]]
"""name -> boxes: offset and elements"""
_LOOK_SECONDS = 0.02


def boxes_of_part(
    place: ParameterShare, part: Array, flat: tuple[int, int] | None = None
) -> Iterator[tuple[tuple[int, ...], Array]]:
    """Offset and elements of the boxes of the whole parameter that a part is.

    Args:
        place: of the parameter in this process.
        part: this process's part, or with ``flat`` those elements of it.
        flat: which elements of the flattened part.
    """
    if flat is None:
        yield place.offset, part
        return
    for inner, size, (low, high) in ranges(place.size, *flat):
        offset = tuple(a + b for a, b in zip(place.offset, inner, strict=True))
        yield offset, part[low - flat[0] : high - flat[0]].reshape(size)


class PartReader:
    """The tensors of a checkpoint, read box by box from whatever boxes were written.

    Raises:
        WeightsError: a file is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._boxes: dict[str, list[tuple[tuple[int, ...], tuple[int, ...], str, WeightSet]]] = {}
        for path in _files(folder):
            file = open_weights(path)
            for key, info in file.table.items():
                name, _, at = key.rpartition("@")
                offset = tuple(int(one) for one in at.split(",") if one)
                self._boxes.setdefault(name, []).append((offset, info.shape, key, file))

    @property
    def names(self) -> frozenset[str]:
        """Of all tensors."""
        return frozenset(self._boxes)

    def read(self, name: str, offset: tuple[int, ...], shape: tuple[int, ...]) -> Array:
        """A box of the whole tensor.

        Raises:
            ConfigError: some of its elements were not saved.
        """
        found: Array | None = None
        missing = np.ones(shape, bool)
        for start, size, key, file in self._boxes.get(name, []):
            low = [max(a, b) for a, b in zip(start, offset, strict=True)]
            high = [min(a + n, b + m) for a, n, b, m in zip(start, size, offset, shape, strict=True)]
            if any(a >= b for a, b in zip(low, high, strict=True)):
                continue
            inside = tuple(slice(a - b, c - b) for a, b, c in zip(low, start, high, strict=True))
            here = tuple(slice(a - b, c - b) for a, b, c in zip(low, offset, high, strict=True))
            values = file.read(key)[inside]
            found = np.zeros(shape, values.dtype) if found is None else found
            found[here], missing[here] = values, False
        if found is None or missing.any():
            raise ConfigError(
                f"{self._folder} lacks {int(missing.sum())} elements of {name}: a part is not there"
            )
        return found


def is_in_parts(folder: Path) -> bool:
    """Whether it is one of these, not a distributed checkpoint of torch."""
    return bool(_files(folder))


def _files(folder: Path) -> list[Path]:
    return sorted(path for suffix in SUFFIXES for path in folder.glob(f"part_*.{suffix}"))


class PartWriter:
    """Writes the checkpoints of a run while training continues; the next waits for the one before.

    A folder is given its name by the first process, once the files of all processes are there.

    Args:
        folder: of the checkpoints.
        suffix: one of ``SUFFIXES``.
        rank: of this process.
        num_processes: that write a part.
        background: copy the tensors, and write them in a thread.
        barrier: waits for all processes.
        on_whole: called in the first process with each checkpoint.
    """

    def __init__(
        self,
        folder: Path,
        *,
        suffix: str,
        rank: int,
        num_processes: int,
        background: bool,
        barrier: Callable[[], None],
        on_whole: Callable[[Path], None],
    ) -> None:
        self._folder, self._suffix = folder, suffix
        self._rank, self._num_processes, self._background = rank, num_processes, background
        self._barrier, self._on_whole = barrier, on_whole
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def begin(self, parts: Parts, facts: RunFacts, name: str) -> Path:
        """Start writing this process's ``parts`` into the folder ``name``; what is there is replaced."""
        self.wait()
        path = self._folder / name
        if self._rank == 0:
            begin_folder(path, facts)
        self._barrier()
        tensors = {
            f"{name}@{','.join(map(str, offset))}": np.array(values, order="C", copy=True)
            for name, boxes in parts.items()
            for offset, values in boxes
        }
        self._thread = threading.Thread(target=self._write, args=(tensors, path), daemon=True)
        self._thread.start()
        if not self._background:
            self.wait()
        return path

    def wait(self) -> None:
        """Until the last one is whole and named.

        Raises:
            Exception: what kept it from being written.
        """
        if self._thread is None:
            return
        self._thread.join()
        self._thread = None
        if self._error is not None:
            raise self._error
        self._barrier()

    def _write(self, tensors: dict[str, Array], path: Path) -> None:
        unfinished = path.with_name(f".{path.name}")
        try:
            write_weights(MemoryWeights(tensors), unfinished / f"part_{self._rank}.{self._suffix}")
            if self._rank == 0:
                self._name(unfinished, path)
        except BaseException as error:  # raised by ``wait``
            self._error = error
            (unfinished / f"failed_{self._rank}").touch()

    def _name(self, unfinished: Path, path: Path) -> None:
        while len(_files(unfinished)) < self._num_processes:
            if failed := next(unfinished.glob("failed_*"), None):
                raise OSError(
                    f"{path} is not whole: process {failed.name.rpartition('_')[2]} could not write"
                )
            time.sleep(_LOOK_SECONDS)
        name_folder(path)
        self._on_whole(path)
