"""Compiled code is seen at its boundary, named as opaque, and computes what it computes without capture."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn

from tests.adapters.mindspore.models import weights
from tests.adapters.mindspore.reading import Captured, capture, gradients_of

pytestmark = pytest.mark.mindspore
PROGRAM = Path(__file__).with_name("programs") / "graph_mode.py"


@ms.jit
def doubled(x: Tensor) -> Tensor:
    return mint.exp(x) * 2


class Compiled(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(weights(3, 4) * 10, name="weight")
        self.inner = nn.ReLU()

    @ms.jit
    def construct(self, x: Tensor) -> Tensor:
        return self.inner(x * self.weight)


class Root(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(weights(1, 4) * 10, name="weight")
        self.part = Compiled()

    def construct(self, x: Tensor) -> Tensor:
        return self.part(doubled(x + self.weight))


def test_a_jitted_function_and_a_jitted_cell_are_one_opaque_call_each(tmp_path: Path) -> None:
    model, x = Root(), weights(2, 3, 4)
    hidden = (x + model.weight).asnumpy()
    run = capture(tmp_path / "run", lambda: gradients_of(model, x))
    inside = [
        (c["name"], c["opaque"]) for c in run.calls if c["kind"] != "parameter" and c["parent"] is not None
    ]
    assert inside == [
        ("mindspore.Tensor.__add__", False),
        ("mindspore.jit.doubled", True),
        ("part", True),
    ]
    assert np.array_equal(run.value("mindspore.jit.doubled", "forward", "input.0"), hidden)
    given = run.value("mindspore.jit.doubled", "forward", "output.0")
    np.testing.assert_allclose(given, np.exp(hidden) * 2, rtol=1e-5)
    np.testing.assert_allclose(
        run.value("part", "forward", "output.0"),
        np.maximum(given * model.part.weight.asnumpy(), 0),
        rtol=1e-6,
    )
    at = np.linspace(0.5, 1.5, 12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_allclose(run.value("part", "backward", "output.0"), at, rtol=1e-6)
    opaque = {row["name"] for row in run.facts["opaque"]}
    assert opaque == {"mindspore.jit.doubled", "part"}


@ms.jit
def weighed(constant: Tensor, x: Tensor, factor: Tensor) -> Tensor:
    return mint.exp(x) * constant * factor


def test_each_input_of_a_jitted_function_gets_its_own_gradient(tmp_path: Path) -> None:
    """The first input wants none, so that the places of arguments and gradients differ."""

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.weight = Parameter(weights(1, 4) * 10, name="weight")

        def construct(self, x: Tensor) -> Tensor:
            hidden = x * self.weight
            return weighed(x, hidden, mint.exp(hidden))

    net, x = Net(), weights(2, 3, 4)
    hidden = (x * net.weight).asnumpy()
    run = capture(tmp_path / "run", lambda: gradients_of(net, x), level="L1")
    at = np.linspace(0.5, 1.5, 12, dtype=np.float32).reshape(3, 4)
    name, constant = "mindspore.jit.weighed", x.asnumpy()
    assert not run.find(name, "backward", "input.0")
    np.testing.assert_allclose(run.value(name, "backward", "output.0"), at, rtol=1e-5)
    expected = {"input.1": at * np.exp(hidden) ** 2 * constant, "input.2": at * np.exp(hidden) * constant}
    for slot, value in expected.items():
        np.testing.assert_allclose(run.value(name, "backward", slot), value, rtol=1e-4, atol=1e-6)


def test_at_module_level_the_function_is_named_as_opaque_too(tmp_path: Path) -> None:
    run = capture(tmp_path / "run", lambda: gradients_of(Root(), weights(2, 3, 4)), level="L0")
    assert {"mindspore.jit.doubled", "part"} == {row["name"] for row in run.facts["opaque"]}
    assert not [c for c in run.calls if c["kind"] == "api"]


@pytest.mark.parametrize("kind", ["function", "cell"])
def test_graph_mode_is_captured_at_its_boundary_and_said_so(kind: str, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"task": "tensor", "level": "mix", "step": [0, 1]}')
    alone = subprocess.run(
        [sys.executable, PROGRAM, kind], capture_output=True, text=True, timeout=200, check=True
    ).stdout
    done = subprocess.run(
        [
            *(sys.executable, "-m", "trueup", "capture", "-o", tmp_path / "run", "--config", config, "--"),
            *(sys.executable, PROGRAM, kind),
        ],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == alone
    run = Captured(tmp_path / "run")
    assert run.facts["num_failures"] == 0, run.facts["failures"]
    assert any("graph mode" in limit for limit in run.facts["limits"])
    losses = [float(line) for line in alone.splitlines()]
    assert [line["loss"] for line in run.trace.scalars(0)] == pytest.approx(losses, rel=1e-6)
    opaque = [c for c in run.calls if c["opaque"]]
    assert len(opaque) == 1
    slots = {r["slot"] for r in run.records if run.calls[r["call"]] is opaque[0]}
    assert {"input.0", "input.1"} <= slots
    before, after = run.value("weight", "param", "value"), run.value("weight", "optimizer", "param")
    assert not np.array_equal(before, after)
    if kind == "function":
        gradient = run.value("weight", "param_grad", "local")
        np.testing.assert_allclose(after, before - 0.1 * gradient, rtol=1e-5)
