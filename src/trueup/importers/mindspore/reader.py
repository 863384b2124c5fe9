"""A dump that MindSpore wrote by itself (``MINDSPORE_DUMP_CONFIG``) as a trace."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from trueup.errors import TraceError
from trueup.importers.mindspore import device_file
from trueup.importers.mindspore.entries import GraphEntries, graph_entries
from trueup.importers.mindspore.folders import METADATA, DumpFolders, GraphFolder, dump_folders
from trueup.importers.mindspore.names import FileName
from trueup.importers.mindspore.operators import Operators, operators_of
from trueup.importers.mindspore.order import PARAMETER, GraphNames, graph_names, read_order
from trueup.importers.mindspore.summaries import read_entry
from trueup.importers.mindspore.tables import Graph, TableBuilder
from trueup.store import StepTables, StoredTensor
from trueup.types.trace import CapturedWith, Manifest, RankFacts, ScalarLine, SummaryRow

IN_PLACE = (
    "MindSpore writes an operator's inputs when it is done: what it changed in place is dumped as it is then"
)
BACKWARD_NAMES = (
    "gradients stand under the cell their scope names; layers that share one backward graph carry the scope "
    "of one of them"
)
_MOST_NAMED = 3
_MOST_OPEN = 4
"""folders whose content is remembered"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """What is known of one folder."""

    entries: GraphEntries
    operators: Operators
    files: dict[str, FileName]


class MindsporeDump:
    """What MindSpore wrote, read one iteration of one rank at a time; ``tables`` says how it maps.

    Example:
        >>> dump = MindsporeDump(Path("dump"))              # doctest: +SKIP
        >>> dump.read(step=0, rank=0).records.height        # doctest: +SKIP
        104

    Raises:
        TraceError: no dump there, one without a single iteration, or several in one folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        found = dump_folders(path)
        if found is None:
            raise TraceError(
                f"{path} is no dump of MindSpore: no rank_N/{{net}}/{{graph}}/{{iteration}} in it"
            )
        self._folders: DumpFolders = found
        if not found.steps:
            raise TraceError(
                f"{path} describes a dump and holds no iteration of one: the run ended before it reached the "
                "first 'iteration' of its configuration, no operator matched 'kernels', or the device is not "
                "in 'support_device'. trueup dump-config --check FILE --dump DIR looks at that."
            )
        self._names: dict[int, GraphNames] = {}
        self._unknown: dict[int, list[str]] = {}
        self._opened: dict[Path, _Opened] = {}
        first = found.ranks[min(found.ranks)]
        about = _json_beside(first / METADATA / "config.json")
        options = _json_beside(first / METADATA / "data_dump.json")
        self.manifest: Manifest = {
            "source": "mindspore",
            "framework": "mindspore",
            "framework_version": about.get("ms_version"),
            "trueup_version": None,
            "python_version": None,
            "platform": None,
            "command": None,
            "created": None,
            "run_id": None,
            "world_size": max(len(ranks) for ranks in found.steps.values()),
            "level": "mix",
            "task": _task(options),
            "options": cast(CapturedWith, options),
            "seed": None,
            "deterministic": None,
            "environment": {},
            "num_threads": None,
            "devices": [about["device_target"]] if "device_target" in about else [],
        }

    def steps(self) -> dict[int, list[int]]:
        """Iterations that were dumped, ascending, with their ranks."""
        return {step: list(ranks) for step, ranks in self._folders.steps.items()}

    def read(self, step: int, rank: int) -> StepTables:
        """The tables of one iteration of one rank.

        Raises:
            TraceError: not there, empty, or with a file that is cut off, malformed or refused.
        """
        folders = self._of(step, rank)
        names = self._names_of(rank)
        opened = [self._open(folder, rank) for folder in folders]
        entries = [one.entries for one in opened]
        if not any(found.executions for found in entries):
            raise TraceError(self._nothing(folders, entries))
        self._unknown[rank] = [name for found in entries for name in found.unknown]
        graphs = [
            _graph(number, folder, found, names)
            for number, (folder, found) in enumerate(zip(folders, opened, strict=True))
        ]
        graphs.sort(key=lambda graph: min((e.timestamp for e in graph.operators), default=0))
        return TableBuilder(names).build(graphs, step, rank)

    def _open(self, folder: GraphFolder, rank: int) -> _Opened:
        if folder.path not in self._opened:
            while len(self._opened) >= _MOST_OPEN:
                self._opened.pop(next(iter(self._opened)))
            entries, names = graph_entries(folder), self._names_of(rank)
            self._opened[folder.path] = _Opened(
                entries=entries,
                operators=operators_of(folder.path, folder.graph, entries.executions, names),
                files={t.file: t.name for e in entries.executions for t in e.tensors if t.file is not None},
            )
        return self._opened[folder.path]

    def _nothing(self, folders: list[GraphFolder], entries: list[GraphEntries]) -> str:
        there = [name for found in entries for name in found.unknown][:_MOST_NAMED]
        found = f"only {', '.join(there)}" if there else "no file"
        return (
            f"{folders[0].path} holds no tensor of a dump, {found}: was the run killed before this iteration "
            "was done? Leave the step out with --steps."
        )

    def tensor(self, step: int, rank: int, summary: SummaryRow) -> StoredTensor | None:
        """The stored values of one row of ``summaries``; None where the dump holds statistics only.

        Raises:
            TraceError: the file is damaged, is refused, or has gone.
        """
        key, chunk = summary.get("tensor"), summary.get("chunk")
        if key is None or chunk is None:
            return None
        file, inside, place = str(key).partition("#")
        path = self._of(step, rank)[chunk].path / file
        if not inside:
            opened = self._open(self._of(step, rank)[chunk], rank)
            if file not in opened.files:
                raise TraceError(f"{path} cannot be read: it has gone since the dump was opened")
            return read_entry(opened.files[file], file, None, path.parent, opened.operators)
        side, _, slot = place.partition(".")
        return device_file.read_tensor(path, side, int(slot))

    def scalars(self, rank: int) -> list[ScalarLine]:
        """Empty: MindSpore's dump records no scalars of a step."""
        return []

    def missing(self, rank: int) -> list[str]:
        """Nothing: a dump says not what it should hold; ``rank_facts`` lists its limits."""
        return []

    def rank_facts(self, rank: int) -> RankFacts:
        """The rank, and the limits of such a dump."""
        if not any(rank in ranks for ranks in self._folders.steps.values()):
            return {}
        limits = [IN_PLACE, BACKWARD_NAMES]
        unknown = self._unknown.get(rank) or []
        if unknown:
            named = ", ".join(unknown[:_MOST_NAMED]) + (" and others" if len(unknown) > _MOST_NAMED else "")
            limits.append(f"files of no kind that is read here were passed over: {named}")
        if not self._names_of(rank).full_names:
            limits.append(
                "no execution_order and no graphs/*.ir: full names of operators are guessed from file names, "
                "their order taken from timestamps"
            )
        return {"rank": rank, "limits": limits}

    def operator_names(self) -> list[str]:
        """Full names of all operators of the network, as ``kernels`` in a configuration names them.

        From the execution order; where there is none, of the operators that were dumped.

        Raises:
            TraceError: an execution order or a table is damaged.
        """
        ordered = [self._names_of(rank).in_order() for rank in self._folders.ranks]
        found = dict.fromkeys(name for names in ordered for name in names)
        return list(found) if found else list(dict.fromkeys(self._dumped_operators()))

    def _dumped_operators(self) -> Iterator[str]:
        for ranks in self._folders.steps.values():
            for rank, folders in ranks.items():
                for folder in folders:
                    for run in graph_entries(folder).executions:
                        yield self._names_of(rank).full_name(run.op_name)

    def _names_of(self, rank: int) -> GraphNames:
        if rank not in self._names:
            self._names[rank] = graph_names(self._folders.ranks[rank])
        return self._names[rank]

    def _of(self, step: int, rank: int) -> list[GraphFolder]:
        try:
            return self._folders.steps[step][rank]
        except KeyError:
            steps = list(self._folders.steps.items())
            there = "; ".join(f"step {s}: ranks {list(r)}" for s, r in steps[:4])
            raise TraceError(f"{self.path} has no step {step} of rank {rank}; it has {there}") from None


def operator_names(path: Path) -> list[str]:
    """Full names of the operators of a network, from one execution order or a whole dump.

    Example:
        >>> operator_names(Path("dump"))[0]                 # doctest: +SKIP
        'Default/network-WithLossCell/_backbone-Net/fc1-Dense/MatMul-op0'

    Raises:
        TraceError: neither is there, or it is damaged.
    """
    return read_order(path) if path.is_file() else MindsporeDump(path).operator_names()


def _graph(number: int, folder: GraphFolder, opened: _Opened, names: GraphNames) -> Graph:
    operators = [e for e in opened.entries.executions if e.op_type != PARAMETER]
    places, listed = names.places(folder.graph), opened.operators.names
    known = {e.op_name: places[other] for e in operators if (other := listed.get(e.op_name)) in places}
    if len(known) == len(operators):  # each ran once, and the order names them all
        used = opened.operators.first_uses(known)
        operators.sort(key=lambda e: (used.get(e.op_name, known[e.op_name]), known[e.op_name]))
    return Graph(
        number=number,
        path=folder.path,
        operators=operators,
        parameters=[e for e in opened.entries.executions if e.op_type == PARAMETER],
        known=opened.operators,
    )


def _json_beside(file: Path) -> dict[str, object]:
    """What MindSpore leaves beside a dump; a dump is whole without it."""
    try:
        content = json.loads(file.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _task(options: dict[str, object]) -> str:
    common = options.get("common_dump_settings")
    saved = common.get("saved_data") if isinstance(common, dict) else None
    return "statistics" if saved == "statistic" else "tensor"
