"""One computation in two ways: another order, other functions, a call made twice; and faults beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.types.codes import RecordCode, VerdictCode  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402

Form = Callable[[Tensor, Tensor], Tensor]
"""of scores (rows, 6) and values (rows, 6), which train, what is averaged to the loss"""


class Pair(nn.Module):
    """Two heads over one layer; ``form`` within the model, else outside of it."""

    def __init__(self, form: Form | None) -> None:
        super().__init__()
        self.body, self.scores, self.values = nn.Linear(5, 8), nn.Linear(8, 6), nn.Linear(8, 6)
        self.form = form

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = torch.tanh(self.body(x))
        both = self.scores(y), self.values(y)
        return both if self.form is None else (self.form(*both),)


def run(folder: Path, form: Form, *, inside: bool = False) -> Path:
    torch.manual_seed(6)
    model = Pair(form if inside else None)
    x = torch.randn(7, 5)
    with trueup.Tracer(folder, level="mix", steps="all"):
        made = model(x)
        (made[0] if inside else form(*made)).mean().backward()
        torch.optim.SGD(model.parameters(), 0.1).step()
    return folder


def weighed(s: Tensor, v: Tensor) -> Tensor:
    return s.exp() + 0.5 * v.square() - 0.01 * (s * v) + 0.05 * v.abs()


def divergence(gap: Tensor) -> Tensor:
    return gap.exp() - gap - 1


FORMS: dict[str, tuple[Form, Form]] = {
    "terms in another order": (
        lambda s, v: 0.05 * v.abs() + (0.5 * v.square() + s.exp() - 0.01 * (s * v)),
        weighed,
    ),
    "a negative for a difference": (
        lambda s, v: s.exp() + 0.5 * v.square() + -(0.01 * (s * v)) - -(0.05 * v.abs()),
        weighed,
    ),
    "products in another order": (
        lambda s, v: (0.01 * (v - 1) * torch.sigmoid(v)) + s * 0.5,
        lambda s, v: s * 0.5 + torch.sigmoid(v) * ((v - 1) * 0.01),
    ),
    "a call made twice": (
        lambda s, v: torch.logsumexp(s, -1) * torch.logsumexp(s, -1) + v.mean(-1),
        lambda s, v: torch.logsumexp(s, -1) ** 2 + v.mean(-1),
    ),
    "a mean of a mean written out": (
        lambda s, v: s.exp().sum(1) / s.exp().size(1) + v.square().mean(1).sum() / 7,
        lambda s, v: s.exp().mean(1) + v.square().mean(1).mean(),
    ),
    "a gradient that cancels": (
        lambda s, v: divergence(1e-2 * s - 1e-2 * v),
        lambda s, v: divergence(1e-2 * (s - v)),
    ),
}


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "in the model"])
@pytest.mark.parametrize("name", FORMS)
def test_one_computation(name: str, inside: bool, tmp_path: Path) -> None:
    sides = (
        run(tmp_path / side, form, inside=inside)
        for side, form in zip(("target", "reference"), FORMS[name], strict=True)
    )
    assert compare(*sides).verdict.outcome is Outcome.AGREE


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "in the model"])
@pytest.mark.parametrize("name", FORMS)
def test_a_fault_beside_it(name: str, inside: bool, tmp_path: Path) -> None:
    """A hundredth more of one of two tensors, and all of it in the other way."""
    form, other = FORMS[name]
    target = run(tmp_path / "target", lambda s, v: form(s, 1.01 * v), inside=inside)
    reference = run(tmp_path / "reference", lambda s, v: other(s, 1.0 * v), inside=inside)
    assert compare(target, reference).verdict.outcome is Outcome.DIFFER


def test_a_weight_of_a_term_in_another_order(tmp_path: Path) -> None:
    target = run(tmp_path / "target", lambda s, v: 0.06 * v.abs() + (0.5 * v.square() + s.exp()))
    reference = run(tmp_path / "reference", lambda s, v: s.exp() + 0.5 * v.square() + 0.05 * v.abs())
    headline = compare(target, reference).verdict.headline
    assert headline.code is VerdictCode.ARGUMENT_DIFFERS
    assert (headline.place("target"), headline.place("reference")) == ("0.06", "0.05")


def test_what_reaches_a_call_made_twice_is_left_open(tmp_path: Path) -> None:
    target, reference = (
        run(tmp_path / side, form)
        for side, form in zip(("target", "reference"), FORMS["a call made twice"], strict=True)
    )
    rows = compare(target, reference).frame()
    divided = rows.filter(reason_code=RecordCode.CALLED_MORE_OFTEN.value)
    assert set(divided["name"]) == {"torch.logsumexp"}
    assert set(divided["phase"].cast(str)) == {"backward"}
