"""A dump of ptdbg_ascend as a trace."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

from trueup.errors import TraceError
from trueup.importers.api_stack.files import api_stack_files
from trueup.importers.api_stack.lines import read_api_stack
from trueup.importers.msprobe.leaves import DumpedCall
from trueup.importers.msprobe.tables import TableBuilder
from trueup.importers.npy import read_npy
from trueup.store import StepTables, StoredTensor
from trueup.types.trace import Manifest, RankFacts, ScalarLine, SummaryRow


class ApiStackDump:
    """What ptdbg_ascend wrote: API calls, with values where ``.npy`` files lie beside the list.

    Raises:
        TraceError: no such file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = api_stack_files(path)
        if not self._files:
            raise TraceError(f"{path} holds no api_stack_dump.pkl")
        self.manifest: Manifest = {
            "source": "ptdbg_ascend",
            "framework": "pytorch",
            "level": "L1",
            "task": "tensor" if any(_values_beside(f).is_dir() for f in self._all()) else "statistics",
            "world_size": max(len(ranks) for ranks in self._files.values()),
            "options": {},
            "environment": {},
            "devices": [],
        }

    def _all(self) -> list[Path]:
        return [file for ranks in self._files.values() for file in ranks.values()]

    def steps(self) -> dict[int, list[int]]:
        """Steps that were dumped, with their ranks."""
        return {step: list(ranks) for step, ranks in self._files.items()}

    def read(self, step: int, rank: int) -> StepTables:
        """The tables of one step of one rank.

        Raises:
            TraceError: not there, a real pickle, empty, cut off or malformed.
        """
        file = self._file(step, rank)
        found = read_api_stack(file)
        folder = _values_beside(file)
        stored = frozenset(os.listdir(folder)) if folder.is_dir() else frozenset()
        if not stored:
            found.data = {key: cast(DumpedCall, _without_files(entry)) for key, entry in found.data.items()}
        builder = TableBuilder(
            data=found.data, construct={}, stack=found.stack, framework="pytorch", stored=stored
        )
        try:
            return builder.build(step, rank)
        except TraceError as error:
            raise TraceError(f"{file}: {error}") from error

    def tensor(self, step: int, rank: int, summary: SummaryRow) -> StoredTensor | None:
        """The stored values of one row of ``summaries``; None where there are none.

        Raises:
            TraceError: the file is damaged or is refused.
        """
        name = summary.get("tensor")
        file = _values_beside(self._file(step, rank)) / str(name)
        return read_npy(file, summary["dtype"]) if name is not None and file.is_file() else None

    def scalars(self, rank: int) -> list[ScalarLine]:
        """Empty: such a dump records no scalars of a step."""
        return []

    def missing(self, rank: int) -> list[str]:
        """Nothing: a dump says not what it should hold."""
        return []

    def rank_facts(self, rank: int) -> RankFacts:
        """The rank."""
        return {"rank": rank} if any(rank in ranks for ranks in self._files.values()) else {}

    def _file(self, step: int, rank: int) -> Path:
        try:
            return self._files[step][rank]
        except KeyError:
            raise TraceError(
                f"{self.path} has no step {step} of rank {rank}; it has {self.steps()}"
            ) from None


def _values_beside(file: Path) -> Path:
    return file.with_suffix("")


def _without_files(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_files(inner) for key, inner in value.items() if key != "data_name"}
    return [_without_files(inner) for inner in value] if isinstance(value, list) else value
