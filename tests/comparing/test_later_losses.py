"""Losses of steps that were not captured, after captured steps that agree."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn  # noqa: E402

import trueup  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.types.codes import NextCode, VerdictCode  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402


def two_optimizers(
    folder: Path, *, clears: bool = True, written: str = "product", steps: str = "0-1"
) -> Path:
    """Two models that are trained alternately: the second one's loss leaves gradients in the first, too."""
    torch.manual_seed(0)
    first, second = nn.Linear(6, 6), nn.Linear(6, 6)
    updaters = [torch.optim.SGD(one.parameters(), 0.1) for one in (first, second)]
    with trueup.Tracer(folder, level="L0", steps=steps):
        for _ in range(3):
            x = torch.randn(4, 6)
            if clears:
                updaters[0].zero_grad()
            made = first(x)
            (made * made if written == "product" else made.square()).mean().backward()
            updaters[0].step()
            updaters[1].zero_grad()
            first(second(x)).square().mean().backward()
            updaters[1].step()
    return folder


def test_captured_steps_that_agree_do_not_speak_for_later_ones(tmp_path: Path) -> None:
    reference = two_optimizers(tmp_path / "reference")
    verdict = compare(two_optimizers(tmp_path / "target", clears=False), reference).verdict
    assert (verdict.outcome, verdict.headline.code) == (Outcome.DIFFER, VerdictCode.LOSS_DIFFERS_LATER)
    assert verdict.next is not None
    assert (verdict.next.code, verdict.next.number("step")) == (NextCode.CAPTURE_STEPS, verdict.step)
    again = two_optimizers(tmp_path / "benign", written="square")
    assert compare(again, reference).verdict.outcome is Outcome.AGREE


def test_the_steps_it_names_show_the_cause(tmp_path: Path) -> None:
    runs = [two_optimizers(tmp_path / name, clears=name == "b", steps="2-3") for name in ("a", "b")]
    assert compare(*runs).verdict.headline.code is not VerdictCode.LOSS_DIFFERS_LATER


def changed_in_the_third(folder: Path, times: float) -> Path:
    """Two captured steps, and a third whose loss is multiplied."""
    torch.manual_seed(0)
    model = nn.Linear(6, 6)
    updater = torch.optim.SGD(model.parameters(), 0.1)
    with trueup.Tracer(folder, level="L0", steps="0-1"):
        for step in range(3):
            updater.zero_grad()
            loss = model(torch.randn(4, 6)).square().mean()
            (loss * times if step == 2 else loss).backward()
            updater.step()
    return folder


@pytest.mark.parametrize(("times", "differs"), [(1 + 3e-5, True), (1 + 4e-7, False)])
def test_after_equal_bits_less_is_a_difference(tmp_path: Path, times: float, differs: bool) -> None:
    reference = changed_in_the_third(tmp_path / "reference", 1.0)
    verdict = compare(changed_in_the_third(tmp_path / "target", times), reference).verdict
    assert (verdict.headline.code is VerdictCode.LOSS_DIFFERS_LATER) is differs
