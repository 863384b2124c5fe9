"""What a tool has written: the step folders below a run."""

from __future__ import annotations

import re
import shutil
from pathlib import Path


def bytes_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _lines(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("*.jsonl"))


class Steps:
    """The step folders a tool writes: how large they are, and the old ones out of the way."""

    def __init__(self, root: Path, *, keep: bool) -> None:
        self._root, self._keep = root, keep
        self._seen: dict[int, int] = {}

    def tidy(self, *, before: int) -> None:
        """Measure the steps before a number, and remove them."""
        for folder in self._root.glob("step*"):
            match = re.fullmatch(r"step_?(\d+)", folder.name)
            if match and int(match[1]) < before and int(match[1]) not in self._seen:
                self._seen[int(match[1])] = bytes_of(folder)
                if not self._keep:
                    shutil.rmtree(folder)

    @property
    def bytes_a_step(self) -> float:
        """Mean over the steps, with the growing files beside them."""
        growing = bytes_of(self._root / "scalars") + bytes_of(self._root / "monitor")
        num = len(self._seen) or _lines(self._root / "scalars")
        return (sum(self._seen.values()) + growing) / num if num else 0.0
