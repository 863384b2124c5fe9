"""Steps, microbatches, optimizers, scalars: the training loop as it is seen from outside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from mindspore.experimental import optim

import trueup
from tests.adapters.mindspore import loops
from tests.adapters.mindspore.models import GPT, batch, cross_entropy
from tests.adapters.mindspore.reading import Captured, capture, gradients_of
from trueup.adapters.mindspore import training
from trueup.store import Trace

pytestmark = pytest.mark.mindspore


@pytest.fixture
def leaves_an_exception() -> Iterator[None]:
    """MindSpore 2.10 keeps the graph of a forward that raised, and takes every later one of the process for a
    gradient of a gradient: ``h[0]`` raises in it. It is told to forget.
    """
    yield
    from mindspore.graph.api import _pynative_executor

    _pynative_executor.clear_res()


HEAD = "head.weight"


def train(model: nn.Cell, optimizer: Any, *, steps: int = 2) -> list[Any]:
    """Returns the gradients of every step."""
    model.set_train()
    gradient = ms.value_and_grad(
        lambda ids, labels: cross_entropy(model(ids), labels), None, optimizer.parameters
    )
    found = []
    for step in range(steps):
        found.append(gradient(*batch(step))[1])
        optimizer(found[-1])
    return found


OPTIMIZERS = {
    "AdamW": (lambda p: optim.AdamW(list(p), lr=1e-2), {"exp_avg", "exp_avg_sq"}),
    "Adam": (lambda p: optim.Adam(list(p), lr=1e-2), {"exp_avg", "exp_avg_sq"}),
    "SGD": (lambda p: optim.SGD(list(p), lr=1e-2, momentum=0.9), {"momentum_buffer"}),
    "Momentum": (lambda p: nn.Momentum(p, 1e-2, 0.9), {"momentum_buffer"}),
    "AdamWeightDecay": (lambda p: nn.AdamWeightDecay(p, 1e-2, weight_decay=0.1), {"exp_avg", "exp_avg_sq"}),
    "nn.Adam": (lambda p: nn.Adam(p, 1e-2), {"exp_avg", "exp_avg_sq"}),
    "nn.SGD": (lambda p: nn.SGD(p, 1e-2, momentum=0.9), {"momentum_buffer"}),
}


@pytest.mark.parametrize("own_rate", [False, True])
def test_groups_by_decay_have_their_learning_rates(own_rate: bool) -> None:
    model = GPT(layers=1)
    first, second = list(model.trainable_params())[:2]
    parts = [{"params": [first], "weight_decay": 0.1}, {"params": [second], "weight_decay": 0.0}]
    if own_rate:
        parts[0]["lr"] = 0.5
    groups = training._groups(nn.AdamWeightDecay(parts, learning_rate=1e-3))
    rates = [(group["lr"], group["weight_decay"], len(group["params"])) for group in groups]
    assert rates == [(0.5 if own_rate else 1e-3, 0.1, 1), (1e-3, 0.0, 1)]


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_optimizer_state_goes_by_torch_s_names(name: str, tmp_path: Path) -> None:
    make, states = OPTIMIZERS[name]
    model = GPT(layers=1)
    before = model.head.weight.asnumpy().copy()
    kept: dict[str, Any] = {}

    def program() -> None:
        optimizer = make(model.trainable_params())
        kept["gradients"] = train(model, optimizer, steps=1)[0]
        kept["names"] = [p.name for p in optimizer.parameters]

    run = capture(tmp_path / "run", program, level="L0")
    gradient = kept["gradients"][kept["names"].index(model.head.weight.name)].asnumpy()
    assert np.array_equal(run.value(HEAD, "param", "value"), before)
    assert np.array_equal(run.value(HEAD, "optimizer", "param"), model.head.weight.asnumpy())
    assert not np.array_equal(before, model.head.weight.asnumpy())
    for slot in ("local", "accumulated", "clipped"):
        assert np.array_equal(run.value(HEAD, "param_grad", slot), gradient), slot
    found = {s.removeprefix("state.") for s in run.slots(HEAD, "optimizer") if s.startswith("state.")}
    assert states <= found, found
    if "exp_avg" in states:
        np.testing.assert_allclose(
            run.value(HEAD, "optimizer", "state.exp_avg"), gradient * 0.1, rtol=1e-4, atol=1e-9
        )
    settings = run.facts["optimizers"][0]
    assert settings["class"] == name.removeprefix("nn.")
    assert settings["groups"][0]["lr"] == 1e-2  # which the optimizer keeps in float32
    assert sum(group["num_params"] for group in settings["groups"]) == len(kept["names"])
    assert run.trace.scalars(0)[0]["learning_rate"] == [pytest.approx(1e-2)]


def test_groups_of_an_optimizer_and_their_settings(tmp_path: Path) -> None:
    model = GPT(layers=1)
    decayed = [p for p in model.trainable_params() if "weight" in p.name]
    others = [p for p in model.trainable_params() if "weight" not in p.name]
    optimizer = optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "lr": 1e-3}], lr=1e-2
    )
    run = capture(tmp_path / "run", lambda: train(model, optimizer, steps=1), level="L0")
    first, second = run.facts["optimizers"][0]["groups"]
    assert (first["num_params"], second["num_params"]) == (len(decayed), len(others))
    assert first["weight_decay"] == pytest.approx(0.1)
    assert second["lr"] == pytest.approx(1e-3)
    assert run.trace.scalars(0)[0]["learning_rate"] == [pytest.approx(1e-2), pytest.approx(1e-3)]
    table = {row["fqn"]: row for row in run.facts["parameters"]}
    assert table[HEAD]["optimizer_group"] == [0, 0]


def test_microbatches_are_counted_and_kept_apart(tmp_path: Path) -> None:
    def program() -> None:
        loops.accumulated()

    run = capture(tmp_path / "run", program, level="L0")
    assert run.trace.scalars(0)[0]["microbatches"] == 2
    assert len(run.trace.scalars(0)[0]["losses"]) == 2
    records = run.find(HEAD, "param_grad", "local")
    assert [r["microbatch"] for r in records] == [0, 1]
    clipped = run.value(HEAD, "param_grad", "clipped")
    np.testing.assert_allclose(clipped, sum(run.values(r) for r in records), rtol=1e-6)
    outputs = run.find("", "forward", "output.0")
    assert [r["site"]["microbatch"] for r in outputs] == [0, 1]
    tokens = run.trace.scalars(0)[0]["tokens"]
    assert tokens == 2 * batch(0)[0].size


def test_loss_tokens_and_batch_of_each_step(tmp_path: Path) -> None:
    losses: list[float] = []

    def program() -> None:
        losses.extend(float(np.frombuffer(one, np.float32)[0]) for one in loops.plain()[0])

    run = capture(tmp_path / "run", program, level="L0")
    lines = run.trace.scalars(0)
    assert [line["step"] for line in lines] == [0, 1, 2]
    assert [line["loss"] for line in lines] == losses
    assert run.value("loss", "loss", "value") == np.float32(losses[0])
    assert len({line["batch_digest"] for line in lines}) == 3
    assert lines[0]["batch_size"] == 2


def test_the_loss_before_scaling_and_the_scale(tmp_path: Path) -> None:
    unscaled: list[float] = []

    def program() -> None:
        unscaled.extend(float(np.frombuffer(one, np.float32)[0]) for one in loops.loss_scaled()[0])

    run = capture(tmp_path / "run", program, level="L0")
    lines = run.trace.scalars(0)
    assert [line["loss"] for line in lines] == pytest.approx(unscaled, rel=1e-6)
    assert lines[0]["loss_scale"] == 1024
    assert [line["skipped"] for line in lines] == [False, False, False]
    local, clipped = (run.value(HEAD, "param_grad", slot) for slot in ("local", "clipped"))
    np.testing.assert_allclose(local / 1024, clipped, rtol=1e-5)


def test_a_norm_of_local_gradients(tmp_path: Path) -> None:
    model = GPT(layers=1)
    optimizer = optim.SGD(list(model.trainable_params()), lr=1e-2)
    kept: list[Any] = []
    run = capture(tmp_path / "run", lambda: kept.extend(train(model, optimizer, steps=1)), level="L0")
    expected = np.sqrt(sum(float((g.asnumpy().astype(np.float64) ** 2).sum()) for g in kept[0]))
    assert run.trace.scalars(0)[0]["local_norm"] == pytest.approx(expected, rel=1e-6)


def test_clipping_shows_between_local_and_clipped(tmp_path: Path) -> None:
    model = GPT(layers=1)
    optimizer = optim.SGD(list(model.trainable_params()), lr=1e-2)

    def program() -> None:
        gradient = ms.value_and_grad(
            lambda ids, labels: cross_entropy(model(ids), labels), None, optimizer.parameters
        )
        optimizer(ops.clip_by_global_norm(gradient(*batch(0))[1], 1e-3))

    run = capture(tmp_path / "run", program, level="L0")
    clipped = [r["summary"]["l2_norm"] for r in run.records if r["slot"] == "clipped"]
    assert np.sqrt(sum(n * n for n in clipped)) == pytest.approx(1e-3, rel=1e-3)
    assert run.trace.scalars(0)[0]["grad_norm"] > 1e-3


def test_evaluation_is_kept_apart(tmp_path: Path) -> None:
    run = capture(tmp_path / "run", lambda: loops.evaluated_between(), step=1, level="L0")
    assert list(run.trace.steps()) == [0, 1, 2]
    modes = [c["mode"] for c in run.calls if c["kind"] == "module" and c["name"] == ""]
    assert modes == ["train", "eval"]
    assert not run.find("", "backward", "output.0", mode="eval")


@pytest.mark.usefixtures("leaves_an_exception")
def test_an_exception_in_a_forward_ends_no_step(tmp_path: Path) -> None:
    model = GPT(layers=1)
    optimizer = optim.SGD(list(model.trainable_params()), lr=1e-2)

    class Broken(RuntimeError):
        pass

    def broken(ids: Tensor, labels: Tensor) -> Tensor:
        model(ids)
        raise Broken

    def program() -> None:
        with pytest.raises(Broken):
            ms.value_and_grad(broken, None, optimizer.parameters)(*batch(7))
        train(model, optimizer, steps=2)

    run = capture(tmp_path / "run", program, level="mix", task="statistics")
    assert run.trace.scalars(0)[-1]["step"] <= 2
    last = Captured(tmp_path / "run", run.trace.scalars(0)[-1]["step"])
    assert last.find(HEAD, "param_grad", "clipped")
    with trueup.Tracer(tmp_path / "after", framework="mindspore", level="L0"):
        train(model, optimizer, steps=1)
    assert len(Trace(tmp_path / "after").scalars(0)) == 1


@pytest.mark.usefixtures("leaves_an_exception")
def test_an_exception_inside_a_cell(tmp_path: Path) -> None:
    class Fails(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.weight = Parameter(Tensor(np.ones(3, np.float32)), name="weight")
            self.inner = nn.ReLU()
            self.fail = True

        def construct(self, x: Tensor) -> Tensor:
            hidden = self.inner(x * self.weight)
            if self.fail:
                raise ValueError("in the middle")
            return hidden

    model = Fails()

    def program() -> None:
        with pytest.raises(ValueError, match="in the middle"):
            gradients_of(model, Tensor(np.ones((2, 3), np.float32)))
        model.fail = False
        gradients_of(model, Tensor(np.ones((2, 3), np.float32)))

    run = capture(tmp_path / "run", program, level="L0")
    assert any("an exception left the forward" in limit for limit in run.facts["limits"])
    assert len(run.find("", "forward", "output.0")) == 1
    assert len(run.find("inner", "forward", "output.0")) == 2


def test_a_training_cell_is_transparent(tmp_path: Path) -> None:
    run = capture(tmp_path / "run", lambda: loops.training_cell(), level="L0")
    assert run.facts["wrapped_by"] == ["TrainOneStepCell"]
    assert run.find("_backbone.layers.0.attn", "forward", "output.0") or run.find(
        "layers.0.attn", "forward", "output.0"
    )
    assert len(run.trace.scalars(0)) == 3
    assert run.trace.scalars(0)[0]["loss"] > 0


def test_scope_and_names_narrow_a_capture(tmp_path: Path) -> None:
    model = GPT(layers=2)
    optimizer = optim.SGD(list(model.trainable_params()), lr=1e-2)
    run = capture(
        tmp_path / "run", lambda: train(model, optimizer, steps=1), level="L0", names=["layers.1.attn"]
    )
    recorded = {r["site"]["name"] for r in run.records if r["phase"] == "forward"}
    assert recorded == {"layers.1.attn", "layers.1.attn.qkv", "layers.1.attn.out"}
