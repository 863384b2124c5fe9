"""A dump directory of msprobe as a trace."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from trueup.errors import TraceError
from trueup.importers.msprobe import files
from trueup.importers.msprobe.tables import TableBuilder
from trueup.importers.msprobe.values import read_values
from trueup.store import StepTables, StoredTensor

_MOST_NAMED = 4


class MsprobeDump:
    """What msprobe wrote, read one step of one rank at a time; ``tables`` says how it maps.

    Example:
        >>> dump = MsprobeDump(Path("dump_path"))           # doctest: +SKIP
        >>> dump.read(step=0, rank=0).records.height        # doctest: +SKIP
        956

    Raises:
        TraceError: no dump there, or its first ``dump.json`` is empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._folders = files.dump_folders(path)
        if not self._folders:
            raise TraceError(
                f"{path} is no dump of msprobe: no {files.DUMP} in it, in stepN/rankN or in stepN/procN"
            )
        first = next(iter(self._folders.values()))
        self._first_folder = next(iter(first.values()))
        head = files.read_head(self._first_folder / files.DUMP)
        self._framework = head["framework"]
        self.manifest: dict[str, object] = {
            "source": "msprobe",
            "framework": self._framework,
            "framework_version": None,
            "trueup_version": None,
            "python_version": None,
            "platform": None,
            "command": None,
            "created": None,
            "run_id": None,
            "world_size": max(len(ranks) for ranks in self._folders.values()),
            "level": head.get("level"),
            "task": head.get("task"),
            "options": self._options(),
            "seed": None,
            "deterministic": None,
            "environment": {},
            "num_threads": None,
            "devices": [],
        }

    def steps(self) -> dict[int, list[int]]:
        """Steps that have a ``dump.json``, ascending, with their ranks."""
        return {step: list(ranks) for step, ranks in self._folders.items()}

    def read(self, step: int, rank: int) -> StepTables:
        """The tables of one step of one rank.

        Raises:
            TraceError: not there, empty, cut off, malformed, or of a kind that holds no tensors.
        """
        folder = self._folder(step, rank)
        with files.no_garbage_collection():
            return self._read(folder, step, rank)

    def _read(self, folder: Path, step: int, rank: int) -> StepTables:
        dump = files.read_json(folder / files.DUMP)
        data = dump.get("data")
        if not isinstance(data, dict):
            found = ", ".join(list(dump)[:8]) or "nothing"
            raise TraceError(
                f"{folder / files.DUMP} has no object 'data' (it has: {found}); it is no dump of msprobe"
            )
        builder = TableBuilder(
            data=data,
            construct=_beside(folder / files.CONSTRUCT),
            stack=_beside(folder / files.STACK),
            framework=self._framework,
            stored=_stored(folder / files.TENSORS),
        )
        try:
            return builder.build(step, rank)
        except TraceError as error:
            raise TraceError(f"{folder / files.DUMP}: {error}") from error

    def tensor(self, step: int, rank: int, summary: dict[str, Any]) -> StoredTensor | None:
        """The stored values of one row of ``summaries``; None where the dump holds statistics only.

        Raises:
            TraceError: the file is damaged or is refused.
        """
        name = summary.get("tensor")
        if name is None:
            return None
        file = self._folder(step, rank) / files.TENSORS / name
        return read_values(file, summary["dtype"]) if file.is_file() else None

    def scalars(self, rank: int) -> list[dict[str, Any]]:
        """Empty: msprobe records no scalars of a step."""
        return []

    def rank_facts(self, rank: int) -> dict[str, Any]:
        """The rank and, where the folder tells it, the process."""
        for ranks in self._folders.values():
            if rank in ranks:
                return {"rank": rank, "pid": files.pid_of(ranks[rank])}
        return {}

    def missing(self, rank: int) -> list[str]:
        """Folders without a ``dump.json``, and steps of this rank without ``construct.json``."""
        said = [
            f"{name} holds no {files.DUMP}: it is left out (was the run killed, or the file deleted?)"
            for name in files.folders_without_dump(self.path)
        ]
        bare = [
            step
            for step, ranks in self._folders.items()
            if rank in ranks and not _filled(ranks[rank] / files.CONSTRUCT)
        ]
        if bare:
            some = ", ".join(map(str, bare[:_MOST_NAMED])) + (" and others" if bare[_MOST_NAMED:] else "")
            said.append(
                f"rank {rank} has no {files.CONSTRUCT}, or an empty one, in step {some}: which module made a "
                "call is not known, so that sites are named and paired by the order of calls alone"
            )
        return said

    def _folder(self, step: int, rank: int) -> Path:
        try:
            return self._folders[step][rank]
        except KeyError:
            there = "; ".join(f"step {s}: ranks {list(r)}" for s, r in list(self._folders.items())[:4])
            raise TraceError(f"{self.path} has no step {step} of rank {rank}; it has {there}") from None

    def _options(self) -> dict[str, object]:
        """msprobe's own configuration, where it left one beside the steps."""
        for parent in (self._first_folder, *self._first_folder.parents[:2]):
            for file in sorted(parent.glob("config_rank*.json")):
                try:
                    options = json.loads(file.read_text(encoding="utf-8", errors="replace"))
                except (OSError, ValueError):
                    continue
                if isinstance(options, dict):
                    return options
        return {}


def _beside(file: Path) -> dict[str, object]:
    """construct.json or stack.json: left out with ``extra_info`` off, and empty until the step ends."""
    return files.read_json(file) if _filled(file) else {}


def _filled(file: Path) -> bool:
    return file.is_file() and file.stat().st_size > 0


def _stored(folder: Path) -> frozenset[str]:
    if not folder.is_dir():
        return frozenset()
    with os.scandir(folder) as found:
        return frozenset(entry.name for entry in found if entry.name.endswith((".pt", ".npy")))
