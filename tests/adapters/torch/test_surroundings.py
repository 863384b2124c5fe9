"""What a program does around its training: device contexts, tracing, compiling, transforms."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.adapters.torch.reading import Captured, capture
from trueup.capture import session
from trueup.store import Trace

pytestmark = pytest.mark.torch
LEVELS = pytest.mark.parametrize("level", ["L0", "mix"])


def model_of(width: int = 8) -> nn.Sequential:
    """Of torch's own classes alone."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))


def train(model: Any, steps: int = 3, optimizer: torch.optim.Optimizer | None = None) -> list[float]:
    """Losses of a few steps."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for step in range(steps):
        x = torch.randn(4, 8, device="cpu", generator=torch.Generator().manual_seed(step))
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@LEVELS
def test_a_device_context_around_steps_ends_where_the_program_ends_it(level: str, tmp_path: Path) -> None:
    model = model_of()

    def program() -> None:
        with torch.device("meta"):
            train(model, 2)
        assert torch.empty(1).device.type == "cpu"
        train(model, 2)

    capture(tmp_path / "run", program, level=level, steps="all")
    assert Captured(tmp_path / "run", 3).one("0", "forward", "output.0")["summary"] is not None


@LEVELS
def test_a_dry_run_without_values_comes_before_training(level: str, tmp_path: Path) -> None:
    def program() -> None:
        with torch.device("meta"):
            planned = nn.Linear(8, 8)
            planned(torch.empty(4, 8)).sum().backward()
            torch.optim.SGD(planned.parameters(), 0.1).step()
        train(model_of())

    capture(tmp_path / "run", program, level=level, steps="all", task="tensor")
    losses = [line["loss"] for line in Trace(tmp_path / "run").scalars(0)]
    assert losses[0] is None
    assert None not in losses[1:]


@LEVELS
@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
def test_a_model_is_traced(level: str, tmp_path: Path) -> None:
    bare = train(torch.jit.trace(model_of(), torch.ones(4, 8)))
    found: list[float] = []
    capture(
        tmp_path / "run",
        lambda: found.extend(train(torch.jit.trace(model_of(), torch.ones(4, 8)))),
        level=level,
    )
    assert found == bare


@LEVELS
def test_no_frame_is_compiled_that_is_not_compiled_otherwise(level: str, tmp_path: Path) -> None:
    """Dynamo skips torch's own frames, so of such a model it compiles nothing."""
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph

    def program() -> list[float]:
        torch._dynamo.reset()
        model = model_of()
        model.compile(backend=backend)
        return train(model)

    bare, alone = program(), len(graphs)
    found: list[float] = []
    capture(tmp_path / "run", lambda: found.extend(program()), level=level)
    assert (found, len(graphs)) == (bare, 2 * alone)


@LEVELS
def test_optimizers_that_step_inside_backward(level: str, tmp_path: Path) -> None:
    def program() -> None:
        model = model_of()
        optimizers = {p: torch.optim.SGD([p], 0.1) for p in model.parameters()}

        def update(parameter: Tensor) -> None:
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(update)
        for _ in range(3):
            model(torch.ones(4, 8)).pow(2).mean().backward()

    capture(tmp_path / "run", program, level=level)


@LEVELS
def test_training_by_function_transforms_is_told(level: str, tmp_path: Path) -> None:
    def program() -> None:
        model = model_of()
        weights = {name: p.detach() for name, p in model.named_parameters()}

        def loss(weights: dict[str, Tensor]) -> Tensor:
            return functional_call(model, weights, (torch.ones(4, 8),)).pow(2).mean()

        for _ in range(2):
            gradients, _ = grad_and_value(loss)(weights)
            weights = {name: weights[name] - 0.1 * gradients[name] for name in weights}

    capture(tmp_path / "run", program, level=level)
    assert any("torch.func" in limit for limit in Captured(tmp_path / "run", 0).facts["limits"])


def test_a_step_that_cannot_be_written_takes_no_other_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = session.scalar_line

    def failing(*args: Any, step: int, **more: Any) -> dict[str, Any]:
        if step == 1:
            raise ValueError("no line")
        return written(*args, step=step, **more)

    monkeypatch.setattr(session, "scalar_line", failing)
    capture(tmp_path / "run", lambda: train(model_of(), 4), failures=1)
    assert sorted(Trace(tmp_path / "run").steps()) == [0, 2, 3]
    assert not list((tmp_path / "run").glob("step*/*.writing-*"))


class Counted(TorchDispatchMode):
    """Counts operators, as profilers of the program do."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[str(func)] += 1
        return func(*args, **(kwargs or {}))


class CountedFunctions(TorchFunctionMode):
    """Counts functions."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[getattr(func, "__name__", str(func))] += 1
        return func(*args, **(kwargs or {}))


class CountedTensor(Tensor):
    """Counts functions called with it."""

    calls: ClassVar[Counter[str]] = Counter()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls[getattr(func, "__name__", str(func))] += 1
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@LEVELS
@pytest.mark.parametrize("mode", [Counted, CountedFunctions])
def test_a_mode_of_the_program_sees_only_the_program(
    mode: Any, level: str, task: str, tmp_path: Path
) -> None:
    def seen() -> Counter[str]:
        with mode() as counted:
            train(model_of())
        return Counter(counted.calls)

    plain = seen()
    captured: list[Counter[str]] = []
    run = capture(tmp_path / "run", lambda: captured.append(seen()), level=level, task=task, digest=True)
    assert captured == [plain]
    assert run.one("0", "forward", "output.0")["summary"] is not None
    assert list(run.trace.steps()) == [0, 1, 2]


@LEVELS
def test_a_tensor_class_of_the_program_sees_only_the_program(level: str, tmp_path: Path) -> None:
    def seen() -> Counter[str]:
        CountedTensor.calls.clear()
        model = model_of()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            loss = model(torch.ones(4, 8).as_subclass(CountedTensor)).sum()
            loss.backward()
            optimizer.step()
            loss.detach().numpy()
        return Counter(CountedTensor.calls)

    plain = seen()
    captured: list[Counter[str]] = []
    capture(tmp_path / "run", lambda: captured.append(seen()), level=level)
    assert captured == [plain]
