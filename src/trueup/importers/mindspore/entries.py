"""All tensors of one graph in one iteration, wherever the dump put them, put together into operator calls."""

from __future__ import annotations

import csv
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from trueup.errors import TraceError
from trueup.importers.mindspore import device_file
from trueup.importers.mindspore.device_file import DeviceTensor
from trueup.importers.mindspore.folders import MAPPING, STATISTIC, GraphFolder
from trueup.importers.mindspore.names import FileName, file_name
from trueup.importers.mindspore.statistic import Statistics, read_statistics

_OVERFLOW_INFORMATION = "Opdebug"
_SIDES = ("input", "output")


@dataclass(slots=True)
class TensorEntry:
    """One tensor: its values, its statistics, or both."""

    name: FileName
    file: str | None = None
    """name of the file that holds it"""
    device: DeviceTensor | None = None
    """where in an operator's file it lies"""
    statistics: Statistics | None = None


@dataclass(slots=True)
class Execution:
    """One run of one operator."""

    op_type: str
    op_name: str
    timestamp: int
    tensors: list[TensorEntry] = field(default_factory=list)
    """inputs, then outputs, by slot"""
    arguments: dict[str, object] | None = None


@dataclass(slots=True)
class GraphEntries:
    """What one folder holds."""

    executions: list[Execution] = field(default_factory=list)
    """in the order of their timestamps"""
    unknown: list[str] = field(default_factory=list)
    """files that are no part of a dump we know"""


def graph_entries(folder: GraphFolder) -> GraphEntries:
    """Everything in ``folder``.

    Raises:
        TraceError: a table or an operator's file in it is damaged; says which, and what to do.
    """
    found = GraphEntries()
    arguments: dict[str, dict[str, object]] = {}
    tensors: dict[tuple[object, ...], TensorEntry] = {}
    long_names = _mapping(folder.path / MAPPING)
    with os.scandir(folder.path) as there:
        files = sorted(entry.name for entry in there if entry.is_file())
    for file in files:
        if file in (STATISTIC, MAPPING):
            continue
        name = long_names.get(file, file)
        if name.endswith(".json"):
            arguments[name.removesuffix(".json")] = _arguments(folder.path / file)
            continue
        parsed = file_name(name)
        if parsed is None:
            found.unknown.append(file)
        elif parsed.op_type != _OVERFLOW_INFORMATION:
            _take_file(tensors, parsed, folder.path / file)
    if STATISTIC in files:
        for line in read_statistics(folder.path / STATISTIC):
            tensors.setdefault(_key(line.name), TensorEntry(name=line.name)).statistics = line
    found.executions = _executions(list(tensors.values()))
    for execution in found.executions:
        execution.arguments = arguments.get(f"{execution.op_type}.{execution.op_name}")
    return found


def _key(name: FileName) -> tuple[object, ...]:
    return name.op_type, name.op_name, name.task, name.stream, name.timestamp, name.side, name.slot


def _take_file(tensors: dict[tuple[object, ...], TensorEntry], name: FileName, path: Path) -> None:
    if name.side is not None:
        tensors.setdefault(_key(name), TensorEntry(name=name)).file = path.name
        return
    for tensor in device_file.read_tensors(path):
        own = FileName(
            op_type=name.op_type,
            op_name=name.op_name,
            task=name.task,
            stream=name.stream,
            timestamp=name.timestamp,
            side=tensor.side,
            slot=tensor.slot,
            format=tensor.format,
            dtype=tensor.dtype,
        )
        tensors[_key(own)] = TensorEntry(name=own, file=path.name, device=tensor)


def _arguments(path: Path) -> dict[str, object]:
    """``{op_type}.{op_name}.json``, which ``save_kernel_args`` writes."""
    try:
        content = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError, RecursionError) as error:
        raise TraceError(f"{path} is no whole JSON file ({error}); remove it, or dump again") from error
    return content if isinstance(content, dict) else {}


def _mapping(file: Path) -> dict[str, str]:
    """``mapping.csv``: names too long for the file system, by the numbers that stand for them."""
    if not file.is_file():
        return {}
    try:
        with file.open(encoding="utf-8", errors="replace", newline="") as stream:
            return {line[0].strip(): line[1].strip() for line in csv.reader(stream) if len(line) > 1}
    except (OSError, csv.Error) as error:
        raise TraceError(f"{file} cannot be read ({error}); without it these files have no names") from error


def _executions(tensors: list[TensorEntry]) -> list[Execution]:
    """A slot seen again begins another run of its operator (a loop in the graph)."""
    tensors.sort(key=lambda t: (t.name.timestamp, _SIDES.index(t.name.side or "input"), t.name.slot))
    latest: dict[tuple[str, str], Execution] = {}
    seen: dict[tuple[str, str], set[tuple[str | None, int]]] = {}
    found = []
    for tensor in tensors:
        operator, slot = (tensor.name.op_type, tensor.name.op_name), (tensor.name.side, tensor.name.slot)
        if operator not in latest or slot in seen[operator]:
            latest[operator] = Execution(*operator, timestamp=tensor.name.timestamp)
            seen[operator] = set()
            found.append(latest[operator])
        seen[operator].add(slot)
        latest[operator].tensors.append(tensor)
    for execution in found:
        execution.tensors.sort(key=lambda t: (_SIDES.index(t.name.side or "input"), t.name.slot))
    return found
