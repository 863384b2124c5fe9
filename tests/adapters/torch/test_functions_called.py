"""Functions that modules call, by name and plain arguments, of the first captured step."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trueup
from tests.reporting.screens import lines_of
from trueup.diagnosing.pipeline import diagnose
from trueup.reporting.diagnosis import diagnosis_report
from trueup.store import Trace
from trueup.store.code import CalledFunction, code_of
from trueup.types.codes import EvidenceCode, NextCode, NoteCode, VerdictCode
from trueup.types.codes.kinds import KindReason
from trueup.types.reason import Reason
from trueup.types.status import Outcome

pytestmark = pytest.mark.torch


class Gate(nn.Module):
    """A gate between two projections, by a formula of its own."""

    def __init__(self, formula: Callable[[Tensor], Tensor], scale: float = 0.1) -> None:
        super().__init__()
        self.down, self.up, self.formula = nn.Linear(16, 8), nn.Linear(8, 16), formula
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return x * self.formula(self.up(F.leaky_relu(self.down(x) * self.scale)))


class Model(nn.Module):
    """Two gates and a head."""

    def __init__(self, formula: Callable[[Tensor], Tensor], scale: float = 0.1) -> None:
        super().__init__()
        self.gates = nn.ModuleList(Gate(formula, scale) for _ in range(2))
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        for gate in self.gates:
            x = gate(x)
        out: Tensor = self.head(x)
        return out


Loss = Callable[[Tensor, Tensor], Tensor]
Trained = tuple[list[float], list[Tensor]]


def relu6(x: Tensor) -> Tensor:
    return F.relu6(x + 3) / 6


def clamped(x: Tensor) -> Tensor:
    return (0.2 * x + 0.5).clamp(0, 1)


def smoothed(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, label_smoothing=0.1)


def train(model: Callable[[], nn.Module], loss: Loss = F.cross_entropy, num_microbatches: int = 2) -> Trained:
    torch.manual_seed(1)
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for _ in range(num_microbatches):
            x, labels = torch.randn(6, 16), torch.randint(4, (6,))
            value = loss(net(x), labels) / num_microbatches
            value.backward()
            losses.append(value.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, [one.detach().clone() for one in net.parameters()]


OPTIONS: dict[str, Any] = {
    "level": "L0",
    "store_values_of": {"module", "parameter", "labels", "configuration"},
    "functions": True,
}
"""of the preset ``diagnose``"""


def captured(path: Path, *given: object) -> Trace:
    with trueup.Tracer(path, **OPTIONS):
        train(*given)  # type: ignore[arg-type]
    trace = Trace(path)
    assert trace.rank_facts(0)["num_failures"] == 0, trace.rank_facts(0)["failures"]
    return trace


def called(trace: Trace) -> dict[str | None, list[CalledFunction]]:
    code = code_of(trace, 0)
    assert code is not None
    return {module: list(found) for module, found in code.called.items()}


def test_the_first_pass_of_each_module_is_kept_in_order(tmp_path: Path) -> None:
    found = called(captured(tmp_path / "run", lambda: Model(clamped)))
    inside = [(one.name.rpartition(".")[2], dict(one.arguments), one.after) for one in found["gates.1"]]
    assert inside == [
        ("mul", {"input.1": 0.1}, 1),
        ("leaky_relu", {"input.negative_slope": 0.01, "input.inplace": False}, 1),
        ("mul", {"input.1": 0.2}, 2),
        ("add", {"input.1": 0.5}, 2),
        ("clamp", {"input.1": 0, "input.2": 1}, 2),
        ("mul", {}, 2),
    ]
    names = [one.name.rpartition(".")[2] for one in found[None]]
    assert names.count("cross_entropy") == 1  # of two microbatches


def test_it_changes_nothing_and_adds_no_call_to_compare(tmp_path: Path) -> None:
    expected = train(lambda: Model(relu6))
    with trueup.Tracer(tmp_path / "run", **OPTIONS):
        found = train(lambda: Model(relu6))
    assert found[0] == expected[0]
    assert all(torch.equal(one, other) for one, other in zip(found[1], expected[1], strict=True))
    assert "api" not in set(Trace(tmp_path / "run").read(0, 0).calls["kind"].to_list())


def test_by_default_none_is_kept(tmp_path: Path) -> None:
    with trueup.Tracer(tmp_path / "run"):
        train(lambda: Model(relu6))
    assert called(Trace(tmp_path / "run")) == {}


def test_of_too_many_none_is_kept(tmp_path: Path) -> None:
    def long(x: Tensor) -> Tensor:
        for _ in range(401):
            x = x + 0.001
        return x

    found = called(captured(tmp_path / "run", lambda: Model(long)))
    assert "gates.0" not in found
    assert "head" in found


def reasons(tmp_path: Path, target: tuple[object, ...], reference: tuple[object, ...]) -> list[str]:
    for name, given in (("target", target), ("reference", reference)):
        captured(tmp_path / name, *given)
    result = diagnose(tmp_path / "target", tmp_path / "reference", output=tmp_path / "out")
    return [kind.sentence.code.value for finding in result.findings for kind in finding.kinds[:1]]


def test_another_argument_is_named_where_no_call_has_values(tmp_path: Path) -> None:
    def over(dim: int) -> Callable[[Tensor], Tensor]:
        return lambda x: x.softmax(dim)

    found = reasons(tmp_path, (lambda: Model(over(0)),), (lambda: Model(over(1)),))
    assert found[0] == KindReason.OTHER_ARGUMENTS.value


def test_an_argument_of_the_loss_outside_the_model_is_named(tmp_path: Path) -> None:
    model = lambda: Model(relu6)  # noqa: E731
    found = reasons(tmp_path, (model, smoothed), (model, F.cross_entropy))
    assert found[0] in (KindReason.OTHER_ARGUMENTS.value, KindReason.LABEL_SMOOTHING.value)


def chosen(x: Tensor) -> Tensor:
    """Both runs have this text."""
    return clamped(x) if os.environ.get("CLAMPED") else relu6(x)


def test_another_formula_is_told_by_its_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    captured(tmp_path / "reference", lambda: Model(chosen))
    monkeypatch.setenv("CLAMPED", "1")
    captured(tmp_path / "target", lambda: Model(chosen))
    first = diagnose(tmp_path / "target", tmp_path / "reference", output=tmp_path / "out").findings[0]
    (kind,) = first.kinds[:1]
    assert kind.sentence.code is KindReason.OTHER_FUNCTIONS
    assert kind.sentence.place("target") == "clamp 0 1"
    assert kind.sentence.place("reference") == "relu6, div 6"


def test_lines_that_differ_say_more(tmp_path: Path) -> None:
    for name, formula in (("target", clamped), ("reference", relu6)):
        captured(tmp_path / name, lambda formula=formula: Model(formula))
    first = diagnose(tmp_path / "target", tmp_path / "reference", output=tmp_path / "out").findings[0]
    assert KindReason.OTHER_FUNCTIONS in {one.code for one in first.evidence}
    assert first.headline.code is VerdictCode.OTHER_CODE
    assert not first.kinds


def scaled(x: Tensor) -> Tensor:
    """By a number, or by the same number in a coarser tensor."""
    return x * (torch.full((1,), 0.3).bfloat16() if os.environ.get("COARSE") else 0.3)


def test_a_tensor_for_a_number_is_no_argument_that_is_not_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured(tmp_path / "reference", lambda: Model(scaled))
    monkeypatch.setenv("COARSE", "1")
    captured(tmp_path / "target", lambda: Model(scaled))
    result = diagnose(tmp_path / "target", tmp_path / "reference", output=tmp_path / "out")
    assert result.findings
    said = {one.code for finding in result.findings for one in finding.evidence}
    assert KindReason.OTHER_ARGUMENTS not in said


def test_another_way_to_the_same_numbers_says_nothing(tmp_path: Path) -> None:
    def twice(x: Tensor) -> Tensor:
        return (x + 3).clamp(0, 6).mul(1.0) / 6

    assert reasons(tmp_path, (lambda: Model(twice),), (lambda: Model(relu6),)) == []


def upcast(x: Tensor) -> Tensor:
    """In float32, or in what is given."""
    return x.softmax(-1, dtype=None if os.environ.get("COARSE") else torch.float32).to(x.dtype)


def test_an_argument_that_rounding_hides_leaves_a_diagnosis_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def model() -> nn.Module:
        return nn.Sequential(Model(upcast).bfloat16())

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits.float(), labels)

    for name in ("reference", "target"):
        with trueup.Tracer(tmp_path / name, **OPTIONS), torch.autocast("cpu", torch.bfloat16):
            train(model, loss)
        monkeypatch.setenv("COARSE", "1")
    result = diagnose(tmp_path / "target", tmp_path / "reference", output=tmp_path / "out")
    assert (result.outcome, result.headline.code) == (Outcome.UNDECIDED, VerdictCode.OTHER_ARGUMENT)
    assert result.headline.place("call") == "softmax"
    assert Reason(NextCode.ALIGN_ARGUMENT) in result.notes
    (note,) = (one for one in result.notes if one.code is NoteCode.PROGRAMS_DIFFER)
    assert note.has(EvidenceCode.ARGUMENTS_DIFFER)
    assert any("next step" in line for line in lines_of(diagnosis_report(result), 100))
