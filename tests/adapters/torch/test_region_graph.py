"""Graphs of compiled regions: copies of their inputs, moves by rounding, and the operation that differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from trueup.adapters.torch import region_graph
from trueup.adapters.torch.region_graph import SEEDS, Search, evaluate, measured, module_of, moved_run

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.act, self.down = (
            nn.LayerNorm(16),
            nn.Linear(16, 64),
            nn.GELU(),
            nn.Linear(64, 16),
        )
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1.0
        return x + self.down(self.act(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        for block in self.blocks:
            x = block(x)
        return x, F.cross_entropy(x.flatten(0, 1), labels.flatten())


def _region() -> tuple[fx.GraphModule, list[Any], list[str]]:
    """The graph of the model, as a compiler gets it, and what it is called with."""
    torch.manual_seed(0)
    found: list[Any] = []

    def compiler(graph: fx.GraphModule, inputs: list[Tensor]) -> Any:
        def call(*given: object) -> object:
            found.append(given)
            return graph.forward(*given)

        found.append(graph)
        return call

    torch.compile(Model(), backend=compiler)(torch.randn(4, 8, 16), torch.randint(16, (4, 8)))
    names = [node.name for node in found[0].graph.nodes if node.op == "placeholder"]
    return found[0], list(found[1]), names


def _rows(run: Callable[..., object], *, scalars: bool = False) -> list[dict[str, Any]]:
    graph, given, names = _region()
    eager, compiled = (evaluate(one, given, names, scalars=scalars) for one in (graph.forward, run))
    moved = [evaluate(moved_run(graph, seed), given, names, scalars=scalars, seed=seed) for seed in SEEDS]
    return [measured(name, compiled, eager, moved) for name in eager]


def _changed(**more: object) -> Callable[[fx.GraphModule], Any]:
    """A compiler that computes the second gelu otherwise."""

    def compiler(graph: fx.GraphModule) -> Any:
        def backend(traced: fx.GraphModule, inputs: list[Tensor]) -> Any:
            found = [node for node in traced.graph.nodes if getattr(node.target, "__name__", "") == "gelu"]
            found[1].kwargs = {**found[1].kwargs, **more}
            traced.recompile()
            return traced.forward

        return torch.compile(graph, backend=backend)

    return compiler


class _WrongBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return F.gelu(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return torch.ops.aten.gelu_backward(gradient, x, approximate="tanh")


def _wrong_gelu(x: Tensor) -> Tensor:
    return _WrongBackward.apply(x)  # type: ignore[no-any-return, no-untyped-call]


def _wrong_backward(graph: fx.GraphModule) -> Any:
    found = [node for node in graph.graph.nodes if getattr(node.target, "__name__", "") == "gelu"]
    found[1].target, found[1].kwargs = _wrong_gelu, {}
    graph.recompile()
    return graph.forward


def test_the_program_s_tensors_and_random_state_stay_as_they_are() -> None:
    graph, given, names = _region()
    before = [one.detach().clone() for one in given]
    found = evaluate(moved_run(graph, 1), given, names, scalars=True)
    assert all(torch.equal(one, was) for one, was in zip(given, before, strict=True))
    assert all(one.grad is None for one in given)
    written = [name for name in found if name.startswith("written")]
    assert len(written) == 2
    assert all(found[name].item() == 2 for name in written)
    state = torch.get_rng_state()
    evaluate(moved_run(graph, 1), given, names, scalars=True)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("scalars", [True, False])
def test_another_order_of_operations_is_within_rounding(scalars: bool) -> None:
    graph, _, _ = _region()

    def in_float64(*given: object) -> Any:
        wide = [one.double() if isinstance(one, Tensor) and one.is_floating_point() else one for one in given]
        return [one.float() for one in graph.forward(*wide)]

    rows = [row for row in _rows(in_float64, scalars=scalars) if not row["name"].startswith("written")]
    assert len(rows) >= 15
    assert all(row["noise"] > 0 for row in rows if row["numel"] > 64)
    assert max(row["difference"] / row["allowed"] for row in rows) < 0.5


@pytest.mark.parametrize(
    ("compiler", "phase"), [(_changed(approximate="tanh"), "forward"), (_wrong_backward, "backward")]
)
def test_the_operation_that_differs_is_found(compiler: Callable[[fx.GraphModule], Any], phase: str) -> None:
    graph, given, _ = _region()
    found = Search(graph=graph, compile=compiler, given=given, prepare=lambda: None).first()
    assert found is not None
    assert (found["phase"], found["operation"], found["module"]) == (phase, "gelu", "blocks.1.act")
    assert "self.down(self.act(" in found["source"]


def test_where_nothing_differs_no_operation_is_found() -> None:
    graph, given, _ = _region()
    how = Search(graph=graph, compile=_changed(approximate="none"), given=given, prepare=lambda: None)
    assert how.first() is None


@pytest.mark.parametrize(
    ("said", "plain"),
    [
        ("L['self']._modules['h']._modules['0']._parameters['weight']", "h.0.weight"),
        ("L['self']._orig_mod.transformer.h.0.ln_1", "transformer.h.0.ln_1"),
        ("L['x']", ""),
        ("L['self']", ""),
    ],
)
def test_names(said: str, plain: str) -> None:
    assert module_of(said) == plain


def test_a_tensor_of_another_class_is_not_copied() -> None:
    class Own(Tensor):
        pass

    assert region_graph.plain([torch.ones(2), 3, nn.Parameter(torch.ones(2))])
    assert not region_graph.plain([torch.ones(2).as_subclass(Own)])


def test_a_line_is_the_programs_own_where_capture_stands_around_it() -> None:
    node = fx.Graph().placeholder("x")
    own = region_graph.__file__
    node.stack_trace = (
        f'File "/model.py", line 3, in forward\n    y = f(x)\nFile "{own}", line 9, in g\n    h(x)\n'
    )
    assert region_graph.where(node)["source"] == "/model.py:3 forward | y = f(x)"
