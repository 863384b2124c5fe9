"""The compiled graph as MindSpore prints it beside a dump (``graphs/*.ir``): what flows where.

One node a line, ``%7(x) = PrimFunc_Mul(%5, %para2_fc1.weight, I64(0))``, below it the types and
``# Fullname with scope: (...)``. Of operands only what is needed is understood: nodes, parameters, integers
and lists of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from trueup.importers.mindspore.names import mangled

_NODE = re.compile(r"  %(\d+)\([^()]*\) = (?:PrimFunc_|Prim_)?(\w+)\(")
_NAME = re.compile(r"full_?\s?name(?:_|\s)with(?:_|\s)scope: \(([^()]+)\)", re.IGNORECASE)
_INTEGER = re.compile(r"[IU]\d+\((-?\d+)\)")
_PARAMETER = re.compile(r"%para\d+_(.+)")
_DECLARED = re.compile(r"%para\d+_(\S+?)\s*:.*?(?:IsWeight: (true|false))?\s*$")
_SHAPE = re.compile(r"\(([\d, ]*)\)")
_BRACKETS = {"(": ")", "[": "]", "{": "}", "<": ">"}
PASSING = frozenset({"Load", "Depend"})
"""nodes that are their first operand"""
PASSED_ON = PASSING | {"UpdateState", "MakeTuple", "TupleGetItem", "Return"}
"""nodes that compute nothing"""


@dataclass(frozen=True, slots=True)
class Of:
    """An output of a node."""

    node: int
    output: int = 0


Operand = Of | str | int | tuple[int, ...] | None
"""an output, a parameter's name, a number, a list of numbers; None for anything else"""


@dataclass(slots=True)
class OperatorNode:
    """One operator of the graph."""

    number: int
    op: str
    operands: tuple[Operand, ...]
    shapes: tuple[tuple[int, ...], ...] = ()
    """of its outputs"""
    name: str | None = None
    """its full name"""

    @property
    def mangled_name(self) -> str:
        """Its name as files spell it."""
        return mangled(self.name or "")


@dataclass(slots=True)
class GraphFlow:
    """What flows where in one graph."""

    nodes: dict[int, OperatorNode] = field(default_factory=dict)
    by_name: dict[str, OperatorNode] = field(default_factory=dict)
    """by the name files carry"""
    parameters: dict[str, bool] = field(default_factory=dict)
    """name -> whether it is a weight, or a state of one, rather than an input of the graph"""
    _backward: set[int] = field(default_factory=set)

    def is_backward(self, node: OperatorNode) -> bool:
        """Whether a node needs what a gradient's operator made, or makes it for those alone."""
        if not self._backward:
            self._backward = {-1} | _backward_nodes(self)
        return node.number in self._backward

    def origin(self, operand: Operand) -> Operand:
        """What an operand is, through nodes that only hand it on."""
        while isinstance(operand, Of):
            node = self.nodes.get(operand.node)
            if node is None or not node.operands:
                return operand
            if node.op in PASSING:
                operand = node.operands[0]
            elif node.op == "TupleGetItem" and isinstance(node.operands[1], int):
                inner = self.origin(node.operands[0])
                if not isinstance(inner, Of):
                    return None
                made = self.nodes.get(inner.node)
                if made is None or made.op != "MakeTuple":
                    return Of(inner.node, node.operands[1])
                operand = made.operands[node.operands[1]]
            else:
                return operand
        return operand

    def weight(self, operand: Operand) -> str | None:
        """The weight an operand is, or is made of alone (transposed, broadcast)."""
        origin = self.origin(operand)
        if isinstance(origin, str):
            return origin if self.parameters.get(origin) else None
        return self.prepares(self.nodes[origin.node]) if isinstance(origin, Of) else None

    def prepares(self, node: OperatorNode) -> str | None:
        """The weight that is all a node takes."""
        held = [operand for operand in node.operands if isinstance(operand, Of | str)]
        return self.weight(held[0]) if len(held) == 1 and node.op not in PASSED_ON else None

    def size(self, operand: Operand) -> int:
        """Number of elements of what an operator gave; 0 for all else."""
        origin = self.origin(operand)
        node = self.nodes.get(origin.node) if isinstance(origin, Of) else None
        if node is None or not isinstance(origin, Of) or node.op in PASSED_ON:
            return 0
        return math.prod(node.shapes[origin.output]) if origin.output < len(node.shapes) else 0

    def users(self) -> dict[int, list[int]]:
        """Number of a node -> those that take what it gives, past nodes that only hand it on."""
        found: dict[int, list[int]] = {}
        for number, node in self.nodes.items():
            for operand in node.operands if node.op not in PASSED_ON else ():
                origin = self.origin(operand)
                if isinstance(origin, Of):
                    found.setdefault(origin.node, []).append(number)
        return found


def read_flow(file: Path) -> GraphFlow:
    """The graph in ``file``; what is printed in another form is passed over.

    Raises:
        OSError: it cannot be read.
    """
    found = GraphFlow()
    node: OperatorNode | None = None
    with file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith("  %"):
                node = _node(found, line)
            elif node is None:
                if line.startswith("%para") and (declared := _DECLARED.match(line)):
                    found.parameters.setdefault(declared.group(1), declared.group(2) != "false")
            elif not node.shapes and line.startswith("      : ("):
                node.shapes = _shapes(line.rpartition("-> ")[2])
            elif line.startswith("      # Full") and (name := _NAME.search(line)):
                node.name = name.group(1)
                found.by_name.setdefault(mangled(node.name), node)
    return found


def _node(found: GraphFlow, line: str) -> OperatorNode | None:
    head = _NODE.match(line)
    if head is None:
        return None
    operands = tuple(_operand(part) for part in _parts(line, head.end()))
    number = int(head.group(1))
    found.nodes[number] = node = OperatorNode(number=number, op=head.group(2), operands=operands)
    return node


def _backward_nodes(flow: GraphFlow) -> set[int]:
    """Nodes are printed after what they need."""
    found: set[int] = set()
    users: dict[int, list[int]] = {}
    for number, node in flow.nodes.items():
        needs = [operand.node for operand in node.operands if isinstance(operand, Of)]
        if (node.name or "").startswith("Gradients/") or found.intersection(needs):
            found.add(number)
        for need in needs:
            users.setdefault(need, []).append(number)
    for number, node in reversed(flow.nodes.items()):
        own = node.name or ""
        if own.startswith("Expand/") and users.get(number) and found.issuperset(users[number]):
            found.add(number)
    return found


def _parts(line: str, start: int) -> Iterator[str]:
    """What lies between the commas of the bracket that is open at ``start``."""
    closing, begin, quoted = [")"], start, False
    for at in range(start, len(line)):
        letter = line[at]
        if letter == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif letter in _BRACKETS:
            closing.append(_BRACKETS[letter])
        elif letter == closing[-1]:
            closing.pop()
            if not closing:
                if at > begin:
                    yield line[begin:at].strip()
                return
        elif letter == "," and len(closing) == 1:
            yield line[begin:at].strip()
            begin = at + 1


def _operand(text: str) -> Operand:
    if parameter := _PARAMETER.fullmatch(text):
        return parameter.group(1)
    if text.startswith("%") and text[1:].isdecimal():
        return Of(int(text[1:]))
    if integer := _INTEGER.fullmatch(text):
        return int(integer.group(1))
    if text.startswith("(") and text.endswith(")"):
        parts = [_INTEGER.fullmatch(part) for part in _parts(text, 1)]
        return tuple(int(part.group(1)) for part in parts if part) if all(parts) else None
    return None


def _shapes(types: str) -> tuple[tuple[int, ...], ...]:
    """The shapes among the types of what a node gives; a shape's numbers stand alone between brackets."""
    found = _SHAPE.findall(types.partition("elements_use_flags")[0])
    return tuple(tuple(int(part) for part in text.split(",") if part.strip()) for text in found)
