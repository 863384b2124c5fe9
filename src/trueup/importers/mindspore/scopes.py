"""In which cell an operator ran. Its name alone does not say: a function of ``mint`` or ``ops`` is compiled
once, and all its operators carry the scope of the cell that called it first, those it is expanded into none.

Certain are operators that take a weight: they ran in the cell that owns it. A scope is believed where no
operator of another cell lies between it and the cell's own. All others stand between those two: in the
innermost cell that holds what ran before and after, rather in the one that made all they take.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from trueup.importers.mindspore.graph import PASSED_ON, GraphFlow, Of, OperatorNode
from trueup.importers.mindspore.names import operator_name

Cell = tuple[str, str | None]
Scope = tuple[Cell, ...]
"""cells from the outermost in, each with its name and class"""
Path = tuple[str, ...]


def true_scopes(flow: GraphFlow) -> dict[int, Scope]:
    """Number of a node of the forward run -> the cells it ran in."""
    nodes = [n for n in flow.nodes.values() if _is_forward(flow, n)]
    return _Scopes(flow, nodes).found()


def _is_forward(flow: GraphFlow, node: OperatorNode) -> bool:
    if node.name is None or node.op in PASSED_ON or flow.is_backward(node):
        return False
    name = operator_name(node.name, node.op)
    return name.phase == "forward" and name.mode == "train"


class _Scopes:
    """One graph; places are positions among its operators of the forward run, in the order of the graph."""

    def __init__(self, flow: GraphFlow, nodes: Sequence[OperatorNode]) -> None:
        self._flow, self._nodes = flow, nodes
        self._at = {node.number: at for at, node in enumerate(nodes)}
        self._claims: list[Scope | None] = [_claimed(node) for node in nodes]
        self._kinds: dict[Path, str | None] = {}
        for claim in self._claims:
            for depth in range(1, len(claim or ()) + 1):
                self._kinds.setdefault(_path((claim or ())[:depth]), (claim or ())[depth - 1][1])
        self._takes = [self._producers(node) for node in nodes]
        self._users: list[list[int]] = [[] for _ in nodes]
        for at, producers in enumerate(self._takes):
            for producer in producers:
                self._users[producer].append(at)

    def found(self) -> dict[int, Scope]:
        """The scopes."""
        placed = self._of_weights()
        placed |= self._believed(placed)
        between = self._between(placed)
        whole: dict[int, Path] = {}
        for at in range(len(self._nodes)):
            whole[at] = placed[at] if at in placed else self._made_inside(between[at], at, whole)
        for at in reversed(range(len(self._nodes))):
            if at not in placed:
                whole[at] = self._in_the_cell_it_serves(at, whole)
        return {self._nodes[at].number: self._scope(path) for at, path in whole.items()}

    def _producers(self, node: OperatorNode) -> list[int]:
        origins = (self._flow.origin(operand) for operand in node.operands)
        found = dict.fromkeys(o.node for o in origins if isinstance(o, Of))
        return [self._at[number] for number in found if number in self._at]

    def _of_weights(self) -> dict[int, Path]:
        """Operators that take a weight; of a weight that several take, the first."""
        names = [operator_name(node.name or "", node.op) for node in self._nodes]
        model = max((_path(name.wrappers) for name in names), key=len, default=())
        found: dict[int, Path] = {}
        seen: set[str] = set()
        for at, node in enumerate(self._nodes):
            for weight in filter(None, map(self._flow.weight, node.operands)):
                owner = self._owner(weight, model)
                if weight not in seen and owner is not None:
                    found.setdefault(at, owner)
                if self._flow.prepares(node) is None:
                    seen.add(weight)
        return found

    def _owner(self, weight: str, model: Path) -> Path | None:
        """The cell a weight's name says, where that, or the one around it, is a cell of the model."""
        parts = tuple(weight.split(".")[:-1])
        for start in range(len(model) + 1):
            if parts[: len(model) - start] == model[start:] or start == len(model):
                own = (*model, *parts[len(model) - start :])
                return own if own in self._kinds or own[:-1] in self._kinds else None
        return None

    def _believed(self, certain: dict[int, Path]) -> dict[int, Path]:
        """Scopes of other operators: between them and the cell's own weights no other cell's is used."""
        places = sorted(certain)
        first: dict[Path, int] = {}
        out: dict[int, Path] = {}
        for at, claim in enumerate(self._claims):
            if claim is None or at in certain:
                continue
            path, gap = _path(claim), bisect_left(places, at)
            inside = [k for k, place in enumerate(places) if _within(certain[place], path)]
            if inside:
                sound = any(k in (gap - 1, gap) for k in inside)
            else:
                sound = first.setdefault(path, gap) == gap
            if sound:
                out[at] = path
        return out

    def _between(self, placed: dict[int, Path]) -> list[Path]:
        """Of every operator the innermost cell of what is placed before and after it."""
        out: list[Path] = []
        places = sorted(placed)
        for at in range(len(self._nodes)):
            after = bisect_left(places, at)
            around = [placed[places[k]] for k in (after - 1, after) if 0 <= k < len(places)]
            out.append(_common(around))
        return out

    def _made_inside(self, between: Path, at: int, whole: dict[int, Path]) -> Path:
        """What takes several tensors made in one cell is in that cell."""
        takes = [whole[producer] for producer in self._takes[at]]
        common = _common(takes)
        return common if len(takes) > 1 and _within(common, between) else between

    def _in_the_cell_it_serves(self, at: int, whole: dict[int, Path]) -> Path:
        """What takes one tensor and gives to one cell alone, of the class its scope says, is in that cell."""
        users = {whole[user] for user in self._users[at]}
        if len(self._takes[at]) != 1 or len(users) != 1:
            return whole[at]
        (cell,) = users
        claims = [self._claims[k] for k in (at, *(self._takes[at] if self._claims[at] is None else ()))]
        kind = self._kinds.get(cell)
        like = any(claim and kind is not None and claim[-1][1] == kind for claim in claims)
        return cell if like and _within(cell, whole[at]) else whole[at]

    def _scope(self, path: Path) -> Scope:
        return tuple((name, self._kinds.get(path[: depth + 1])) for depth, name in enumerate(path))


def _claimed(node: OperatorNode) -> Scope | None:
    """The cells of a name; None for one that is expanded from a function."""
    name = operator_name(node.name or "", node.op)
    return None if (node.name or "").startswith("Expand/") else (*name.wrappers, *name.modules)


def _path(scope: Sequence[Cell]) -> Path:
    return tuple(name for name, _ in scope)


def _within(path: Path, other: Path) -> bool:
    return path[: len(other)] == other


def _common(paths: Sequence[Path]) -> Path:
    if not paths:
        return ()
    shortest = min(paths, key=len)
    depth = next((k for k, part in enumerate(shortest) if any(p[k] != part for p in paths)), len(shortest))
    return shortest[:depth]
