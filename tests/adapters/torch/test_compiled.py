"""Compiled and scripted code: the same bits, not one graph more, captured at its boundary."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trueup
from tests.adapters.torch.reading import Captured, capture
from tests.diagnosing.replaying import replay
from tests.models.gpt import GPT, GPTConfig, batch
from trueup.adapters.torch.region_graph import moved_run
from trueup.comparing.run import compare

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]

TINY = GPTConfig(vocab_size=32, num_layers=1, hidden_size=16, num_heads=2, seq_length=8)
STEPS = 24
EVEN = ",".join(str(s) for s in range(0, STEPS, 2))
HAS_COMPILER = shutil.which("g++") is not None


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


Compiled = Callable[[nn.Module, Callable[..., Any]], Callable[[Tensor], Tensor]]


def _whole(model: nn.Module, backend: Any) -> Callable[[Tensor], Tensor]:
    return torch.compile(model, backend=backend, fullgraph=True)


def _in_place(model: nn.Module, backend: Any) -> Callable[[Tensor], Tensor]:
    model.compile(backend=backend, fullgraph=True)
    return model


def _part(model: nn.Module, backend: Any) -> Callable[[Tensor], Tensor]:
    model.layers[0].compile(backend=backend, fullgraph=True)
    return model


def _function(model: nn.Module, backend: Any) -> Callable[[Tensor], Tensor]:
    return torch.compile(lambda ids: model(ids), backend=backend, fullgraph=True)


def _broken(model: nn.Module, backend: Any) -> Callable[[Tensor], Tensor]:
    inner = model.norm.forward

    def forward(x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return inner(x)

    model.norm.forward = forward
    return torch.compile(model, backend=backend)


WAYS = {
    "model": _whole,
    "module.compile": _in_place,
    "a block": _part,
    "function": _function,
    "graph break": _broken,
}


def _train(
    way: str, backend: str, steps: int = STEPS, made: Callable[[], nn.Module] = lambda: GPT(TINY)
) -> tuple[list[float], list[Tensor], int]:
    torch.manual_seed(0)
    graphs = [0]
    lookup = torch._dynamo.lookup_backend(backend)

    def counting(graph: Any, inputs: Any, **options: Any) -> Any:
        graphs[0] += 1
        return lookup(graph, inputs, **options)

    model = made()
    compiled = WAYS[way](model, counting)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses = []
    for step in range(steps):
        ids, labels = batch(TINY, step=step, size=2)
        loss = F.cross_entropy(compiled(ids).flatten(0, 1), labels.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, [p.detach().clone() for p in model.parameters()], graphs[0]


@pytest.mark.parametrize(
    ("way", "backend", "level"),
    [
        *((way, "eager", "mix") for way in WAYS),
        ("model", "eager", "L0"),
        ("a block", "eager", "L0 with functions"),
        ("a block", "aot_eager", "mix"),
    ],
)
def test_same_bits_and_graphs_with_capture_on_every_other_step(
    way: str, backend: str, level: str, tmp_path: Path
) -> None:
    expected = _train(way, backend)
    torch._dynamo.reset()
    level, _, functions = level.partition(" with ")
    with trueup.Tracer(tmp_path / "run", level=level, steps=EVEN, functions=bool(functions)):
        actual = _train(way, backend)
    assert_same(actual, expected)
    run = Captured(tmp_path / "run", STEPS - 2)
    assert list(run.trace.steps()) == list(range(0, STEPS, 2))
    assert run.facts["num_failures"] == 0, run.facts["failures"]
    opaque = {c["name"]: c["type"] for c in run.calls if c["opaque"]}
    called = [c["name"] for c in run.calls if c["kind"] == "module"]
    boundary = {"a block": {"layers.0": "Block"}, "function": {}}.get(way, {"": "GPT"})
    assert opaque == boundary
    assert "layers.0.attn" not in called
    for name in boundary:
        assert run.one(name, "forward", "output.0")
        assert run.one(name, "backward", "output.0")
    assert {o["name"] for o in run.facts["opaque"]} == set(boundary)
    if way == "function":
        assert any("compiled" in limit for limit in run.facts["limits"])
        assert run.one("loss", "loss", "value")
        assert "param" in run.slots("AdamW.group0.0", "optimizer")
    else:
        assert run.one("layers.0.mlp.up.weight", "param_grad", "local")
    assert [line["loss"] for line in run.trace.scalars(0)] == expected[0]
    assert all("_orig_mod" not in p["fqn"] for p in run.facts["parameters"])


@pytest.mark.skipif(not HAS_COMPILER, reason="inductor needs a C++ compiler")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_inductor(tmp_path: Path) -> None:
    def made() -> nn.Module:  # each kernel takes g++ seconds
        widths = TINY.vocab_size, TINY.hidden_size
        return nn.Sequential(nn.Embedding(*widths), nn.LayerNorm(16), nn.GELU(), nn.Linear(*widths[::-1]))

    expected = _train("model", "inductor", steps=6, made=made)
    torch._dynamo.reset()
    with trueup.Tracer(tmp_path / "run", level="mix", steps="0,2,4"):
        actual = _train("model", "inductor", steps=6, made=made)
    assert_same(actual, expected)
    assert Captured(tmp_path / "run", 4).one("", "backward", "output.0")


def test_the_check_can_fail() -> None:
    expected = _train("model", "eager", steps=2)
    torch._dynamo.reset()
    losses, weights, graphs = _train("model", "eager", steps=2)
    with pytest.raises(AssertionError):
        assert_same((losses, weights, graphs + 1), expected)


def assert_same(
    actual: tuple[list[float], list[Tensor], int], expected: tuple[list[float], list[Tensor], int]
) -> None:
    assert actual[0] == expected[0]
    assert all(torch.equal(a, e) for a, e in zip(actual[1], expected[1], strict=True))
    assert actual[2] == expected[2] > 0, "graphs compiled"


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_module_inside_an_eager_one(level: str, tmp_path: Path) -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x).relu() + 1

    def train() -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), torch.jit.script(Inner()), nn.Linear(4, 1))
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    expected = train()
    actual: list[Tensor] = []
    run = capture(tmp_path / "run", lambda: actual.extend(train()), level=level, task="statistics")
    assert all(torch.equal(a, e) for a, e in zip(actual, expected, strict=True))
    assert {c["name"]: c["type"] for c in run.calls if c["opaque"]} == {"1": "Inner"}
    assert not [
        c for c in run.calls if "linear" in c["name"] and c["parent"] is not None and "1" in c["name"]
    ]
    assert len(run.find("1", "backward", "input.0")) == 3


class WithItsLoss(nn.Module):
    """Logits and the loss made of them; only the loss is trained on: the logits have no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.head(torch.tanh(self.inner(x)))
        return logits, F.cross_entropy(logits, torch.arange(len(logits)) % 8)


def _train_on_its_loss(way: Compiled | None) -> None:
    torch.manual_seed(0)
    model = WithItsLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    call = model if way is None else way(model, "aot_eager")
    for _ in range(2):
        call(torch.linspace(-1, 1, 40).reshape(5, 8))[1].backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("way", ["model", "module.compile"])
@pytest.mark.parametrize("compiled_first", [True, False])
def test_a_compiled_model_that_returns_its_loss_agrees_with_the_eager_one(
    tmp_path: Path, way: str, compiled_first: bool
) -> None:
    capture(tmp_path / "compiled", lambda: _train_on_its_loss(WAYS[way]), level="L0")
    capture(tmp_path / "eager", lambda: _train_on_its_loss(None), level="L0")
    names = ["compiled", "eager"] if compiled_first else ["eager", "compiled"]
    result = compare(*(tmp_path / name for name in names))
    assert result.exit_code == 0, result.summary["verdict"]


class InBfloat16(nn.Module):
    """The loss first, in float32, of logits that autocast makes in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(32, 32) for _ in range(3)))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.layers(x)
        return F.cross_entropy(logits.float(), torch.arange(len(x)) % 32), logits


def _train_in_bfloat16(backend: Any) -> None:
    torch.manual_seed(0)
    model = InBfloat16()
    call = model if backend is None else torch.compile(model, backend=backend)
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = call(torch.randn(64, 32))
    loss.backward()


def _rounded(seed: int) -> Any:
    """A compiler whose operations round otherwise."""
    return lambda graph, inputs: moved_run(graph, seed)


def _scaled(graph: Any, inputs: Any) -> Any:
    """A compiler that makes the loss 20 % larger."""
    return lambda *given: [graph(*given)[0] * 1.2, *graph(*given)[1:]]


@pytest.mark.parametrize("reference", [None, _rounded(2)])
def test_what_a_compiled_model_computes_in_bfloat16_rounds_as_such(tmp_path: Path, reference: Any) -> None:
    for name, backend in (("target", _rounded(1)), ("reference", reference), ("wrong", _scaled)):
        torch._dynamo.reset()
        capture(tmp_path / name, lambda one=backend: _train_in_bfloat16(one), level="L0")  # type: ignore[misc]
    result = compare(tmp_path / "target", tmp_path / "reference")
    assert result.exit_code == 0, result.summary["verdict"]
    losses = result.frame().filter(slot="output.0", phase="forward", module="", status="within_noise")
    assert losses["rel_l2"].max() > 1e-6
    assert compare(tmp_path / "wrong", tmp_path / "reference").exit_code == 1


def test_a_compiled_model_that_returns_its_loss_is_replayed(tmp_path: Path) -> None:
    made, _, _ = replay(tmp_path, lambda: _train_on_its_loss(None), lambda: _train_on_its_loss(_whole_aot))
    assert made.rank_facts(0)["num_failures"] == 0, made.rank_facts(0)["failures"]


def _whole_aot(model: nn.Module, backend: Any) -> Callable[[Tensor], Tensor]:
    return torch.compile(model, backend="aot_eager")


def test_a_gradient_that_an_eager_model_lacks_is_a_difference(tmp_path: Path) -> None:
    def train(cut: bool) -> None:
        torch.manual_seed(0)
        inner, head = nn.Linear(8, 16), nn.Linear(16, 8)

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner, self.head = inner, head

            def forward(self, x: Tensor) -> Tensor:
                hidden = torch.tanh(self.inner(x))
                return self.head(hidden.detach() if cut else hidden).square().mean()

        Net()(torch.ones(4, 8)).backward()

    capture(tmp_path / "target", lambda: train(True), level="L0")
    capture(tmp_path / "reference", lambda: train(False), level="L0")
    assert compare(tmp_path / "target", tmp_path / "reference").exit_code == 1
