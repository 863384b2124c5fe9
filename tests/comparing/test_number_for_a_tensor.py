"""A number where the other run has a tensor of it: one function, whichever operand comes first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.types.codes import VerdictCode  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402

ROWS = 6
Form = Callable[[Tensor], Tensor]


class Net(nn.Module):
    """A linear layer, and what ``form`` makes of its output."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.linear, self.form = nn.Linear(5, 5), form

    def forward(self, x: Tensor) -> Tensor:
        return self.form(self.linear(x))


def plain(y: Tensor) -> Tensor:
    return y


def run(folder: Path, inside: Form = plain, outside: Form = plain) -> Path:
    """One step; ``outside`` is applied to the losses of the rows."""
    torch.manual_seed(1)
    model = Net(inside)
    x, labels = torch.randn(ROWS, 5), torch.randint(0, 5, (ROWS,))
    with trueup.Tracer(folder, level="mix", steps="all"):
        losses = nn.functional.cross_entropy(model(x), labels, reduction="none")
        outside(losses).mean().backward()
    return folder


FORMS: dict[str, tuple[Form, Form]] = {
    "number first": (lambda y: torch.tensor(0.8) * y, lambda y: y * 0.8),
    "number second": (lambda y: y * torch.tensor(0.8), lambda y: 0.8 * y),
    "repeated first": (lambda y: torch.full((y.shape[-1],), 0.8) * y, lambda y: y * 0.8),
    "repeated against one": (lambda y: torch.full((y.shape[-1],), 0.8) * y, lambda y: y * torch.tensor(0.8)),
    "sum": (lambda y: torch.ones(y.shape[-1]) + y, lambda y: y + 1.0),
    "quotient": (lambda y: y / torch.full((y.shape[-1],), 2.5), lambda y: y / 2.5),
    "difference": (lambda y: torch.tensor(1.0) - y, lambda y: 1.0 - y),
}


@pytest.mark.parametrize("outside", [False, True], ids=["in the model", "outside"])
@pytest.mark.parametrize("form", FORMS)
def test_the_same_number(form: str, outside: bool, tmp_path: Path) -> None:
    sides = (
        run(tmp_path / name, **{"outside" if outside else "inside": one})
        for name, one in zip(("target", "reference"), FORMS[form], strict=True)
    )
    assert compare(*sides).verdict.outcome is Outcome.AGREE


@pytest.mark.parametrize("outside", [False, True], ids=["in the model", "outside"])
@pytest.mark.parametrize("form", FORMS)
def test_another_number(form: str, outside: bool, tmp_path: Path) -> None:
    place = "outside" if outside else "inside"
    one = FORMS[form][0]
    target = run(tmp_path / "target", **{place: lambda y: one(y)})
    reference = run(tmp_path / "reference", **{place: lambda y: FORMS[form][1](y) * 1.0 + 0.01 * y})
    assert compare(target, reference).verdict.outcome is Outcome.DIFFER


@pytest.mark.parametrize(
    "target",
    [lambda y: torch.tensor(0.8) * y, lambda y: y * torch.full((y.shape[-1],), 0.8)],
    ids=["one", "repeated"],
)
def test_the_number_of_the_tensor_is_shown(target: Form, tmp_path: Path) -> None:
    verdict = compare(
        run(tmp_path / "target", target), run(tmp_path / "reference", lambda y: y * 0.81)
    ).verdict
    assert verdict.headline.code is VerdictCode.ARGUMENT_DIFFERS
    places = dict(verdict.headline.places)
    assert (places["target"], places["reference"]) == ("0.8", "0.81")


def test_a_tensor_of_several_numbers_is_not_the_number(tmp_path: Path) -> None:
    """Of two products the one that is given what the other run's is."""
    target = run(tmp_path / "target", outside=lambda y: y * (0.7 + 0.2 * torch.arange(ROWS)))
    verdict = compare(target, run(tmp_path / "reference", outside=lambda y: y * 0.8)).verdict
    assert verdict.headline.code is VerdictCode.ARGUMENT_DIFFERS
    assert (verdict.headline.place("target"), verdict.headline.place("reference")) == ("a tensor", "0.8")
