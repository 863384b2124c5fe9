"""Where one run alone makes the call that what differs first comes from, that call is what is said."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.diagnosing.diagnosis import Diagnosis  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.types.codes import RecordCode, StagesCode, VerdictCode  # noqa: E402
from trueup.types.finding import Stage  # noqa: E402
from trueup.types.reason import Reason  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402
from trueup.types.verdict import Verdict  # noqa: E402
from trueup.wording import headline  # noqa: E402

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
WEIGHT = torch.rand(6, 8, generator=torch.Generator().manual_seed(2)) + 0.5


TABLE = torch.randn(9, 8, generator=torch.Generator().manual_seed(4))


def filled(y: Tensor) -> Tensor:
    """``y``, by way of memory of which a part stays as it was left."""
    memory = torch.empty(3, *y.shape)
    memory.numpy()[...] = np.frombuffer(os.urandom(memory.numel()), np.uint8).reshape(memory.shape)
    memory[1].copy_(y)
    return memory[:2][1] * 1.0


class Block(nn.Module):
    """Halves of a projection, normed or not, gated by a function of angles."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.project, self.norm, self.out = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(4, 8)
        self.form = form
        self.register_buffer("table", TABLE.flip(0) if form == "another table" else TABLE)

    def forward(self, x: Tensor) -> Tensor:
        y = self.project(x) + self.table[: len(x)]
        if self.form != "without norm":
            y = self.norm(y)
        if self.form == "memory":
            y = filled(y)
        left, right = y[..., :4], y[..., 4:]
        angle = right.cos() if self.form == "cosine" else right.sin()
        if self.form == "other family name":
            return self.out(torch.mul(left, angle))
        return self.out(left * angle)


class Model(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.block = Block(form)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)


def loss_of(out: Tensor, weight: Tensor, form: str) -> Tensor:
    y = out.tanh() if form == "tangent" else out.exp()
    y = y - 1 if form == "without subtraction" else y - out - 1
    if form != "without clamp":
        y = y.clamp(max=2.0)
    return (y * 0.8 if form == "a number" else weight * y).mean()


def run(
    path: Path, form: str = "usual", loss: str = "usual", weight: Tensor = WEIGHT, steps: int = 1
) -> None:
    torch.manual_seed(3)
    model = Model(form)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with trueup.Tracer(path, level="mix", task="tensor", steps="all"):
        for _ in range(steps):
            loss_of(model(X), weight, loss).backward()
            optimizer.step()
            optimizer.zero_grad()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "reference"
    run(path)
    return path


def compared(tmp_path: Path, reference: Path, **program: object) -> Verdict:
    run(tmp_path / "target", **program)  # type: ignore[arg-type]
    return compare(tmp_path / "target", reference).verdict


def said(verdict: Verdict) -> Reason:
    """The headline without what is said of the code: the two runs start from other functions of this file."""
    found = verdict.headline
    return found.parts[0] if found.code is VerdictCode.OTHER_CODE else found


def diagnosed(tmp_path: Path, reference: Path, **program: object) -> Diagnosis:
    run(tmp_path / "target", **program)  # type: ignore[arg-type]
    return diagnose(tmp_path / "target", reference, output=tmp_path / "diagnosis")


def test_a_module_that_one_run_leaves_out_is_named(tmp_path: Path, reference: Path) -> None:
    verdict = compared(tmp_path, reference, form="without norm")
    assert said(verdict).code is VerdictCode.MADE_BY_ONE
    assert headline(said(verdict)) == "Only the reference runs block.norm"


def test_what_a_view_is_given_counts_where_a_call_made_it(tmp_path: Path, reference: Path) -> None:
    verdict = compared(tmp_path, reference, form="without norm")
    assert "__getitem__" in str(verdict.where)
    assert not any(one.code is RecordCode.NOT_READ for one in verdict.evidence)


def test_a_table_of_which_a_part_is_read_differs_itself(tmp_path: Path, reference: Path) -> None:
    verdict = compared(tmp_path, reference, form="another table")
    assert verdict.headline.code is VerdictCode.BUFFER_DIFFERS


def test_memory_as_it_was_left_is_no_difference(tmp_path: Path) -> None:
    """Twin: what a view is given differs, and what it shows was written before."""
    run(tmp_path / "reference", form="memory")
    assert compared(tmp_path, tmp_path / "reference", form="memory").outcome is Outcome.AGREE


def test_a_function_that_one_run_leaves_out_is_named(tmp_path: Path, reference: Path) -> None:
    verdict = compared(tmp_path, reference, loss="without clamp")
    assert headline(said(verdict)) == "Only the reference calls Tensor.clamp outside the model"


def test_what_both_call_elsewhere_is_said_to_be_called_here(tmp_path: Path, reference: Path) -> None:
    verdict = compared(tmp_path, reference, loss="without subtraction")
    assert headline(said(verdict)) == "Only the reference calls Tensor.sub here, outside the model"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ({"form": "cosine"}, "Other function in block: Tensor.cos (target), Tensor.sin (reference)"),
        (
            {"loss": "tangent"},
            "Other function outside the model: Tensor.tanh (target), Tensor.exp (reference)",
        ),
    ],
)
def test_functions_in_each_others_place(
    tmp_path: Path, reference: Path, program: dict[str, object], words: str
) -> None:
    verdict = compared(tmp_path, reference, **program)
    assert said(verdict).code is VerdictCode.FUNCTION_IN_PLACE
    assert headline(said(verdict)) == words


class Sum(nn.Module):
    """A model that returns one number beside its output, put together of its blocks'."""

    def __init__(self, sign: int) -> None:
        super().__init__()
        self.blocks, self.sign = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)), sign

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total = 0.0
        for block in self.blocks:
            x = block(x).tanh()
            size = x.square().mean()
            total = total + size if self.sign > 0 else total - size
        return x, total / len(self.blocks)


def summed(path: Path, sign: int) -> Path:
    torch.manual_seed(5)
    model = Sum(sign)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with trueup.Tracer(path, level="mix", steps="all"):
        y, size = model(X)
        (y.mean() + 0.1 * size).backward()
        optimizer.step()
    return path


def test_one_number_with_digits_of_its_own_is_traced_to_its_call(tmp_path: Path) -> None:
    verdict = compare(summed(tmp_path / "target", -1), summed(tmp_path / "reference", 1)).verdict
    assert headline(said(verdict)) == (
        "Other function in the root module: Tensor.__rsub__ (target), Tensor.add (reference)"
    )


def test_one_function_by_two_names_is_no_other(tmp_path: Path, reference: Path) -> None:
    assert compared(tmp_path, reference, form="other family name").outcome is Outcome.AGREE


@pytest.mark.parametrize("weight", [WEIGHT * 1.01, WEIGHT.flip(0)])
def test_what_no_call_made_is_given_to_a_function(tmp_path: Path, reference: Path, weight: Tensor) -> None:
    verdict = compared(tmp_path, reference, weight=weight)
    assert said(verdict).code is VerdictCode.GIVEN_OUTSIDE
    text = headline(said(verdict))
    assert text == "Argument 0 of Tensor.mul outside the model differs: made by no recorded call"


def test_a_number_in_a_tensors_place_is_an_argument(tmp_path: Path, reference: Path) -> None:
    """Twin: what a function outside the model is given in one run alone is no input of the model."""
    verdict = compared(tmp_path, reference, loss="a number")
    assert headline(said(verdict)) == (
        "Argument 1 of Tensor.mul differs outside the model: 0.8 (target), a tensor (reference)"
    )


def test_a_diagnosis_says_the_same_and_no_data_differ(tmp_path: Path, reference: Path) -> None:
    found = diagnosed(tmp_path, reference, weight=WEIGHT.flip(0))
    (finding,) = found.findings
    assert (finding.stage, finding.headline.code) == (Stage.DATA, VerdictCode.GIVEN_OUTSIDE)
    assert any(one.code is StagesCode.RETURNED_BY_NONE for one in finding.evidence)


def test_what_both_runs_keep_between_steps_is_not_stale(tmp_path: Path) -> None:
    run(tmp_path / "reference", steps=2)
    found = diagnosed(tmp_path, tmp_path / "reference", weight=WEIGHT * 1.5, steps=2)
    names = [kind.name for finding in found.findings for kind in finding.kinds]
    assert found.findings[0].step == 0
    assert not {"stale_value", "wrong_data"} & set(names)


def test_a_result_that_another_has_as_well_is_not_looked_for(tmp_path: Path) -> None:
    """Twin: elements that are all alike say nothing of who made them."""
    run(tmp_path / "reference", weight=torch.ones(6, 8))
    verdict = compared(tmp_path, tmp_path / "reference", weight=torch.ones(6, 8) * 2)
    assert said(verdict).code in (VerdictCode.GIVEN_OUTSIDE, VerdictCode.FIRST_DIVERGENCE)


def test_what_agrees_stays_quiet(tmp_path: Path, reference: Path) -> None:
    assert compared(tmp_path, reference).outcome is Outcome.AGREE
