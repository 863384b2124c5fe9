"""Memory nobody has written yet: what is in it differs from run to run and means nothing.

A storage that a call only reserves (``torch.empty``) is followed until all of its bytes have been written, in
captured steps and between them. Until then the values of every tensor in it whose elements are not all
written are left out, as argument and as result (a view of it, a copy of such a view). A call that computes
with memory of which no write was seen shows that something wrote it out of sight (a kernel of the program's
own): it is followed no longer. Where only a part was written, the rest is taken for padding, and goes on
meaning nothing. What a collective under way is to write has been written when a call computes with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import yaml
from torch import Tensor

from trueup.adapters.torch.memory import in_transform, storage_of, storage_ptr
from trueup.adapters.torch.stats import StorageReference

REASON = "uninitialised memory"
NOT_READ = "not read: beta is 0"

RULES: dict[str, list[str]] = yaml.safe_load(
    (Path(__file__).parent / "api_rules.yaml").read_text(encoding="utf-8")
)
RESERVING = frozenset(RULES["uninitialised"])
OVERWRITING = frozenset(RULES["overwriting"])
SETITEM = "torch.Tensor.__setitem__"
_VIEWS = frozenset(RULES["views"])
_SHAPE_ONLY = frozenset(RULES["shape_only"])
_WRITING_PLACES = frozenset(RULES["writing_places"])
_OVERWRITING_LISTS = frozenset(RULES["overwriting_lists"])
_ONLY_WRITTEN: dict[str, dict[str, str]] = RULES["only_written"]  # type: ignore[assignment]
ONLY_WRITING = frozenset({*_ONLY_WRITTEN, *_OVERWRITING_LISTS})
_WITH_BETA = frozenset(RULES["with_beta"])
_NOT_COMPUTING = _VIEWS | _WRITING_PLACES | {SETITEM}
_MOST_RUNS = 1 << 16
"""runs of neighbouring bytes of one tensor that are followed; a tensor in more pieces is only counted"""
_MOST_ROOMS = 1024
"""storages that are followed before those that are gone are looked for"""

Runs = np.ndarray[tuple[int, int], np.dtype[np.int64]]
"""(N, 2): first byte of a run in its storage, and the byte after its last"""


@dataclass(slots=True)
class _Room:
    """One storage that is not written in full."""

    size: int
    reference: StorageReference
    written: Runs = field(default_factory=lambda: np.empty((0, 2), np.int64))
    """in order, none touching another"""
    counted: int = 0
    """bytes written at places that are not known"""
    awaited: Runs = field(default_factory=lambda: np.empty((0, 2), np.int64))
    """what collectives under way will have written when the program waits for them"""

    def holds(self, tensor: Tensor) -> bool:
        """Whether some element of the tensor was not written."""
        return not _inside(_runs_of(tensor), self.written)

    def receives(self, tensor: Tensor) -> bool:
        """Whether collectives under way write what of the tensor was not written."""
        return len(self.awaited) > 0 and _inside(_runs_of(tensor), self._joined_with(self.awaited))

    def write(self, tensor: Tensor) -> None:
        runs = _runs_of(tensor)
        if runs is None:
            self.counted += tensor.numel() * tensor.element_size()
        else:
            self.written = self._joined_with(runs)

    def _joined_with(self, runs: Runs) -> Runs:
        return _joined(np.concatenate([self.written, runs]))

    @property
    def is_full(self) -> bool:
        """Whether as many bytes have been written as there are."""
        return int((self.written[:, 1] - self.written[:, 0]).sum()) + self.counted >= self.size

    @property
    def is_untouched(self) -> bool:
        """Whether no write was seen."""
        return not len(self.written) and not self.counted


class Uninitialised:
    """Storages of one process that are not written in full."""

    def __init__(self) -> None:
        self.left: dict[int, _Room] = {}
        """by address; empty most of the time"""

    def made(self, tensors: list[tuple[str, Tensor]]) -> None:
        """These came from a call that only reserves memory."""
        for _, tensor in tensors:
            if _has_storage(tensor) and tensor.numel():
                storage = storage_of(tensor)
                self.left[storage_ptr(storage)] = _Room(storage.nbytes(), StorageReference(storage))
        if len(self.left) > _MOST_ROOMS:
            self.left = {at: room for at, room in self.left.items() if not room.reference.expired()}

    def holds(self, tensor: Tensor) -> bool:
        """Whether some of a tensor's elements have not been written."""
        room = self._room(tensor)
        return room is not None and room.holds(tensor)

    def meaningless(self, tensor: Tensor, name: str, *, first: bool) -> bool:
        """Whether an argument of a call of this name holds nothing. A call that computes with it ends that,
        unless a part of the memory was written before."""
        room = self._room(tensor)
        if room is None or not room.holds(tensor):
            return False
        unread = name in _SHAPE_ONLY or (first and name in _NOT_COMPUTING)
        if not unread and room.receives(tensor):  # it has been waited for
            self.written(tensor)
            return False
        if unread or not room.is_untouched:
            return True
        self._forget(tensor)
        return False

    def called(
        self,
        name: str,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        results: list[tuple[str, Tensor]],
    ) -> None:
        """The call has returned: follow what it reserved, or wrote."""
        if name in RESERVING:
            self.made(results)
        elif self.left:
            self._write(name, args, kwargs)
            for where, tensor in results:
                if name in _ONLY_WRITTEN and where == _ONLY_WRITTEN[name]["result"]:
                    self.written(tensor)
            if name in _VIEWS and args and isinstance(args[0], Tensor) and self.holds(args[0]):
                # what had to be copied to have the new shape means as little
                self.made([one for one in results if self._room(one[1]) is None])

    def written(self, tensor: Tensor) -> None:
        """All of a tensor's elements have been written."""
        room = self._room(tensor)
        if room is not None:
            room.write(tensor)
            if room.is_full:
                self._forget(tensor)

    def awaited(self, tensor: Tensor) -> None:
        """A collective under way will write all of a tensor's elements."""
        room, runs = self._room(tensor), _runs_of(tensor)
        if room is not None and runs is not None:
            room.awaited = _joined(np.concatenate([room.awaited, runs]))

    def _write(self, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        for target in _tensors(kwargs.get("out")):
            self.written(target)
        first = args[0] if args else None
        into_first = name.endswith("_") and without_beta(name, kwargs)
        if name in OVERWRITING or name in _OVERWRITING_LISTS or into_first:
            for target in _tensors(first):
                self.written(target)
        elif name == SETITEM and isinstance(first, Tensor):
            self._set_item(first, args[1], args[2])
        elif name in _WRITING_PLACES and isinstance(first, Tensor):
            sources = [one.numel() for one in (*args[1:], *kwargs.values()) if isinstance(one, Tensor)]
            self._count(first, max(sources, default=0))

    def _set_item(self, tensor: Tensor, index: object, value: object) -> None:
        if self._room(tensor) is None:
            return
        if _is_basic(index):
            self.written(tensor[index])  # type: ignore[index]
        elif isinstance(value, Tensor) and value.numel() > 1:
            self._count(tensor, value.numel())
        elif isinstance(index, Tensor) and index.dtype not in (torch.bool, torch.uint8):
            self._count(tensor, index.numel() * tensor[0].numel())

    def _count(self, tensor: Tensor, numel: int) -> None:
        """So many elements were written, at places that are not known."""
        room = self._room(tensor)
        if room is not None:
            room.counted += numel * tensor.element_size()
            if room.is_full:
                self._forget(tensor)

    def _room(self, tensor: Tensor) -> _Room | None:
        """Where it is followed; memory freed and used again is not."""
        if not _has_storage(tensor):
            return None
        pointer = storage_ptr(storage_of(tensor))
        room = self.left.get(pointer)
        if room is not None and room.reference.expired():
            del self.left[pointer]
            return None
        return room

    def _forget(self, tensor: Tensor) -> None:
        self.left.pop(storage_ptr(storage_of(tensor)), None)


def is_only_written(name: str, where: str) -> bool:
    """Whether a call of this name writes an argument, ``out`` or one of ``ONLY_WRITING``, without reading it:
    what it holds before means nothing."""
    _, argument, *inside = where.split(".")
    if argument == "out" or (name in _ONLY_WRITTEN and argument == _ONLY_WRITTEN[name]["argument"]):
        return True
    return argument == "0" and bool(inside) and name in _OVERWRITING_LISTS


def without_beta(name: str, kwargs: dict[str, object]) -> bool:
    """Whether a call leaves its first argument out of the sum that it makes."""
    beta = kwargs.get("beta", 1)
    return name in _WITH_BETA and isinstance(beta, (int, float)) and beta == 0


def _runs_of(tensor: Tensor) -> Runs | None:
    """Where a tensor's elements lie; None where they are in too many pieces."""
    size = tensor.element_size()
    strides = zip(tensor.stride(), tensor.shape, strict=True)
    dims = sorted((stride, extent) for stride, extent in strides if extent > 1 and stride)
    length = 1
    while dims and dims[0][0] <= length:
        stride, extent = dims.pop(0)
        length = stride * (extent - 1) + length
    if np.prod([extent for _, extent in dims], initial=1.0) > _MOST_RUNS:
        return None
    starts = np.array([tensor.storage_offset()], np.int64)
    for stride, extent in dims:
        starts = (starts[:, None] + np.arange(extent, dtype=np.int64) * stride).ravel()
    starts.sort()
    return np.stack([starts * size, (starts + length) * size], axis=1)


def _inside(runs: Runs | None, known: Runs) -> bool:
    """Whether all runs lie in known ones, which do not touch one another."""
    if runs is None:
        return False
    at = np.searchsorted(known[:, 0], runs[:, 0], "right") - 1
    inside = (at >= 0) & (runs[:, 1] <= known[at, 1]) if len(known) else at >= 0
    return bool(inside.all())


def _joined(runs: Runs) -> Runs:
    """The runs in order, those that touch as one."""
    runs = runs[np.argsort(runs[:, 0], kind="stable")]
    ends = np.maximum.accumulate(runs[:, 1])
    begins = np.flatnonzero(np.append(True, runs[1:, 0] > ends[:-1]))
    return np.stack([runs[begins, 0], np.maximum.reduceat(runs[:, 1], begins)], axis=1)


def _is_basic(index: object) -> bool:
    """Whether an index gives a view: whole numbers, slices, dots, None."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(
        part is None
        or part is Ellipsis
        or (isinstance(part, (slice, int, np.integer)) and not isinstance(part, bool))
        for part in parts
    )


def _tensors(given: object) -> list[Tensor]:
    if isinstance(given, Tensor):
        return [given]
    return [one for one in given if isinstance(one, Tensor)] if isinstance(given, (list, tuple)) else []


def _has_storage(tensor: Tensor) -> bool:
    plain = type(tensor) in (Tensor, torch.nn.Parameter) and not in_transform(tensor)
    return plain and tensor.layout is torch.strided and not tensor.is_meta
