"""Memory nobody has written yet: what is in it differs from run to run and means nothing.

A tensor made by ``torch.empty`` is followed until as many elements have been written as it has, or until the
program reads it; until then its values are left out, with this reason.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trueup.adapters.torch.memory import storage_of, storage_ptr
from trueup.adapters.torch.stats import StorageReference

REASON = "uninitialised memory"
_VIEWS = frozenset(
    f"torch.Tensor.{name}"
    for name in (
        *("__getitem__", "view", "reshape", "select", "narrow", "split", "chunk", "unbind", "t", "transpose"),
        *(
            "permute",
            "expand",
            "squeeze",
            "unsqueeze",
            "flatten",
            "detach",
            "view_as",
            "T",
            "diagonal",
            "unfold",
        ),
    )
)


class Uninitialised:
    """Storages of one process that hold nothing yet."""

    def __init__(self) -> None:
        self.left: dict[int, tuple[int, StorageReference]] = {}
        """storage -> elements not written yet; empty most of the time"""

    def made(self, tensors: list[tuple[str, Tensor]]) -> None:
        """These came from a call that only reserves memory."""
        for _, tensor in tensors:
            if _has_storage(tensor) and tensor.numel():
                pointer = storage_ptr(storage_of(tensor))
                self.left[pointer] = tensor.numel(), StorageReference(storage_of(tensor))

    def holds(self, tensor: Tensor, name: str, *, first: bool) -> bool:
        """Whether a call of this name finds nothing in this argument; a call that reads it ends that."""
        if not _has_storage(tensor):
            return False
        pointer = storage_ptr(storage_of(tensor))
        if not self._known(pointer):
            return False
        if (first and _writes(name)) or name in _VIEWS:
            return True
        del self.left[pointer]
        return False

    def written(self, name: str, args: tuple[object, ...], out: object) -> None:
        """The call has returned: count what it wrote."""
        target = out if isinstance(out, Tensor) else args[0] if args and _writes(name) else None
        if not isinstance(target, Tensor) or not _has_storage(target):
            return
        pointer = storage_ptr(storage_of(target))
        if not self._known(pointer):
            return
        numel = target.numel()
        if name == "torch.Tensor.__setitem__":
            numel = args[2].numel() if len(args) > 2 and isinstance(args[2], Tensor) else 1
        left, reference = self.left.pop(pointer)
        if left > numel:
            self.left[pointer] = left - numel, reference

    def _known(self, pointer: int) -> bool:
        """Whether it is followed; memory freed and used again is not."""
        entry = self.left.get(pointer)
        if entry is not None and entry[1].expired():
            del self.left[pointer]
            return False
        return entry is not None

    def forget(self) -> None:
        """A step is over."""
        self.left.clear()


def _writes(name: str) -> bool:
    return name == "torch.Tensor.__setitem__" or (name.endswith("_") and not name.endswith("__"))


def _has_storage(tensor: Tensor) -> bool:
    return (
        type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout is torch.strided and not tensor.is_meta
    )
