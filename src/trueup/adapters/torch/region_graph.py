"""The graph of a compiled region, evaluated without the compiler: plainly, with every result moved by
rounding, and with a look at each operation."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._prims_common import clone_preserve_strides

from trueup.adapters.torch.perturb import change_in_place
from trueup.numerics.rounding_noise import allowed

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""folder of the adapters"""

Values = dict[str, Tensor]
Run = Callable[..., object]
_WRITING = ("setitem", "iadd", "imul", "isub", "itruediv", "copy_")
SEEDS = (1, 2, 3)
"""of evaluations moved by rounding"""
_COMPUTING = ("call_function", "call_method", "call_module")
_INDEXED = re.compile(r"(?:\._(?:modules|parameters|buffers))?\['?([^'\]]+)'?\]")
_OF_THE_ROOT = re.compile(r"^L\.\w+\.?")
_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")


class Moved(fx.Interpreter):
    """Runs a graph and moves the result of every operation, and the gradient at it, by rounding.

    A view is no operation, nor is a tensor handed on.
    """

    def __init__(self, graph: fx.GraphModule, seed: int) -> None:
        super().__init__(graph)
        self.generator = torch.Generator().manual_seed(seed)

    def run_node(self, n: fx.Node) -> object:
        """As the interpreter does, then move."""
        result = super().run_node(n)
        if n.op in _COMPUTING:
            given = {id(one) for one in map(self.env.get, n.all_input_nodes)}
            for one in tensors_of(result):
                if id(one) not in given and not one._is_view():
                    _move(one.data, self.generator)
                    if one.requires_grad:
                        one.register_hook(self._moved)
        return result

    def _moved(self, gradient: Tensor) -> Tensor:
        copied = gradient.clone()
        _move(copied, self.generator)
        return copied


def _move(tensor: Tensor, generator: torch.Generator) -> None:
    if tensor.device.type != "cpu":
        seed = int(torch.randint(1 << 40, (), generator=generator))
        generator = torch.Generator(tensor.device).manual_seed(seed)
    change_in_place(tensor, generator, torch.finfo(tensor.dtype).eps / 2)


def tensors_of(value: object) -> Iterator[Tensor]:
    """Floating tensors of a result."""
    if isinstance(value, Tensor):
        if value.is_floating_point() and value.numel() and value.layout is torch.strided:
            yield value
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from tensors_of(one)


def evaluate(
    run: Run, given: Sequence[object], names: Sequence[str], *, scalars: bool, seed: int | None = None
) -> Values:
    """What a region makes of copies of its inputs: outputs, inputs it has written to, gradients.

    Args:
        run: takes the inputs.
        given: inputs; none is changed.
        names: of the inputs.
        scalars: which outputs the gradients are those of: numbers, else all others.
        seed: moves what goes into the backward, and what comes out, by rounding; None: nothing.
    """
    draw = None if seed is None else torch.Generator().manual_seed(seed)
    inputs = [_copied(one) for one in given]
    versions = [one._version if isinstance(one, Tensor) else 0 for one in inputs]
    outputs = list(tensors_of(run(*inputs)))
    found = {f"output {at}": one.detach() for at, one in enumerate(outputs)}
    leaves = {}
    for name, one, version in zip(names, inputs, versions, strict=True):
        if isinstance(one, Tensor) and one.is_floating_point() and one._version != version:
            found[f"written {name}"] = one.detach().clone()
        if isinstance(one, Tensor) and one.requires_grad:
            leaves[f"gradient {name}"] = one
    ends = [one for one in outputs if one.requires_grad and (one.numel() == 1) == scalars]
    return found | (_gradients(ends, leaves, draw) if ends and leaves else {})


def _gradients(ends: Sequence[Tensor], leaves: Values, draw: torch.Generator | None) -> Values:
    into, found = _cotangents(ends), {}
    if draw is not None:
        for one in into:
            _move(one, draw)
    with torch.autocast(ends[0].device.type, enabled=False):
        gradients = torch.autograd.grad(ends, list(leaves.values()), into, allow_unused=True)
    for name, gradient in zip(leaves, gradients, strict=True):
        if gradient is None:
            continue
        found[name] = gradient.detach() if draw is None else gradient.detach().clone()
        if draw is not None:
            _move(found[name], draw)
    return found


def _cotangents(ends: Sequence[Tensor]) -> list[Tensor]:
    """1 for a number, else random numbers that are the same every time."""
    draw = torch.Generator().manual_seed(0)
    return [
        torch.ones_like(one)
        if one.numel() == 1
        else torch.randn(one.shape, generator=draw).to(one.device, one.dtype)
        for one in ends
    ]


def _copied(value: object) -> object:
    if not isinstance(value, Tensor):
        return value
    return clone_preserve_strides(value.detach()).requires_grad_(value.requires_grad)


def plain(values: Sequence[object]) -> bool:
    """Whether all tensors are of torch's own kind, so that copies of them are like them."""
    return all(type(one) in (Tensor, torch.nn.Parameter) for one in values if isinstance(one, Tensor))


def distance(one: Tensor, other: Tensor) -> float:
    """L2 norm of the difference in float64; infinite where one alone is not finite."""
    if one.shape != other.shape:
        return float("inf")
    a, b = one.double(), other.double()
    same = (a == b) | (a.isnan() & b.isnan())
    found = float(torch.where(same, 0.0, a - b).norm())
    return found if found == found else float("inf")


def measured(name: str, compiled: Values, eager: Values, moved: Sequence[Values]) -> dict[str, Any]:
    """One tensor's difference from eager, beside that of rounding."""
    exact = eager[name]
    noise = max((distance(one[name], exact) for one in moved if name in one), default=0.0)
    norm = float(torch.where(exact.double().isfinite(), exact.double(), 0.0).norm())
    return {
        "name": name,
        "numel": exact.numel(),
        "dtype": str(exact.dtype).removeprefix("torch."),
        "difference": distance(compiled[name], exact) if name in compiled else float("inf"),
        "noise": noise if noise == noise else float("inf"),
        "norm": norm,
        "allowed": allowed(
            noise=noise, norm=norm, numel=exact.numel(), roundoff=torch.finfo(exact.dtype).eps / 2
        ),
    }


def moved_run(graph: fx.GraphModule, seed: int) -> Run:
    """The graph's evaluation with every operation moved."""
    return lambda *inputs: Moved(graph, seed).run(*inputs)


# -- which operation -------------------------------------------------------------------


def where(node: fx.Node) -> dict[str, str]:
    """Operation, module (relative to the region's) and source line of a node."""
    stack = node.meta.get("nn_module_stack") or {}
    module = str(list(stack.values())[-1][0]) if stack else ""
    traced = re.findall(r'File "(.+)", line (\d+), in (\S+)\n\s*(.*)', node.stack_trace or "")
    lines = [line for line in traced if not line[0].startswith(_OWN)]  # capture stands around the program
    source = "{}:{} {} | {}".format(*lines[-1]) if lines else ""
    target = node.target
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    return {"operation": str(name), "module": module_of(module), "source": source}


def module_of(name: str) -> str:
    """The plain name of a module or weight, from dynamo's."""
    plain_name = _OF_THE_ROOT.sub("", _INDEXED.sub(r".\1", name))
    return ".".join(p for p in plain_name.split(".") if p and p not in _WRAPPERS)


def _shows_results(graph: fx.GraphModule) -> tuple[fx.GraphModule, list[fx.Node]]:
    """A graph that also returns every operation's result; the operations in that order."""
    shown = copy.deepcopy(graph.graph)
    operations = [
        node for node in shown.nodes if node.op in _COMPUTING and _floats(node) and not _writes(node)
    ]
    output = next(node for node in shown.nodes if node.op == "output")
    output.args = ((*output.args[0], *operations),)
    return fx.GraphModule(graph, shown), operations


def _takes_zeros(graph: fx.GraphModule) -> tuple[fx.GraphModule, list[fx.Node], list[Tensor]]:
    """A graph that takes a zero to be added wherever an operation uses a tensor: the zero's gradient is what
    flows back there. With the operations, and the zeros."""
    shown = copy.deepcopy(graph.graph)
    operations: list[fx.Node] = []
    zeros: list[Tensor] = []
    last = [node for node in shown.nodes if node.op == "placeholder"][-1]
    for node in list(shown.nodes):
        for used in node.all_input_nodes if node.op in _COMPUTING and not _writes(node) else ():
            if not _floats(used):
                continue
            with shown.inserting_after(last):
                last = shown.placeholder(f"zero_{len(zeros)}")
            with shown.inserting_before(node):
                node.replace_input_with(used, shown.call_function(torch.add, (used, last)))
            like = _example(used)
            shape = [int(number) for number in like.shape]
            zeros.append(torch.zeros(shape, dtype=like.dtype, device=like.device, requires_grad=True))
            operations.append(node)
    return fx.GraphModule(graph, shown), operations, zeros


def _example(node: fx.Node) -> Any:
    return node.meta.get("example_value", node.meta.get("val"))


def _floats(node: fx.Node) -> bool:
    example = _example(node)
    return next(tensors_of(example), None) is not None if isinstance(example, Tensor) else False


def _writes(node: fx.Node) -> bool:
    name = where(node)["operation"]
    return name in _WRITING or (name.endswith("_") and not name.endswith("__"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """For the operation that a compiler computes otherwise.

    The graph is compiled again, first with every operation's result among its outputs, then with a look at
    what flows back. What comes only of fusing operations that are now apart is not found.
    """

    graph: fx.GraphModule
    compile: Callable[[fx.GraphModule], Run]
    given: Sequence[object]
    prepare: Callable[[], object]
    """before each evaluation"""

    def first(self) -> dict[str, str] | None:
        """The first whose result is beyond rounding, else the last whose gradients are; None: no one."""
        shown, operations = _shows_results(self.graph)
        number = len(list(tensors_of(self.graph.forward(*map(_copied, self.given)))))
        beyond = self._beyond(shown, self.given, scalars=True, own=number)
        for at, node in enumerate(operations):
            if f"output {number + at}" in beyond:
                return {"phase": "forward", **where(node)}
        shown, operations, zeros = _takes_zeros(self.graph)
        for scalars in (True, False):
            beyond = self._beyond(shown, [*self.given, *zeros], scalars=scalars, own=number)
            for at in reversed(range(len(zeros))):
                if f"gradient {len(self.given) + at}" in beyond:
                    return {"phase": "backward", **where(operations[at])}
        return None

    def _beyond(self, shown: fx.GraphModule, given: Sequence[object], *, scalars: bool, own: int) -> set[str]:
        """Names of the tensors that the compiler makes otherwise; gradients are those of the graph's ``own``
        outputs."""

        def values(run: Run, seed: int | None = None) -> Values:
            def cut(*inputs: object) -> list[Tensor]:
                found = list(tensors_of(run(*inputs)))
                return [*found[:own], *(one.detach() for one in found[own:])]

            self.prepare()
            names = [str(at) for at in range(len(given))]
            return evaluate(cut, given, names, scalars=scalars, seed=seed)

        eager = values(shown.forward)
        moved = [values(moved_run(shown, seed), seed) for seed in SEEDS]
        compiled = values(self.compile(fx.GraphModule(shown, copy.deepcopy(shown.graph))))
        rows = [measured(name, compiled, eager, moved) for name in eager]
        return {row["name"] for row in rows if row["difference"] > row["allowed"]}
