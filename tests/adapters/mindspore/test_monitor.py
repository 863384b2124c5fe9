"""The monitor in a MindSpore program: what it measures, what it leaves, what it raises."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.experimental import optim

import trueup
from tests.adapters.mindspore.loops import LOOPS, STEPS
from tests.adapters.mindspore.models import GPT, batch, cross_entropy, start
from trueup.monitoring.reader import MonitoredRun, open_run, read_alarms
from trueup.store import Trace
from trueup.store.layout import whole_steps

pytestmark = pytest.mark.mindspore

Numbers = dict[str, float]
Change = Callable[[int, tuple[Tensor, ...]], tuple[Tensor, ...]]


def watched(folder: Path, program: Callable[[], object], **settings: object) -> MonitoredRun:
    """Run a program, monitored; the monitor must have met no failure."""
    with trueup.Tracer(folder, framework="mindspore", monitor=trueup.Monitor(**settings)):
        program()
    assert Trace(folder).rank_facts(0)["num_failures"] == 0, Trace(folder).rank_facts(0)["failures"]
    return open_run(folder)


def last(run: MonitoredRun, kind: str, column: str) -> Numbers:
    series = run.series(kind, column)
    assert series is not None, kind
    return dict(zip(series.names, series.values[-1].tolist(), strict=True))


def train(
    model: nn.Cell, steps: int, *, change: Change = lambda step, found: found, rate: float = 1e-2
) -> list[Tensor]:
    """AdamW; returns the gradients of the last step as they came."""
    model.set_train()
    optimizer = optim.AdamW(list(model.trainable_params()), lr=rate)

    def forward(ids: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(model(ids), labels)

    gradient = ms.value_and_grad(forward, None, optimizer.parameters)
    found: tuple[Tensor, ...] = ()
    for step in range(steps):
        _, found = gradient(*batch(step))
        optimizer(change(step, found))
    return list(found)


def norms(named: dict[str, Tensor]) -> Numbers:
    return {name: float(np.linalg.norm(tensor.asnumpy())) for name, tensor in named.items()}


@pytest.mark.parametrize("loop", ["accumulated", "loss_scaled", "training_cell"])
def test_same_bits_with_the_monitor_on(loop: str, tmp_path: Path) -> None:
    expected = LOOPS[loop]()
    results = []
    run = watched(tmp_path / "run", lambda: results.append(LOOPS[loop]()), modules=["*"], moments_every=1)
    assert results == [expected]
    gradients, weights = run.series("gradient", "l2_norm"), run.series("weight", "l2_norm")
    assert gradients is not None
    assert weights is not None
    assert set(gradients.names) == set(weights.names)
    assert len(weights.values) == STEPS
    assert not whole_steps(tmp_path / "run")


@pytest.mark.parametrize("here", [True, False])
def test_numbers_are_those_of_the_tensors(
    here: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the kernel, and with reductions where the tensors lie."""
    monkeypatch.setattr("trueup.adapters.mindspore.measures.AVAILABLE", here)
    start()
    model, kept = GPT(), []
    before: dict[str, np.ndarray] = {}

    def note(step: int, found: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        before.update({p.name: p.asnumpy().copy() for p in model.trainable_params()})
        return ops.clip_by_global_norm(found, 0.01)

    run = watched(
        tmp_path / "run",
        lambda: kept.extend(train(model, 3, change=note)),
        modules=["norm", "Attention"],
        local_gradients=True,
        moments_every=1,
    )
    parameters = dict(model.parameters_and_names())
    gradients = norms(dict(zip(parameters, kept, strict=True)))
    assert last(run, "gradient", "l2_norm") == pytest.approx(gradients, rel=1e-5)  # before clipping
    assert last(run, "local_gradient", "l2_norm") == pytest.approx(gradients, rel=1e-5)
    assert last(run, "weight", "l2_norm") == pytest.approx(norms(parameters), rel=1e-5)
    changes = {fqn: float(np.linalg.norm(p.asnumpy() - before[p.name])) for fqn, p in parameters.items()}
    assert last(run, "update", "l2_norm") == pytest.approx(changes, rel=1e-3)
    assert set(last(run, "exp_avg_sq", "largest")) == set(parameters)
    assert {"norm", "layers.0.norm1", "layers.1.attn"} <= set(last(run, "activation", "l2_norm"))
    assert set(last(run, "units", "dead_share").values()) == {0.0}
    line = run.lines[-1]
    assert line["grad_norm"] == pytest.approx(sum(g**2 for g in gradients.values()) ** 0.5, rel=1e-5)
    assert line["learning_rate"] == pytest.approx([1e-2])


class _Router(nn.Cell):
    """Scores of four experts; the last two are never the best."""

    def __init__(self) -> None:
        super().__init__()
        self.num_experts, self.top_k = 4, 1
        self.bias = Parameter(Tensor([5.0, 4.0, -50.0, -50.0], ms.float32), name="bias")

    def construct(self, x: Tensor) -> Tensor:
        return x[..., :4] + self.bias


class _Experts(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.router = _Router()

    def construct(self, x: Tensor) -> Tensor:
        return mint.sum(mint.softmax(self.router(x), -1)[..., 0])


def test_the_load_of_a_router(tmp_path: Path) -> None:
    def program() -> None:
        model = _Experts()
        model.set_train()
        optimizer = optim.SGD(list(model.trainable_params()), lr=1e-2)
        x = Tensor(np.random.default_rng(0).standard_normal((3, 16, 4)).astype(np.float32))
        for _ in range(2):
            _, found = ms.value_and_grad(lambda: model(x), None, optimizer.parameters)()
            optimizer(found if isinstance(found, tuple) else (found,))

    run = watched(tmp_path / "run", program)
    assert last(run, "router", "starved_share") == {"router": 0.5}
    assert 2.0 < last(run, "router", "imbalance")["router"] <= 4.0


def test_a_nan_gives_an_alarm_and_the_next_step_in_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def poison(step: int, found: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (found[0] * float("nan"), *found[1:]) if step == 2 else found

    start()
    watched(tmp_path / "run", lambda: train(GPT(), 5, change=poison))
    first = read_alarms(tmp_path / "run")[0]
    assert (first["rule"], first["step"], first["captured_step"]) == ("nan", 2, 3)
    assert 3 in whole_steps(tmp_path / "run")
    assert capsys.readouterr().err.count("ALARM step 2 ") == 1


def test_a_weight_that_no_update_moves_is_frozen(tmp_path: Path) -> None:
    def still(step: int, found: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (*found[:-1], found[-1] * 0)

    start()
    model = GPT()
    watched(tmp_path / "run", lambda: _sgd(model, 10, still))
    by_rule = {alarm["rule"]: alarm for alarm in read_alarms(tmp_path / "run")}
    name = list(dict(model.parameters_and_names()))[-1]
    assert [s["name"] for s in by_rule["frozen"]["subjects"]] == [f"update of {name}"]
    assert by_rule["all_zero"]["subjects"][0]["name"] == f"gradient of {name}"


def _sgd(model: nn.Cell, steps: int, change: Change) -> None:
    model.set_train()
    optimizer = nn.SGD(model.trainable_params(), 1e-2)

    def forward(ids: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(model(ids), labels)

    gradient = ms.value_and_grad(forward, None, optimizer.parameters)
    for step in range(steps):
        optimizer(change(step, gradient(*batch(step))[1]))
