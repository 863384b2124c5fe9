"""What capture can be asked for besides: labels, settings, overflows, and changes of the run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn
from mindspore.dataset import NumpySlicesDataset
from mindspore.experimental import optim

import trueup
from tests.adapters.mindspore.models import GPT, batch, cross_entropy, weights
from tests.adapters.mindspore.reading import Captured, capture
from trueup.capture import session
from trueup.store import Trace

pytestmark = pytest.mark.mindspore


@pytest.fixture(autouse=True)
def no_session() -> Iterator[None]:
    yield
    running = session.current()
    if running is not None:
        running.close()


def train(model: nn.Cell, loss: Any, data: Any, *, rate: float = 1e-2) -> optim.Optimizer:
    model.set_train()
    optimizer = optim.AdamW(list(model.trainable_params()), lr=rate)
    gradient = ms.value_and_grad(loss, None, optimizer.parameters)
    for one in data:
        optimizer(gradient(*one)[1])
    return optimizer


def of_gpt(model: GPT, steps: int = 1) -> Any:
    return lambda: train(model, lambda i, t: cross_entropy(model(i), t), [batch(s) for s in range(steps)])


def test_labels_are_the_ones_the_loss_was_made_with(tmp_path: Path) -> None:
    kinds = ["labels", "integers"]
    run = capture(tmp_path / "run", of_gpt(GPT(layers=1)), task="statistics", store_values_of=kinds)
    assert np.array_equal(run.value("loss", "loss", "labels"), batch(0)[1].asnumpy().reshape(-1))
    unlike = capture(
        tmp_path / "L0", of_gpt(GPT(layers=1)), task="statistics", level="L0", store_values_of=["labels"]
    )
    assert unlike.find("loss", "loss", "labels")  # the integers the function was given beside the tokens
    assert any("labels are known from API calls" in limit for limit in unlike.facts["limits"])


def test_targets_of_a_regression_are_the_ones_the_loss_was_made_with(tmp_path: Path) -> None:
    net, wanted = mint.nn.Linear(4, 3), weights(2, 3)
    run = capture(
        tmp_path / "run",
        lambda: train(net, lambda x, y: ms.ops.huber_loss(net(x), y), [(weights(2, 4), wanted)]),
        store_values_of=["labels", "module"],
    )
    assert np.array_equal(run.value("loss", "loss", "targets"), wanted.asnumpy())
    assert not run.find("loss", "loss", "labels")


def test_a_gather_far_from_the_loss_is_no_label(tmp_path: Path) -> None:
    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.weight = Parameter(weights(1, 4, 4), name="weight")

        def construct(self, x: Tensor, index: Tensor) -> Tensor:
            mint.gather(self.weight, 1, index)  # goes nowhere
            return mint.sum(mint.matmul(x, self.weight))

    net, index = Net(), Tensor(np.zeros((4, 1), np.int64))
    run = capture(
        tmp_path / "run", lambda: train(net, net, [(weights(2, 3, 4), index)]), store_values_of=["labels"]
    )
    assert run.find("mindspore.mint.gather", "forward", "output.0")
    assert not run.find("loss", "loss", "labels")


class Norm(nn.Cell):
    """Not ``nn.LayerNorm``: after an exception in a forward, MindSpore 2.10 fails in its next backward."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = Parameter(Tensor(np.ones(4, np.float32)), name="gamma")
        self.epsilon = 1e-3

    def construct(self, x: Tensor) -> Tensor:
        return x * mint.rsqrt(mint.mean(x * x, -1, keepdim=True) + self.epsilon) * self.gamma


def test_settings_of_cells_by_torch_s_names(tmp_path: Path) -> None:
    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.norm = Norm()
            self.scale = 0.25

        def construct(self, x: Tensor) -> Tensor:
            return mint.sum(self.norm(x) * self.scale)

    net = Net()
    run = capture(
        tmp_path / "run", lambda: train(net, net, [(weights(2, 3, 4),)]), store_values_of=["configuration"]
    )
    assert run.facts["settings"] == {"": {"scale": 0.25}, "norm": {"eps": 1e-3}}


class LogOf(nn.Cell):
    """Takes the logarithm of what may be negative."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.ones(3, np.float32)), name="weight")
        self.log = nn.Cell()
        self.log.construct = lambda x: mint.log(x)

    def construct(self, x: Tensor) -> Tensor:
        return mint.sum(self.log(x * self.weight))


def test_an_overflow_is_found_where_it_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fine, bad = Tensor(np.ones((2, 3), np.float32)), Tensor(np.full((2, 3), -1.0, np.float32))
    net = LogOf()
    with trueup.Tracer(
        tmp_path / "run", framework="mindspore", task="overflow_check", level="mix", steps="all"
    ):
        train(net, net, [(fine,), (fine,), (bad,), (fine,)])
    (found,) = Trace(tmp_path / "run").rank_facts(0)["overflows"]
    assert found["step"] == 2
    assert found["site"] == "log · mindspore.mint.log · output.0"
    assert found["how"] == "made"
    assert "is made in step 2" in capsys.readouterr().err
    run = Captured(tmp_path / "run", step=2)
    assert list(run.trace.steps()) == [2]
    assert np.isfinite(run.value("mindspore.mint.log", "forward", "input.0")).all()
    assert np.isnan(run.value("mindspore.mint.log", "forward", "output.0")).all()


def test_a_run_without_overflow_keeps_no_step(tmp_path: Path) -> None:
    net = LogOf()
    with trueup.Tracer(tmp_path / "run", framework="mindspore", task="overflow_check", steps="all"):
        train(net, net, [(Tensor(np.ones((2, 3), np.float32)),)] * 2)
    assert Trace(tmp_path / "run").steps() == {}
    assert Trace(tmp_path / "run").rank_facts(0)["overflows"] == []


def test_a_held_learning_rate_moves_nothing_and_is_given_back(tmp_path: Path) -> None:
    model, kept = GPT(layers=1), []
    before = [p.asnumpy().copy() for p in model.trainable_params()]

    def program() -> None:
        kept.append(of_gpt(model, steps=2)())

    run = capture(tmp_path / "run", program, level="L0", learning_rate=0.0)
    assert all(np.array_equal(p.asnumpy(), b) for p, b in zip(model.trainable_params(), before, strict=True))
    assert float(kept[0].param_groups[0]["lr"].asnumpy()) == pytest.approx(1e-2)
    assert [line["learning_rate"] for line in run.trace.scalars(0)] == [[0.0], [0.0]]
    assert run.facts["long_run"]["learning_rate"] == {"rate": 0.0, "updates": 2}
    assert run.trace.scalars(0)[0]["grad_norm"] > 0
    assert "unkept" not in run.facts
    free = capture(tmp_path / "free", of_gpt(model, steps=1), level="L0")
    assert free.trace.scalars(0)[0]["learning_rate"] == [pytest.approx(1e-2)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, [0, 1, 2, 3]), ({"only_batch": 2}, [2, 2, 2, 2]), ({"skip_batch": 1}, [0, 2, 3])],
)
def test_batches_are_the_ones_asked_for(options: dict[str, int], expected: list[int], tmp_path: Path) -> None:
    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.weight = Parameter(Tensor(np.ones(3, np.float32)), name="weight")

        def construct(self, x: Tensor) -> Tensor:
            return mint.sum(x * self.weight)

    rows = np.repeat(np.arange(4, dtype=np.float32)[:, None], 3, 1)
    net, seen = Net(), []

    def program() -> None:
        dataset = NumpySlicesDataset(rows, ["x"], shuffle=False).batch(1)
        for (x,) in dataset.create_tuple_iterator():
            seen.append(int(x.asnumpy()[0, 0]))
            train(net, net, [(x,)])

    run = capture(tmp_path / "run", program, level="L0", **options)
    assert seen == expected
    assert "unkept" not in run.facts


def test_a_change_that_could_not_be_made_is_said(tmp_path: Path) -> None:
    run = capture(tmp_path / "run", of_gpt(GPT(layers=1)), level="L0", only_batch=2)
    assert any("no mindspore.dataset iterator" in one for one in run.facts["unkept"])


def test_the_program_is_its_own_again_once_the_session_is_over(tmp_path: Path) -> None:
    def trained() -> list[bytes]:
        model = GPT(layers=1)
        of_gpt(model)()
        return [parameter.asnumpy().tobytes() for parameter in model.get_parameters()]

    own = trained()
    for number, change in enumerate([{"perturb": 1}, {"learning_rate": 0.0}]):
        with trueup.Tracer(tmp_path / str(number), level="L0", **change):
            assert trained() != own
        assert trained() == own


def test_a_perturbed_run_differs_by_rounding(tmp_path: Path) -> None:
    def run(name: str, seed: int | None) -> Captured:
        return capture(tmp_path / name, of_gpt(GPT(layers=1)), level="L0", perturb=seed)

    plain, one, same, other = run("plain", None), run("one", 1), run("same", 1), run("other", 2)
    name = "layers.0.attn.qkv.weight"
    value, changed = plain.value(name, "param", "value"), one.value(name, "param", "value")
    moved = value != changed
    assert 0.02 < moved.mean() < 0.2
    assert np.abs(value - changed)[moved].max() <= np.abs(value[moved]).max() * 2.0**-22
    assert one.digests() == same.digests()
    assert one.digests() != other.digests()
    np.testing.assert_allclose(
        one.value("", "forward", "output.0"), plain.value("", "forward", "output.0"), rtol=1e-3, atol=1e-5
    )
