"""Which operator of the printed graph each dumped one is.

Mostly that of its name. But MindSpore renumbers some (``Concat-op0`` runs where ``Concat-op6`` is printed),
and numbers those it expands functions into (``Expand/_MatMulExt/BatchMatMul-op23``) otherwise than it prints
them. Such a one is known by what it takes from known operators and gives to them, bit for bit.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trueup.importers.mindspore.contents import OperatorContents, Place
from trueup.importers.mindspore.entries import Execution
from trueup.importers.mindspore.graph import GraphFlow, Of, OperatorNode
from trueup.importers.mindspore.order import PARAMETER, GraphNames
from trueup.importers.mindspore.scopes import Scope, true_scopes

_NUMBER = re.compile(r"(.*?)(\d+)")
RESHAPES = frozenset({"Reshape", "ReshapeView", "Flatten", "Squeeze", "ExpandDims"})
"""operators that only rename dimensions: where they do nothing, their files have the shape of what goes in"""
_EXPANDED = "Expand_"


@dataclass(slots=True)
class Operators:
    """The operators of one folder."""

    names: dict[str, str] = field(default_factory=dict)
    """name in files -> name in the list of all, as files spell it"""
    flow: GraphFlow | None = None
    nodes: dict[str, OperatorNode] = field(default_factory=dict)
    """name in files -> its node, where that is certain"""
    scopes: dict[int, Scope] = field(default_factory=dict)
    """number of a node -> the cells it ran in"""

    def cells(self, name: str) -> Scope | None:
        """The cells an operator of the forward run ran in, where that is known better than from its name."""
        node = self.nodes.get(name)
        return None if node is None else self.scopes.get(node.number)

    def first_uses(self, places: Mapping[str, int]) -> dict[str, int]:
        """Of operators that prepare a weight, the place of the first that takes what they give."""
        if self.flow is None:
            return {}
        users, name_of = self.flow.users(), {node.number: name for name, node in self.nodes.items()}
        out: dict[str, int] = {}
        for name, node in reversed(self.nodes.items()):
            if self.flow.prepares(node) is not None:
                takers = [name_of[user] for user in users.get(node.number, ()) if user in name_of]
                out[name] = min((out.get(taker, places[taker]) for taker in takers), default=places[name])
        return out

    def is_backward(self, name: str) -> bool:
        """Whether the graph has an operator in backward, though its name may not say so."""
        if self.flow is None:
            return False
        node = self.nodes.get(name) or self.flow.by_name.get(self.names.get(name, name))
        return node is not None and self.flow.is_backward(node)


def operators_of(folder: Path, graph: str, executions: Sequence[Execution], names: GraphNames) -> Operators:
    """What is known of the operators in a folder of one graph.

    Raises:
        TraceError: a tensor's file is damaged.
    """
    executions = [e for e in executions if e.op_type != PARAMETER]
    dumped = dict.fromkeys(e.op_name for e in executions)
    flow = names.flow(graph)
    listed = dict.fromkeys([*names.places(graph), *(flow.by_name if flow else ())])
    found = Operators(names=listed_names(dumped, listed), flow=flow)
    if flow is not None:
        found.nodes = known_nodes(found.names, flow, OperatorContents(folder, executions))
        found.names |= {name: node.mangled_name for name, node in found.nodes.items()}
        found.scopes = true_scopes(flow)
    return found


def listed_names(dumped: Iterable[str], listed: Iterable[str]) -> dict[str, str]:
    """Name in files -> name in a list of all operators, both as files spell them.

    Names in no list are those of one kind that the list has besides, in the order of their numbers.

    Example:
        >>> listed_names(["Concat-op0", "Mul-op0"], ["Mul-op0", "Concat-op6"])
        {'Mul-op0': 'Mul-op0', 'Concat-op0': 'Concat-op6'}
    """
    there = dict.fromkeys(listed)
    out = {name: name for name in dumped if name in there}
    unknown, unused = _by_kind(n for n in dumped if n not in out), _by_kind(n for n in there if n not in out)
    for kind, names in unknown.items():
        others = unused.get(kind, {})
        if len(names) == len(others):
            pairs = zip(sorted(names), sorted(others), strict=True)
            out.update({names[target]: others[reference] for target, reference in pairs})
    return out


def _by_kind(names: Iterable[str]) -> dict[str, dict[int, str]]:
    out: dict[str, dict[int, str]] = defaultdict(dict)
    for name in names:
        kind, number = _kind(name)
        out[kind][number] = name
    return out


def _kind(name: str) -> tuple[str, int]:
    found = _NUMBER.fullmatch(name)
    return (found.group(1), int(found.group(2))) if found else (name, 0)


def known_nodes(
    names: dict[str, str], flow: GraphFlow, contents: OperatorContents
) -> dict[str, OperatorNode]:
    """Name in files -> its node: by its name where that can be believed, else by what it takes and gives."""
    nodes = {name: node for name, other in names.items() if (node := flow.by_name.get(other))}
    doubtful = {_kind(name)[0] for name, node in nodes.items() if _in_doubt(name, node, contents)}
    found = {name: node for name, node in nodes.items() if _kind(name)[0] not in doubtful}
    _Search(flow, contents, found, [n for n in names if _kind(n)[0] in doubtful]).run()
    return found


def _in_doubt(name: str, node: OperatorNode, contents: OperatorContents) -> bool:
    return name.startswith(_EXPANDED) or node.mangled_name != name or not _fits(name, node, contents)


def _fits(name: str, node: OperatorNode, contents: OperatorContents) -> bool:
    """Whether the shapes of what an operator gave are those of a node."""
    if node.op in RESHAPES:
        return True
    shapes = contents.shapes(name)
    return all(slot >= len(node.shapes) or node.shapes[slot] == shape for slot, shape in shapes.items())


class _Search:
    """Nodes of operators in doubt, found from the known ones outward."""

    def __init__(
        self,
        flow: GraphFlow,
        contents: OperatorContents,
        known: dict[str, OperatorNode],
        doubtful: Sequence[str],
    ) -> None:
        self._flow, self._contents, self._known = flow, contents, known
        self._name_of = {node.number: name for name, node in known.items()}
        kinds = {_kind(name)[0] for name in doubtful}
        self._open = {n.number: n for n in flow.by_name.values() if _kind(n.mangled_name)[0] in kinds}
        self._left = dict.fromkeys(doubtful)
        self._holders: dict[tuple[str, Place, bytes], set[str]] = defaultdict(set)
        for name in doubtful:
            for place in contents.places(name):
                content = contents.of(name, place)
                if content is not None:
                    self._holders[_kind(name)[0], place, content].add(name)
        self._users: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for number, node in flow.nodes.items():
            for slot, operand in enumerate(node.operands):
                origin = flow.origin(operand)
                if isinstance(origin, Of):
                    self._users[origin.node].append((number, slot, origin.output))

    def run(self) -> None:
        """Until nothing new is found."""
        while found := self._certain():
            for number, name in found.items():
                self._known[name] = self._open.pop(number)
                self._name_of[number] = name
                del self._left[name]

    def _certain(self) -> dict[int, str]:
        """Nodes with one operator that fits, which fits no other."""
        fitting = {number: self._fitting(node) for number, node in self._open.items()}
        claims: dict[str, int] = defaultdict(int)
        for names in fitting.values():
            for name in names:
                claims[name] += 1
        return {
            n: name for n, names in fitting.items() if len(names) == 1 and claims[name := min(names)] == 1
        }

    def _fitting(self, node: OperatorNode) -> set[str]:
        kind = _kind(node.mangled_name)[0]
        found: set[str] | None = None
        for place, content in self._expected(node):
            holders = self._holders.get((kind, place, content), set())
            if holders:
                found = set(holders) if found is None else found & holders
        return {n for n in found or () if n in self._left and _fits(n, node, self._contents)}

    def _expected(self, node: OperatorNode) -> Iterable[tuple[Place, bytes]]:
        """What known operators say a node takes and gives."""
        for slot, operand in enumerate(node.operands):
            origin = self._flow.origin(operand)
            giver = self._name_of.get(origin.node) if isinstance(origin, Of) else None
            if giver is not None and isinstance(origin, Of):
                content = self._contents.of(giver, ("output", origin.output))
                if content is not None:
                    yield ("input", slot), content
        for user, slot, output in self._users[node.number]:
            taker = self._name_of.get(user)
            content = None if taker is None else self._contents.of(taker, ("input", slot))
            if content is not None:
                yield ("output", output), content
