"""Calls of a model that have gradients in one run alone."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn  # noqa: E402

import trueup  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.types.codes import EvidenceCode, NextCode, VerdictCode  # noqa: E402
from trueup.types.finding import Stage  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402

VALUES = frozenset({"module", "parameter", "labels", "configuration"})
DRAW = torch.Generator().manual_seed(1)
IDS = torch.randint(20, (6, 4, 5), generator=DRAW)


def trained(folder: Path, *, graded: bool = False, detached: bool = False, again: int = 0) -> Path:
    """Each step reads what the model makes of another batch, with gradients or without."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 20))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with trueup.Tracer(folder, level="L0", steps="0-1", store_values_of=VALUES):
        for step in range(3):
            with nullcontext() if graded else torch.no_grad():
                other = model(IDS[2 * step + 1 - again]).logsumexp(-1).mean()
            if detached:
                other = other.detach()
            loss = (model(IDS[2 * step]).logsumexp(-1) - 0.5 * other).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return folder


@pytest.mark.parametrize("again", [0, 1], ids=["another batch", "the batch trained on"])
def test_no_grad_of_one_run_is_told(again: int, tmp_path: Path) -> None:
    without, graded = (trained(tmp_path / str(way), graded=way, again=again) for way in (False, True))
    for sides, side in (((graded, without), "target"), ((without, graded), "reference")):
        verdict = compare(*sides).verdict
        assert verdict.headline.code is VerdictCode.CALLS_WITH_GRADIENTS
        assert verdict.headline.place("side") == side
        assert verdict.headline.number("num") == 2
        assert verdict.evidence[0].code is EvidenceCode.GIVEN_WITHOUT_GRADIENTS
        assert 1 <= verdict.evidence[0].number("num") <= verdict.evidence[0].number("total") == 2
        assert verdict.evidence[0].number("steps") == 2
        names = {one.place("name") for one in verdict.evidence}
        assert not names & {"batch_size", "batch_digest"}  # of more calls, not of other batches
        assert verdict.next is not None
        assert verdict.next.code is NextCode.ALIGN_NO_GRAD
        assert verdict.outcome is Outcome.DIFFER
    found = diagnose(graded, without, output=tmp_path / "out")
    assert found.findings[0].headline.code is VerdictCode.CALLS_WITH_GRADIENTS
    assert [one.stage for one in found.findings] == [Stage.DATA]  # sizes of what it counts are no settings


def test_a_result_that_is_detached_afterwards_is_no_difference(tmp_path: Path) -> None:
    """Twin: the same graph is made and thrown away, so that losses and gradients are the same."""
    without = trained(tmp_path / "without")
    detached = trained(tmp_path / "detached", graded=True, detached=True)
    assert compare(detached, without).verdict.outcome is not Outcome.DIFFER


def test_another_batch_is_no_call_with_gradients(tmp_path: Path) -> None:
    """Twin: as many calls with gradients, of another batch."""
    runs = [trained(tmp_path / str(again), graded=True, again=again) for again in (0, 1)]
    assert compare(*runs).verdict.headline.code is not VerdictCode.CALLS_WITH_GRADIENTS


def conditioned(folder: Path, *, graded: bool, detached: bool = False, more: int = 0) -> Path:
    """Each step's model is given what it makes of the same rows and zeros: in the first step without a record
    where that has no gradients, and in later ones of other weights."""
    torch.manual_seed(0)
    model = nn.Bilinear(6, 6, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    rows = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(3))
    with trueup.Tracer(folder, level="L0", steps="0-1", store_values_of=VALUES):
        for step in range(3):
            with nullcontext() if graded else torch.no_grad():
                guess = model(rows[step], torch.zeros(5, 6) + more)
            loss = (model(rows[step], guess.detach() if detached else guess) - rows[step]).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return folder


def test_a_call_on_zeros_before_the_first_training_forward(tmp_path: Path) -> None:
    without, graded = (conditioned(tmp_path / str(way), graded=way) for way in (False, True))
    verdict = compare(graded, without).verdict
    assert verdict.headline.code is VerdictCode.CALLS_WITH_GRADIENTS
    assert verdict.headline.place("side") == "target"
    assert verdict.headline.number("num") == 2
    assert verdict.outcome is Outcome.DIFFER
    assert diagnose(graded, without, output=tmp_path / "out").findings[0].headline == verdict.headline


def test_a_guess_from_something_else_is_another_difference(tmp_path: Path) -> None:
    """Twin: the call that has gradients in one run alone is given ones for zeros."""
    without = conditioned(tmp_path / "without", graded=False)
    other = conditioned(tmp_path / "other", graded=True, more=1)
    assert compare(other, without).verdict.headline.code is not VerdictCode.CALLS_WITH_GRADIENTS
