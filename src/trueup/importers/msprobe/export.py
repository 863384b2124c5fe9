"""Writes a trace as a dump directory that msprobe 26.2.0's own ``compare`` and ``graph_visualize`` accept.

What has no place in msprobe's format is left out: the root module (msprobe does not list it either), losses,
gradients other than the accumulated ones, optimizer state, counts, digests and sketches. ``md5`` is written
where the capture kept a CRC-32, which is what msprobe means by it. At API level msprobe records the gradients
of an autograd node, a trace those of the call's arguments: they agree where a call is one node.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trueup import _optional
from trueup.errors import ConfigError
from trueup.importers.msprobe.entries import EntryWriter
from trueup.importers.msprobe.files import CONSTRUCT, DUMP, STACK, TENSORS
from trueup.store import StoredTensor, TraceSource
from trueup.types.trace import SummaryRow

_MAX_NAME_BYTES = 240


def export_msprobe(
    source: TraceSource,
    dest: Path,
    *,
    steps: Collection[int] | None = None,
    ranks: Collection[int] | None = None,
) -> list[Path]:
    """Write ``dest/stepN/rankR`` (``procPID`` where the run was one process) and return these folders.

    Args:
        source: any trace.
        dest: made when missing; folders of steps already there are not overwritten.
        steps: which steps; all when None.
        ranks: which ranks; all when None.

    Example:
        >>> export_msprobe(open_trace(Path("run")), Path("dump"))        # doctest: +SKIP
        [PosixPath('dump/step0/proc4711')]

    Raises:
        ConfigError: nothing chosen, a dump already there, or values to be written and no PyTorch.
        TraceError: a step cannot be read.
    """
    chosen = _chosen(source, steps, ranks)
    folders = [(step, rank, _folder(source, dest, step, rank)) for step, rank in chosen]
    for _, _, folder in folders:
        if (folder / DUMP).exists():
            raise ConfigError(f"{folder} already holds a dump; choose another folder or remove it first")
    for step, rank, folder in folders:
        _export_one(source, step, rank, folder)
    return [folder for _, _, folder in folders]


def _chosen(
    source: TraceSource, steps: Collection[int] | None, ranks: Collection[int] | None
) -> list[tuple[int, int]]:
    there = source.steps()
    chosen = [
        (step, rank)
        for step, of_step in there.items()
        if steps is None or step in steps
        for rank in of_step
        if ranks is None or rank in ranks
    ]
    if not chosen:
        listed = ", ".join(str(s) for s in list(there)[:20]) or "none"
        every = sorted({rank for of_step in there.values() for rank in of_step})
        raise ConfigError(
            f"nothing to export from {source.path}: it has the steps {listed} and the ranks {every}"
        )
    return chosen


def _folder(source: TraceSource, dest: Path, step: int, rank: int) -> Path:
    if (source.manifest.get("world_size") or 1) > 1:
        return dest / f"step{step}" / f"rank{rank}"
    return dest / f"step{step}" / f"proc{source.rank_facts(rank).get('pid') or 0}"


def _export_one(source: TraceSource, step: int, rank: int, folder: Path) -> None:
    tables = source.read(step, rank)
    manifest = source.manifest
    framework = "mindspore" if manifest.get("framework") == "mindspore" else "pytorch"
    folder.mkdir(parents=True, exist_ok=True, mode=0o750)
    values = _Values(source, step, rank, folder / TENSORS, framework)
    writer = EntryWriter(tables, framework=framework, tied=_tied(source, rank), store=values.store)
    task = "tensor" if values.num_written or manifest.get("task") == "tensor" else "statistics"
    head = {
        "task": task,
        "level": manifest.get("level") or "mix",
        "framework": framework,
        "dump_data_dir": str(folder / TENSORS) if task == "tensor" else None,
    }
    _write(folder / STACK, {}, writer.stack)
    _write(folder / CONSTRUCT, {}, writer.construct)
    _write(folder / DUMP, head, writer.data)  # last: it is what makes the folder a dump


def _tied(source: TraceSource, rank: int) -> dict[str, list[str]]:
    """First name of each tied parameter -> its other names."""
    found: dict[str, list[str]] = {}
    for parameter in source.rank_facts(rank).get("parameters") or ():
        tied = parameter.get("tied_to")
        if tied:
            found.setdefault(tied, []).append(parameter["fqn"])
    return found


def _write(file: Path, head: Mapping[str, object], entries: Mapping[str, object]) -> None:
    """One entry a line: quick to write, and to look through."""
    body = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in entries.items())
    text = f"{{\n{body}\n}}"
    if head:
        lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
        text = "{\n" + ",\n".join([*lines, f'"data": {text}']) + "\n}"
    file.write_text(text + "\n", encoding="utf-8")
    file.chmod(0o640)


class _Values:
    """Writes stored tensors beside the entries: ``.pt`` for PyTorch, ``.npy`` for MindSpore."""

    def __init__(self, source: TraceSource, step: int, rank: int, folder: Path, framework: str) -> None:
        self.num_written = 0
        self._source, self._step, self._rank = source, step, rank
        self._folder = folder
        self._suffix = ".npy" if framework == "mindspore" else ".pt"
        self._taken: set[str] = set()

    def store(self, summary: SummaryRow, name: str) -> str | None:
        """Write the values of one summary; returns the file's name, None where there are none."""
        if summary.get("tensor") is None:
            return None
        tensor = self._source.tensor(self._step, self._rank, summary)
        if tensor is None:
            return None
        if not self.num_written:
            self._folder.mkdir(exist_ok=True, mode=0o750)
        file = self._folder / self._file_name(name)
        if not (_write_npy(file, tensor) if self._suffix == ".npy" else _write_pt(file, tensor)):
            return None
        file.chmod(0o640)
        self.num_written += 1
        return file.name

    def _file_name(self, name: str) -> str:
        """A name a file system takes, used once."""
        clean = "".join("_" if c in '/\\:*?"<>|\0' or c < " " else c for c in name)
        clean = os.fsencode(clean)[:_MAX_NAME_BYTES].decode("utf-8", "ignore")
        free, again = clean, 1
        while free in self._taken:
            free, again = f"{clean}~{again}", again + 1
        self._taken.add(free)
        return free + self._suffix


def _write_pt(file: Path, tensor: StoredTensor) -> bool:
    torch: Any = _optional.require("torch", purpose="Exporting tensor values for msprobe")
    dtype = getattr(torch, tensor.dtype, None)
    if dtype is None:
        return False
    data = torch.from_numpy(np.array(tensor.data, copy=True))
    torch.save(
        data.view(dtype).reshape(tensor.shape) if data.numel() else torch.empty(tensor.shape, dtype=dtype),
        file,
    )
    return True


def _write_npy(file: Path, tensor: StoredTensor) -> bool:
    data = np.array(tensor.data, copy=True)
    if tensor.dtype == "bfloat16":  # numpy has none: widened, as msprobe does, which loses nothing
        array = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        try:
            array = data.view(np.dtype(tensor.dtype))
        except TypeError:
            return False
    np.save(file, array.reshape(tensor.shape), allow_pickle=False)
    return True
