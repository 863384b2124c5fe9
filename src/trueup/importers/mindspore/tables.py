"""One iteration of one rank as the tables of docs/trace-format.md.

| in the dump | here |
|---|---|
| operator `.../fc1-Dense/MatMul-op0` | api call `mindspore.ops.MatMul` inside the module call `fc1` |
| cells of its scope | module calls around it, one a cell; `network`, `_backbone` lead to the root |
| | what went into a cell and came out of it, where that is plain (`modules`) |
| `Gradients/.../Grad_MatMul/MatMul-op0` | api call `mindspore.ops.Grad_MatMul.MatMul`, phase `backward` |
| of a backward operator: inputs, outputs | `output.N` (what arrives), `input.N` (what it sends on) |
| `recompute_Default/...` | mode `recompute` |
| `optimizer-...`, what updates a parameter | phase `optimizer` |
| `AllReduce` and its kin | kind and phase `collective` |
| a weight that an operator of forward takes | kind `parameter`, phase `param`, slot `value` |
| a gradient that an update takes | phase `param_grad`, slot `clipped` |
| `Parameter.<name>` | kind `parameter`; written when the iteration is over, so phase `optimizer`, |
| | slot `param`, or `state.<prefix>`; phase `param` slot `value` where nothing updates |
| `Parameter` that no operator of forward takes (a learning rate) | `output.N` of one api call |
| | `mindspore.optimizer_settings`, phase `optimizer` |
| `Parameter` that is no weight | `output.N` of one api call `mindspore.graph_inputs` |

A cell called twice in a step is one module call here: the dump does not tell its calls apart. Cells beside
the model (the loss, the optimizer) are roots of their own, named after their class.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from trueup.importers.frames import columns_from_rows, frame_from_columns
from trueup.importers.mindspore.entries import Execution, TensorEntry
from trueup.importers.mindspore.modules import with_module_records
from trueup.importers.mindspore.names import OperatorName, is_container, operator_name, wrappers_among
from trueup.importers.mindspore.operators import Operators
from trueup.importers.mindspore.order import GraphNames
from trueup.importers.mindspore.summaries import Summaries
from trueup.store import StepTables, schema
from trueup.types.table_rows import CallRow, RecordRow

GRAPH_INPUTS = "mindspore.graph_inputs"
OPTIMIZER_SETTINGS = "mindspore.optimizer_settings"
AS_TAKEN = "as the first operator of forward takes it"
AS_UPDATED = "as its update takes it"
_COLLECTIVES = frozenset(
    {
        "AllReduce",
        "AllGather",
        "ReduceScatter",
        "Broadcast",
        "Reduce",
        "AlltoAll",
        "AlltoAllV",
        "AllGatherV",
        "ReduceScatterV",
        "NeighborExchange",
        "CollectiveScatter",
        "CollectiveGather",
        "Barrier",
        "Send",
        "Receive",
    }
)
_MIRRORED = {"input": "output", "output": "input"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """What ran of one graph, operators in order."""

    number: int
    path: Path
    operators: list[Execution]
    parameters: list[Execution]
    known: Operators


class TableBuilder:
    """Builds the tables of one step of one rank; use ``build`` once."""

    def __init__(self, names: GraphNames) -> None:
        self._names = names
        self._calls: list[CallRow] = []
        self._records: list[RecordRow] = []
        self._summaries = Summaries()
        self._summarised: dict[int, tuple[int | None, str | None]] = {}
        self._weights: set[str] = set()
        """what operators of forward take, as far as the graph tells"""
        self._rows: dict[tuple[object, ...], int] = {}
        self._ordinals: dict[tuple[object, ...], int] = {}
        self._total: dict[tuple[str, str], int] = {}

    def build(self, graphs: list[Graph], step: int, rank: int) -> StepTables:
        """The tables.

        Raises:
            TraceError: a tensor's file is damaged or refused.
        """
        operators = [
            (graph, execution, self._named(graph, execution))
            for graph in graphs
            for execution in graph.operators
        ]
        self._depth = max((len(name.wrappers) for _, _, name in operators), default=0)
        self._has_modules = any(name.modules for _, _, name in operators)
        updates = any(name.phase == "optimizer" for _, _, name in operators)
        for graph in graphs:
            self._graph_inputs(graph)
        if not updates:
            for graph in graphs:
                self._parameters(graph, updated=False)
        self._weights_before(operators)
        for graph, execution, name in operators:
            self._operator(graph, execution, name)
        if updates:
            for graph in graphs:
                self._parameters(graph, updated=True)
        self._records = with_module_records(self._records, self._modules_around(), self._summaries.contents())
        return self._tables(step, rank)

    def _modules_around(self) -> list[tuple[int, ...]]:
        """Of every call of the forward run the module calls around it; empty for recomputed ones."""
        found: list[tuple[int, ...]] = []
        for row, call in enumerate(self._calls):
            own = (row,) if call.kind == "module" else ()
            found.append(own if call.parent is None else (*found[call.parent], *own))
        return [
            () if call.mode == "recompute" else modules
            for call, modules in zip(self._calls, found, strict=True)
        ]

    # -- operators ------------------------------------------------------------------------------------------

    def _named(self, graph: Graph, execution: Execution) -> OperatorName:
        listed = graph.known.names.get(execution.op_name, execution.op_name)
        name = operator_name(self._names.full_name(listed), execution.op_type)
        if name.phase == "forward" and graph.known.is_backward(execution.op_name):
            return replace(name, phase="backward")
        cells = graph.known.cells(execution.op_name)
        if cells is None:
            return name
        depth = wrappers_among(cells)
        return replace(name, wrappers=cells[:depth], modules=cells[depth:])

    def _operator(self, graph: Graph, execution: Execution, name: OperatorName) -> None:
        collective = name.op in _COLLECTIVES or execution.op_type in _COLLECTIVES
        group = name.group or ("Gradients" if name.phase == "backward" else None)
        call = self._add(
            self._around(name),
            "collective" if collective else "api",
            f"mindspore.ops.{group}.{name.op}" if group else f"mindspore.ops.{name.op}",
            mode=name.mode,
            arguments=execution.arguments,
        )
        phase = "collective" if collective else name.phase
        if phase == "optimizer":
            self._gradient(graph, execution)
        slots = [(self._slot(tensor, phase), tensor) for tensor in execution.tensors]
        for slot, tensor in slots:
            self._record(call, phase, slot, graph, tensor)

    @staticmethod
    def _slot(tensor: TensorEntry, phase: str) -> str:
        side = tensor.name.side or "output"
        return f"{_MIRRORED[side] if phase == 'backward' else side}.{tensor.name.slot}"

    def _around(self, name: OperatorName) -> int | None:
        """Row of the module call around an operator."""
        modules = list(name.modules)
        if len(name.wrappers) < self._depth or (name.phase == "optimizer" and name.modules):
            return self._own_root(modules, name.mode)
        if not (self._depth or self._has_modules):
            return None
        root = name.wrappers[-1][1] if name.wrappers else None
        return self._nested("", root, modules, name.mode)

    def _own_root(self, modules: list[tuple[str, str | None]], mode: str) -> int | None:
        """Of cells beside the model: the first is a root named after its class."""
        if not modules:
            return None
        name, kind = modules[0]
        return self._nested(kind or name, kind, modules[1:], mode)

    def _nested(
        self, root: str, kind: str | None, modules: Iterable[tuple[str, str | None]], mode: str
    ) -> int:
        parent = self._module(None, root, kind, mode)
        path = root
        for name, kind_of in modules:
            path = f"{path}.{name}" if path else name
            if not is_container(kind_of):
                parent = self._module(parent, path, kind_of, mode)
        return parent

    def _module(self, parent: int | None, name: str, kind: str | None, mode: str) -> int:
        key = (name, mode)
        if key not in self._rows:
            self._rows[key] = self._add(parent, "module", name, type_name=kind, mode=mode)
        return self._rows[key]

    # -- parameters -----------------------------------------------------------------------------------------

    def _graph_inputs(self, graph: Graph) -> None:
        given = [p for p in graph.parameters if p.op_name in self._names.graph_inputs]
        if given:
            call = self._add(None, "api", GRAPH_INPUTS)
            for number, execution in enumerate(given):
                self._record(call, "forward", f"output.{number}", graph, execution.tensors[0])

    def _weights_before(self, operators: list[tuple[Graph, Execution, OperatorName]]) -> None:
        """Weights as they were before the update: as the first operator of forward took them."""
        for graph, execution, name in operators:
            node = graph.known.nodes.get(execution.op_name)
            if node is None or graph.known.flow is None or name.phase != "forward":
                continue
            if node.op.startswith("Assign"):
                continue
            for tensor in execution.tensors:
                slot = tensor.name.slot
                if tensor.name.side != "input" or slot >= len(node.operands):
                    continue
                weight = graph.known.flow.origin(node.operands[slot])
                if isinstance(weight, str) and graph.known.flow.parameters.get(weight, False):
                    call = ("parameter", weight, None)
                    self._weights.add(weight)
                    if call not in self._rows:
                        self._record(self._parameter(weight), "param", "value", graph, tensor, AS_TAKEN)

    def _gradient(self, graph: Graph, execution: Execution) -> None:
        """The gradient an update takes: of all it takes that the graph made, the largest."""
        node, flow = graph.known.nodes.get(execution.op_name), graph.known.flow
        if node is None or flow is None:
            return
        weight = next((o for operand in node.operands if isinstance(o := flow.origin(operand), str)), None)
        sizes = [flow.size(operand) for operand in node.operands]
        largest = max(sizes, default=0)
        taken = next(
            (
                t
                for t in execution.tensors
                if t.name.side == "input" and t.name.slot < len(sizes) and sizes[t.name.slot] == largest
            ),
            None,
        )
        if (
            weight is not None
            and flow.parameters.get(weight)
            and sizes.count(largest) == 1
            and taken is not None
        ):
            self._record(self._parameter(weight), "param_grad", "clipped", graph, taken, AS_UPDATED)

    def _parameters(self, graph: Graph, *, updated: bool) -> None:
        names = {
            p.op_name: self._names.parameters.get(p.op_name, p.op_name)
            for p in graph.parameters
            if p.op_name not in self._names.graph_inputs
        }
        everything = frozenset(names.values())
        settings: list[Execution] = []
        for execution in graph.parameters:
            if execution.op_name not in names:
                continue
            name, prefix = _parameter_and_state(names[execution.op_name], everything)
            if self._weights and prefix is None and name not in self._weights:
                settings.append(execution)
                continue
            phase = "optimizer" if updated or prefix else "param"
            slot = f"state.{prefix}" if prefix else "param" if updated else "value"
            self._record(self._parameter(name), phase, slot, graph, execution.tensors[0])
        if settings:
            call = self._add(None, "api", OPTIMIZER_SETTINGS)
            for number, execution in enumerate(settings):
                self._record(call, "optimizer", f"output.{number}", graph, execution.tensors[0])

    def _parameter(self, name: str) -> int:
        key = ("parameter", name, None)
        if key not in self._rows:
            self._rows[key] = self._add(None, "parameter", name)
        return self._rows[key]

    # -- rows -----------------------------------------------------------------------------------------------

    def _record(
        self,
        call: int,
        phase: str,
        slot: str,
        graph: Graph,
        tensor: TensorEntry,
        why: str | None = None,
    ) -> None:
        if id(tensor) not in self._summarised:
            self._summarised[id(tensor)] = self._summaries.add(tensor, graph.path, graph.number, graph.known)
        summary, reason = self._summarised[id(tensor)]
        self._records.append(RecordRow(call, phase, slot, 0, summary, None, reason or why))

    def _add(
        self,
        parent: int | None,
        kind: str,
        name: str,
        *,
        type_name: str | None = None,
        mode: str = "train",
        arguments: dict[str, object] | None = None,
    ) -> int:
        where = (parent, kind, name, mode)
        ordinal = self._ordinals.get(where, 0)
        number = self._total.get((kind, name), 0)
        self._ordinals[where] = ordinal + 1
        self._total[kind, name] = number + 1
        text = json.dumps(arguments) if arguments else None
        self._calls.append(
            CallRow(parent, kind, name, type_name, ordinal, 0, mode, False, None, text, number)
        )
        return len(self._calls) - 1

    def _tables(self, step: int, rank: int) -> StepTables:
        num = len(self._calls)
        calls = columns_from_rows(self._calls, CallRow._fields)
        calls |= {"call": range(num)}
        records = columns_from_rows(self._records, [column.name for column in schema.RECORDS])
        return StepTables(
            step=step,
            rank=rank,
            calls=frame_from_columns(calls, num, schema.CALLS),
            records=frame_from_columns(records, len(self._records), schema.RECORDS),
            summaries=self._summaries.frame(),
            stacks=frame_from_columns({}, 0, schema.STACKS),
        )


def _parameter_and_state(name: str, everything: frozenset[str]) -> tuple[str, str | None]:
    """``moments.fc1.weight`` is state ``moments`` of ``fc1.weight``, where there is such a parameter.

    Example:
        >>> _parameter_and_state("moments.fc1.weight", frozenset({"fc1.weight", "moments.fc1.weight"}))
        ('fc1.weight', 'moments')
    """
    for separator in (".", "_"):
        at = name.find(separator)
        while at > 0:
            if name[at + 1 :] in everything:
                return name[at + 1 :], name[:at]
            at = name.find(separator, at + 1)
    return name, None
