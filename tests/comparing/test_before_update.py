"""Programs that differ at the update alone, compared in steps that hold none: open, since it is not seen."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.adapters.torch.reading import capture
from trueup.comparing.run import compare
from trueup.comparing.verdict import Verdict
from trueup.types.codes import NextCode, VerdictCode
from trueup.types.status import Outcome

pytestmark = pytest.mark.torch

PROGRAM = """
import torch


def update(weights, flat):
    for weight, part in zip(weights, flat.split([weight.numel() for weight in weights])):
        weight.data.sub_({rate} * part.view_as(weight))


def loss_of(y):
    return y.square().mean() {times}


def main():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.GELU(), torch.nn.Linear(6, 3))
    weights = list(model.parameters())
    flat = torch.zeros(sum(weight.numel() for weight in weights))
    for microbatch in range(8):
        loss_of(model(torch.randn(5, 6))).backward()
        flat += torch.cat([weight.grad.flatten() for weight in weights])
        for weight in weights:
            weight.grad = None
        if (microbatch + 1) % {microbatches} == 0:
            update(weights, flat)
            flat.zero_()
"""


def compared(folder: Path, steps: str = "0-1", microbatches: int = 8, **changed: str) -> Verdict:
    plain = {"rate": "0.1", "times": "", "microbatches": str(microbatches)}
    for name, parts in (("target", {**plain, **changed}), ("reference", plain)):
        file = folder / f"{name}.py"
        file.write_text(PROGRAM.format(**parts), encoding="utf-8")
        main = runpy.run_path(str(file))["main"]
        capture(folder / name, main, level="mix", steps=steps)
    return compare(folder / "target", folder / "reference").verdict


def test_what_differs_at_the_update_alone_is_open_before_it(tmp_path: Path) -> None:
    verdict = compared(tmp_path, rate="0.2")
    assert verdict.outcome is Outcome.UNDECIDED
    assert verdict.headline.code is VerdictCode.BEFORE_UPDATE
    assert verdict.headline.place("function") == "update"
    assert verdict.headline.number("steps") == 2
    assert verdict.next is not None
    assert verdict.next.code is NextCode.CAPTURE_UPDATE


def test_what_ran_and_made_the_same_agrees(tmp_path: Path) -> None:
    """The loss is written in another way; gradients may be all that a program is for."""
    assert compared(tmp_path, times="* 1", microbatches=100).outcome is Outcome.AGREE


def test_one_step_may_be_all_that_was_asked_for(tmp_path: Path) -> None:
    assert compared(tmp_path, "0", rate="0.2").outcome is Outcome.AGREE


def test_the_same_program_agrees(tmp_path: Path) -> None:
    assert compared(tmp_path).outcome is Outcome.AGREE


def test_an_update_that_was_captured_shows_it(tmp_path: Path) -> None:
    assert compared(tmp_path, microbatches=1, rate="0.2").outcome is Outcome.DIFFER


LATER = """
import torch


def update(weights, first):
    for weight, one in zip(weights, first):
        one.add_({share} * weight.grad)
        weight.data.sub_(0.1 * weight.grad + 0.1 * (one - {share} * weight.grad))


def main():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.GELU(), torch.nn.Linear(6, 3))
    weights = list(model.parameters())
    first = [torch.zeros_like(weight) for weight in weights]
    for step in range({num}):
        model(torch.randn(5, 6)).square().mean().backward()
        update(weights, first)
        for weight in weights:
            weight.grad = None
"""


@pytest.mark.parametrize(("num", "outcome"), [(3, Outcome.UNDECIDED), (2, Outcome.AGREE)])
def test_what_an_update_leaves_for_the_next_shows_in_a_later_loss(
    num: int, outcome: Outcome, tmp_path: Path
) -> None:
    """The first update has nothing to take up yet: both captured steps have the same bits."""
    for name, share in (("target", "0.001"), ("reference", "0.001002")):
        file = tmp_path / f"{name}.py"
        file.write_text(LATER.format(share=share, num=num), encoding="utf-8")
        capture(tmp_path / name, runpy.run_path(str(file))["main"], level="L0", steps="0-1")
    verdict = compare(tmp_path / "target", tmp_path / "reference").verdict
    assert verdict.outcome is outcome
    if outcome is Outcome.UNDECIDED:
        assert verdict.headline.code is VerdictCode.EQUAL_UP_TO_LOSS
        assert (verdict.headline.place("function"), verdict.headline.number("step")) == ("update", 2)
        assert verdict.next is not None
        assert verdict.next.code is NextCode.CAPTURE_STEPS
