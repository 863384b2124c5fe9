"""What the tensors of operators hold, as short hashes: of their bytes, else of their statistics."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

from trueup.importers.mindspore.entries import Execution, TensorEntry
from trueup.importers.npy import read_memory, read_shape

Place = tuple[str, int]
"""``input`` or ``output``, and the slot"""
_FEWEST_BYTES = 16
"""equal bytes of less say nothing"""
_FEWEST_STATISTICS = 3


class OperatorContents:
    """Of operators in one folder; each file is read when first asked for."""

    def __init__(self, folder: Path, executions: Sequence[Execution]) -> None:
        self._folder = folder
        self._entries: dict[str, dict[Place, TensorEntry]] = {}
        for execution in executions:
            own = self._entries.setdefault(execution.op_name, {})
            for tensor in execution.tensors:
                own.setdefault((tensor.name.side or "output", tensor.name.slot), tensor)
        self._known: dict[tuple[str, Place], bytes | None] = {}

    def places(self, name: str) -> list[Place]:
        """Where an operator has tensors."""
        return list(self._entries.get(name, {}))

    def shapes(self, name: str) -> dict[int, tuple[int, ...]]:
        """Slot -> shape of what an operator gave, as far as its files say.

        Raises:
            TraceError: a file is damaged.
        """
        out = {}
        for (side, slot), entry in self._entries.get(name, {}).items():
            if side == "output":
                if entry.statistics is not None:
                    out[slot] = tuple(entry.statistics.shape)
                elif entry.device is not None:
                    out[slot] = entry.device.shape
                elif entry.file is not None:
                    out[slot] = read_shape(self._folder / entry.file)
        return out

    def of(self, name: str, place: Place) -> bytes | None:
        """The hash of one tensor; None where it is not there, or says nothing.

        Raises:
            TraceError: its file is damaged.
        """
        key = name, place
        if key not in self._known:
            entry = self._entries.get(name, {}).get(place)
            self._known[key] = None if entry is None else self._hash(entry)
        return self._known[key]

    def _hash(self, entry: TensorEntry) -> bytes | None:
        if entry.file is not None and entry.device is None:
            held = read_memory(self._folder / entry.file)[0].tobytes()
            return None if len(held) < _FEWEST_BYTES else blake2b(held, digest_size=12).digest()
        if entry.statistics is None or len(entry.statistics.numbers) < _FEWEST_STATISTICS:
            return None
        return repr(sorted(entry.statistics.numbers.items())).encode()
