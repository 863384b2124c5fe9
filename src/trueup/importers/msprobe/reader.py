"""A dump directory of msprobe as a trace."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, cast

import pyarrow as pa

from trueup import _optional
from trueup.errors import TraceError
from trueup.importers.msprobe import files
from trueup.importers.msprobe.tables import TableBuilder
from trueup.importers.npy import read_npy
from trueup.store import StepTables, StoredTensor
from trueup.types.trace import CapturedWith, Manifest, RankFacts, ScalarLine, SummaryRow

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
        self.manifest: Manifest = {
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
            "options": cast(CapturedWith, self._options()),
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
        except (TraceError, OverflowError, pa.ArrowException) as error:
            raise TraceError(f"{folder / files.DUMP}: {error}; dump again") from error

    def tensor(self, step: int, rank: int, summary: SummaryRow) -> StoredTensor | None:
        """The stored values of one row of ``summaries``; None where the dump holds statistics only.

        Raises:
            TraceError: the file is damaged or is refused.
        """
        name = summary.get("tensor")
        if name is None:
            return None
        file = self._folder(step, rank) / files.TENSORS / name
        return read_values(file, summary["dtype"]) if file.is_file() else None

    def scalars(self, rank: int) -> list[ScalarLine]:
        """Empty: msprobe records no scalars of a step."""
        return []

    def rank_facts(self, rank: int) -> RankFacts:
        """The rank and, where the folder tells it, the process."""
        for ranks in self._folders.values():
            if rank in ranks:
                return {"rank": rank, "pid": files.pid_of(ranks[rank])}
        return {}

    def missing(self, rank: int) -> list[str]:
        """Folders without a ``dump.json``, and steps of this rank without ``construct.json``."""
        sentences = [
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
            sentences.append(
                f"rank {rank} has no {files.CONSTRUCT}, or an empty one, in step {some}: which module made a "
                "call is not known, so that sites are named and paired by the order of calls alone"
            )
        return sentences

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


def read_values(file: Path, dtype: str) -> StoredTensor:
    """The tensor in ``file``, bit for bit; ``dtype`` is what the dump says it was.

    MindSpore's dumps widen bfloat16 to float32 in their ``.npy``; it is narrowed again when no bit is lost.

    Raises:
        TraceError: damaged, not one tensor, or a pickle that would execute code.
        ConfigError: a ``.pt`` file and no PyTorch.
    """
    return read_npy(file, dtype) if file.suffix == ".npy" else _read_pt(file)


def _read_pt(file: Path) -> StoredTensor:
    torch: Any = _optional.require("torch", purpose=f"Reading {file.name}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a pickle protocol that is about to be refused
            value = torch.load(file, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise TraceError(
            f"{file} is refused: it holds more than tensor data ({_first_line(error)}), and loading it could "
            "execute code. msprobe writes plain tensors; ask where this file comes from."
        ) from error
    except Exception as error:  # of damaged bytes torch's reader makes any
        raise TraceError(f"{file} is not a whole .pt file: {_first_line(error)}") from error
    if not isinstance(value, torch.Tensor):
        raise TraceError(f"{file} holds a {type(value).__name__}, not the one tensor msprobe writes")
    tensor = value.detach()
    if tensor.is_sparse or tensor.is_quantized or tensor.layout != torch.strided:
        raise TraceError(f"{file} holds a {tensor.layout} tensor, which has no plain bytes")
    tensor = tensor.resolve_conj().resolve_neg().contiguous()
    data = tensor.reshape(-1).view(torch.uint8).numpy()
    return StoredTensor(dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape), data=data)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
