"""Whether ranks that should hold the same weights still do, told from their files: nothing is communicated.

Each rank writes the norm over its weights with every digit; replicas that are the same have the same norm to
the last bit. A rank reads what the first of its replicas has written.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import BinaryIO

from trueup.monitoring.alarms import Latch, Subject
from trueup.monitoring.settings import RuleSettings
from trueup.store.layout import scalars_file

NAME = "replicas_parted"
_KEPT = 256
"""steps a rank remembers of itself, for a replica that is behind"""


class ReplicaCheck:
    """One rank against the first of its replicas."""

    def __init__(self, root: Path, rank: int, settings: RuleSettings) -> None:
        self._root = root
        self._rank = rank
        self._latch = Latch(raise_after=1, clear_after=settings.clear_after)
        self._own: dict[int, float] = {}
        self._file: BinaryIO | None = None
        self._rest = b""

    def judge(self, step: int, weight_norm: float | None, replicas: tuple[int, ...]) -> list[Subject]:
        """What is raised now, of any step both have written."""
        first = min(replicas, default=self._rank)
        if first == self._rank:
            return []
        if weight_norm is not None:
            self._own[step] = weight_norm
            for old in [known for known in self._own if known <= step - _KEPT]:
                del self._own[old]
        parted = []
        for there, norm in self._news(first):
            own = self._own.pop(there, None)
            if own is not None and own != norm and own == own:
                parted.append((there, own, norm))
        subjects = [
            Subject(name=f"weight norm at step {at}, rank {self._rank} to rank {first}", value=a, threshold=b)
            for at, a, b in parted[:1]
        ]
        return subjects if self._latch.update(["weights"] if parted else []) else []

    def close(self) -> None:
        """The run is over."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _news(self, rank: int) -> list[tuple[int, float]]:
        """Steps and weight norms a rank has written since the last time."""
        if self._file is None:
            try:
                self._file = scalars_file(self._root, rank).open("rb")
            except OSError:
                return []
        whole, _, self._rest = (self._rest + self._file.read()).rpartition(b"\n")
        found = []
        for line in whole.splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict) and isinstance(entry.get("weight_norm"), float):
                found.append((int(entry["step"]), entry["weight_norm"]))
        return found
