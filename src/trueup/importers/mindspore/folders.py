"""Where the tensors of a dump lie: one folder an iteration and graph, in each of MindSpore's layouts.

| written by | layout |
|---|---|
| CPU, GPU, Ascend O0 and O1 | ``rank_R/{net}/{graph}/{iteration}/`` |
| Ascend O2 | ``{step}/{time}/{device}/{model}/{model_id}/{iteration}/`` |
| Ascend O2, started by msprobe | ``rank_R/{time}/step_N/`` |

Any of their folders may be given: the whole, one rank, one net, one graph, one iteration.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from trueup.errors import TraceError
from trueup.importers.mindspore.names import file_name

STATISTIC, MAPPING = "statistic.csv", "mapping.csv"
ORDER, GRAPHS, METADATA = "execution_order", "graphs", ".dump_metadata"
_RANK = re.compile(r"rank_(\d+)")
_STEP = re.compile(r"step_(\d+)")
_BESIDE = frozenset({ORDER, GRAPHS, METADATA, "debug_files", "constants"})
_MOST_LOOKED_AT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFolder:
    """The files of one graph in one iteration."""

    graph: str
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpFolders:
    """What a dump holds, by step and rank."""

    steps: dict[int, dict[int, list[GraphFolder]]] = field(default_factory=dict)
    ranks: dict[int, Path] = field(default_factory=dict)
    """folder of each rank: what describes its graphs lies there"""


def dump_folders(path: Path) -> DumpFolders | None:
    """What lies under ``path``; None where that is no dump of MindSpore.

    Raises:
        TraceError: two dumps went into one folder, so that it is several traces.
    """
    if path.name == STATISTIC and path.is_file():
        path = path.parent
    if not path.is_dir():
        return None
    found = DumpFolders()
    ranks = {int(m.group(1)): c for c in _folders(path) if (m := _RANK.fullmatch(c.name))}
    for rank, folder in sorted(ranks.items()):
        _add_rank(found, rank, folder)
    if not ranks:
        _add_other(found, path)
    if not found.steps and not any(_describes(folder) for folder in found.ranks.values()):
        return None
    steps = {step: dict(sorted(found.steps[step].items())) for step in sorted(found.steps)}
    return DumpFolders(steps=steps, ranks=found.ranks)


def _add_other(found: DumpFolders, path: Path) -> None:
    own = _RANK.fullmatch(path.name)
    parent = _RANK.fullmatch(path.parent.name)
    if own:
        _add_rank(found, int(own.group(1)), path)
    elif _holds_tensors(path):
        _add_iteration(found, path)
    elif _is_net(path) and (parent or any(map(_holds_tensors, path.glob("[0-9]*/[0-9]*/")))):
        rank = int(parent.group(1)) if parent else 0
        _add_net(found, rank, path)
        found.ranks[rank] = path.parent if parent else path
    elif any(map(_holds_tensors, path.glob("[0-9]*/"))):
        for iteration in filter(_is_number, _folders(path)):
            _add_iteration(found, iteration)
    elif _describes(path):
        _add_rank(found, 0, path)
    else:
        _add_whole_graph_dump(found, path)


def _add_rank(found: DumpFolders, rank: int, folder: Path) -> None:
    found.ranks[rank] = folder
    children = [c for c in _folders(folder) if c.name not in _BESIDE]
    timed = [c for c in children if c.name.isdecimal() and any(map(_is_step, _folders(c)))]
    nets = [c for c in children if c not in timed and _is_net(c)]
    if len(nets) + len(timed) > 1:
        names = ", ".join(c.name for c in nets + timed)
        raise TraceError(
            f"{folder} holds the dumps of {len(nets) + len(timed)} runs or nets ({names}); "
            f"give one of them, for example {(nets + timed)[0]}, and let every run dump into its own folder"
        )
    for net in nets:
        _add_net(found, rank, net)
    for run in timed:
        for step in filter(_is_step, _folders(run)):
            _add(found, int(step.name.removeprefix("step_")), rank, GraphFolder(graph="0", path=step))


def _add_net(found: DumpFolders, rank: int, net: Path) -> None:
    for graph in sorted(filter(_is_number, _folders(net)), key=lambda g: int(g.name)):
        for iteration in filter(_is_number, _folders(graph)):
            _add(found, int(iteration.name), rank, GraphFolder(graph=graph.name, path=iteration))


def _add_iteration(found: DumpFolders, path: Path) -> None:
    """One folder of tensors; the names around it tell step, graph and rank where they can."""
    above = path.parents
    step = _STEP.fullmatch(path.name)
    number = int(step.group(1)) if step else int(path.name) if _is_number(path) else 0
    rank = next((int(m.group(1)) for p in above if (m := _RANK.fullmatch(p.name))), 0)
    graph = path.parent.name if _is_number(path.parent) and not step else "0"
    _add(found, number, rank, GraphFolder(graph=graph, path=path))
    found.ranks[rank] = next((p for p in above if _RANK.fullmatch(p.name)), path)


def _add_whole_graph_dump(found: DumpFolders, path: Path) -> None:
    for step in filter(_is_number, _folders(path)):
        for time in filter(_is_number, _folders(step)):
            for device in filter(_is_number, _folders(time)):
                _add_device(found, int(step.name), device)


def _add_device(found: DumpFolders, step: int, device: Path) -> None:
    rank = int(device.name)
    known = found.steps.get(step, {}).get(rank)
    for model in _folders(device):
        for number in filter(_is_number, _folders(model)):
            for iteration in filter(_is_number, _folders(number)):
                if known:
                    times = sorted({known[0].path.parents[3].name, device.parent.name})
                    raise TraceError(
                        f"step {step} of device {rank} was dumped by several runs ({', '.join(times)}) into "
                        f"{device.parents[2]}; remove all but one of these folders"
                    )
                _add(found, step, rank, GraphFolder(graph=f"{model.name}/{number.name}", path=iteration))
                found.ranks.setdefault(rank, device)


def _add(found: DumpFolders, step: int, rank: int, folder: GraphFolder) -> None:
    found.steps.setdefault(step, {}).setdefault(rank, []).append(folder)


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(child for child in path.iterdir() if child.is_dir())
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from error


def _is_number(path: Path) -> bool:
    return path.name.isascii() and path.name.isdecimal()


def _is_step(path: Path) -> bool:
    return _STEP.fullmatch(path.name) is not None


def _is_net(path: Path) -> bool:
    """``{graph}/{iteration}/``, and no deeper, so that it is no step of a whole-graph dump."""
    graphs = [g for g in _folders(path) if _is_number(g)]
    iterations = [i for g in graphs for i in _folders(g) if _is_number(i)]
    return bool(iterations) and not any(any(map(_is_number, _folders(i))) for i in iterations)


def _describes(path: Path) -> bool:
    return any((path / name).is_dir() for name in (ORDER, METADATA))


def _holds_tensors(path: Path) -> bool:
    if (path / STATISTIC).is_file():
        return True
    with os.scandir(path) as there:
        files = (entry.name for entry in there if entry.is_file())
        return any(file_name(name) for _, name in zip(range(_MOST_LOOKED_AT), files, strict=False))
