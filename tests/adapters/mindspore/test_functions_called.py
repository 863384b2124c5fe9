"""Functions that cells call, by name and plain arguments, of the first captured step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import mindspore.mint.nn.functional as F
import numpy as np
import pytest
from mindspore import Tensor, mint, nn, ops

import trueup
from tests.adapters.mindspore.loops import LOOPS
from tests.adapters.mindspore.models import Linear
from tests.adapters.mindspore.test_bit_identity import differences
from trueup.diagnosing.pipeline import diagnose
from trueup.store import Trace
from trueup.store.code import CalledFunction, code_of
from trueup.types.codes import VerdictCode
from trueup.types.codes.kinds import KindReason
from trueup.types.status import Outcome

pytestmark = pytest.mark.mindspore

OPTIONS: dict[str, Any] = {
    "framework": "mindspore",
    "level": "L0",
    "store_values_of": {"module", "parameter", "configuration"},
    "functions": True,
}
"""of the preset ``diagnose``"""
Formula = Callable[[Tensor], Tensor]


class Gate(nn.Cell):
    """Channels weighted by a formula of their own."""

    def __init__(self, seed: int, formula: Formula) -> None:
        super().__init__()
        self.up, self.formula = Linear(seed, 16, 16), formula

    def construct(self, x: Tensor) -> Tensor:
        return x * self.formula(self.up(x) * 8.0)


class Gated(nn.Cell):
    """Two gates and a head."""

    def __init__(self, formula: Formula) -> None:
        super().__init__()
        self.gates = nn.CellList([Gate(seed, formula) for seed in (1, 2)])
        self.head = Linear(3, 16, 4)

    def construct(self, x: Tensor) -> Tensor:
        for gate in self.gates:
            x = gate(x)
        return self.head(x)


def over(dim: int, **given: object) -> Formula:
    return lambda x: F.softmax(x, dim=dim, **given)


def trained(path: Path, formula: Formula, smoothing: float = 0.0, *, jit: bool = False) -> Trace:
    with trueup.Tracer(path, **OPTIONS):
        model = Gated(formula)
        model.set_train()
        optimizer = nn.SGD(model.trainable_params(), 0.1)
        run = ms.jit(model) if jit else model

        def forward(x: Tensor, labels: Tensor) -> Tensor:
            return ops.cross_entropy(run(x), labels, label_smoothing=smoothing)

        gradient = ms.value_and_grad(forward, None, optimizer.parameters)
        numbers = np.random.default_rng(0)
        for _ in range(2):
            x = Tensor(numbers.standard_normal((6, 16)).astype(np.float32))
            _, found = gradient(x, Tensor(numbers.integers(0, 4, 6).astype(np.int32)))
            optimizer(found)
    trace = Trace(path)
    assert trace.rank_facts(0)["num_failures"] == 0, trace.rank_facts(0)["failures"]
    return trace


def called(trace: Trace) -> dict[str | None, list[CalledFunction]]:
    code = code_of(trace, 0)
    assert code is not None
    return {module: list(found) for module, found in code.called.items()}


def test_the_first_pass_of_each_cell_is_kept_in_order(tmp_path: Path) -> None:
    def formula(x: Tensor) -> Tensor:
        return ops.clamp(mint.nn.functional.relu(x) * 0.2, 0.0, 1.0)

    found = called(trained(tmp_path / "run", formula))
    inside = [(one.name.rpartition(".")[2], dict(one.arguments), one.after) for one in found["gates.1"]]
    assert inside == [
        ("__mul__", {"input.1": 8.0}, 1),
        ("relu", {}, 1),
        ("__mul__", {"input.1": 0.2}, 1),
        ("clamp", {"input.1": 0.0, "input.2": 1.0}, 1),
        ("__mul__", {}, 1),
    ]
    (linear,) = found["head"]
    assert [(one.dtype, one.shape) for one in linear.tensors.values()] == [
        ("float32", (6, 16)),
        ("float32", (4, 16)),
    ]
    assert [one.name.rpartition(".")[2] for one in found[None]].count("cross_entropy") == 1


@pytest.mark.parametrize("loop", ["classic_optimizer", "training_cell", "with_dropout"])
def test_it_changes_nothing_and_adds_no_call_to_compare(loop: str, tmp_path: Path) -> None:
    expected = LOOPS[loop]()
    with trueup.Tracer(tmp_path / "run", **OPTIONS):
        actual = LOOPS[loop]()
    assert differences(actual, expected) == []
    trace = Trace(tmp_path / "run")
    assert "api" not in set(trace.read(0, 0).calls["kind"].to_list())
    assert called(trace)


def test_a_compiled_model_calls_none(tmp_path: Path) -> None:
    found = called(trained(tmp_path / "run", over(-1), jit=True))
    assert not any(module for module in found)


def test_another_argument_is_named_where_no_call_has_values(tmp_path: Path) -> None:
    trained(tmp_path / "target", over(0))
    trained(tmp_path / "reference", over(-1))
    result = diagnose(tmp_path / "target", tmp_path / "reference", output=tmp_path / "out")
    kinds = [kind.sentence for finding in result.findings for kind in finding.kinds[:1]]
    assert kinds[0].code is KindReason.OTHER_ARGUMENTS


def test_an_argument_of_the_loss_that_rounding_hides_leaves_it_open(tmp_path: Path) -> None:
    for name, smoothing in (("target", 1e-7), ("reference", 0.0)):
        trained(tmp_path / name, over(-1), smoothing)
    result = diagnose(tmp_path / "target", tmp_path / "reference", output=tmp_path / "out")
    assert (result.outcome, result.headline.code) == (Outcome.UNDECIDED, VerdictCode.OTHER_ARGUMENT)
    assert result.headline.place("call") == "cross_entropy"
    trained(tmp_path / "other_end", over(1))
    result = diagnose(tmp_path / "other_end", tmp_path / "reference", output=tmp_path / "out")
    assert result.outcome is Outcome.AGREE
