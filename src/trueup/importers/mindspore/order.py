"""What a rank's folder says of its graphs: full names of operators, their order, names of parameters."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from trueup.errors import TraceError
from trueup.importers.mindspore.folders import GRAPHS, ORDER
from trueup.importers.mindspore.graph import GraphFlow, read_flow
from trueup.importers.mindspore.names import full_name_from_mangled, mangled

PARAMETER = "Parameter"
"""what files of parameters and inputs of the graph have in place of an operator's type"""
HEADER = "NodeExecutionOrder-FullNameWithScope"
_ORDER_FILE = re.compile(r"ms_execution_order_graph_(\w+)\.csv")
_GRAPH_FILE = re.compile(r"_graph_(\w+)\.ir")


@dataclass(slots=True)
class GraphNames:
    """What is known of the graphs of one rank."""

    full_names: dict[str, str] = field(default_factory=dict)
    """by the name files carry"""
    positions: dict[str, dict[str, int]] = field(default_factory=dict)
    """graph -> name files carry -> place in the execution order"""
    parameters: dict[str, str] = field(default_factory=dict)
    """full names of parameters, by the name files carry"""
    graph_inputs: set[str] = field(default_factory=set)
    """parameters of a graph that are no weights, by the name files carry"""
    flows: dict[str, GraphFlow] = field(default_factory=dict)
    """what flows where, by graph"""

    def flow(self, graph: str) -> GraphFlow | None:
        """Of one graph; where it has none of its own, the only one there is."""
        return self.flows.get(graph) or (next(iter(self.flows.values())) if len(self.flows) == 1 else None)

    def full_name(self, name: str) -> str:
        """The full name of an operator; a guess where no list has it."""
        return self.full_names.get(name) or full_name_from_mangled(name)

    def in_order(self) -> list[str]:
        """Full names of all operators that an execution order has."""
        return [self.full_names[name] for positions in self.positions.values() for name in positions]

    def places(self, graph: str) -> dict[str, int]:
        """Name files carry -> place in the order ``graph`` runs in; of all graphs where it has none of its
        own."""
        if graph in self.positions:
            return self.positions[graph]
        everything: dict[str, int] = {}
        for positions in self.positions.values():
            for name in positions:
                everything.setdefault(name, len(everything))
        return everything


def graph_names(folder: Path) -> GraphNames:
    """Read ``execution_order/*.csv`` and ``graphs/*.ir`` of a rank's folder, as far as they are there.

    Raises:
        TraceError: an execution order is empty, is no such list, or cannot be read.
    """
    known = GraphNames()
    for file in sorted((folder / ORDER).glob("*.csv"), key=_graph_number):
        graph = _ORDER_FILE.fullmatch(file.name)
        if graph:
            _take_order(known, graph.group(1), file)
    for file in sorted((folder / GRAPHS).glob("*.ir")):
        _take_graph(known, file)
    return known


def _graph_number(file: Path) -> tuple[int, str]:
    found = re.search(r"(\d+)\.csv$", file.name)
    return int(found.group(1)) if found else -1, file.name


def _take_order(known: GraphNames, graph: str, file: Path) -> None:
    positions = known.positions.setdefault(graph, {})
    for name in read_order(file):
        short = mangled(name)
        positions.setdefault(short, len(positions))
        known.full_names.setdefault(short, name)


def read_order(file: Path) -> list[str]:
    """The full names in one execution order.

    Raises:
        TraceError: empty, no list of operators, or unreadable.
    """
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise TraceError(f"{file} cannot be read: {error.strerror or error}") from error
    if not any(line.strip() for line in lines):
        raise TraceError(
            f"{file} is empty: the run ended before MindSpore wrote it. Dump again, or remove the file: "
            "operators are then put in order by their timestamps"
        )
    if lines[0].split(",")[0].strip() != HEADER:
        raise TraceError(
            f"{file} is no execution order: its first line is {lines[0][:60]!r}, not {HEADER!r}. "
            "Remove it, and operators are put in order by their timestamps"
        )
    return [name for line in lines[1:] if (name := line.split(",")[0].strip())]


def _take_graph(known: GraphNames, file: Path) -> None:
    """The graph as text names its parameters, and its operators where no execution order does."""
    try:
        flow = read_flow(file)
    except OSError as error:
        raise TraceError(f"{file} cannot be read: {error.strerror or error}") from error
    graph = _GRAPH_FILE.search(file.name)
    known.flows.setdefault(graph.group(1) if graph else file.stem, flow)
    for name, node in flow.by_name.items():
        known.full_names.setdefault(name, node.name or name)
    for name, is_weight in flow.parameters.items():
        known.parameters.setdefault(mangled(name), name)
        if not is_weight:
            known.graph_inputs.add(mangled(name))
