"""Buffers that a step writes and the captured steps do not read."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.store import Trace  # noqa: E402
from trueup.types.codes import EvidenceCode, VerdictCode  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402


class Router(nn.Module):
    """Experts chosen by biased scores; the bias follows the load, too slowly to change a choice."""

    def __init__(self, change: str) -> None:
        super().__init__()
        self.scores, self.experts = nn.Linear(8, 4), nn.Linear(8, 4)
        self.register_buffer("bias", torch.zeros(4))
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        scores = self.scores(x).sigmoid()
        chosen = F.one_hot((scores + self.bias).argmax(-1), 4).float()
        with torch.no_grad():
            load = chosen.sum(0)
            off = load.mean() - load
            if self.change == "sign":
                off = -off
            if self.change == "order":
                off = off.roll(1)
            if self.change == "rounded":
                off = off * (1 + 1e-6)
            self.bias += 1e-6 * off
        return (self.experts(x) * scores * chosen).sum(-1)


def trained(folder: Path, change: str = "none") -> Path:
    torch.manual_seed(0)
    model = Router(change)
    updater = torch.optim.SGD(model.parameters(), 0.01)
    with trueup.Tracer(folder, level="L0", steps="0-1"):
        for _ in range(2):
            model(torch.randn(32, 8)).square().mean().backward()
            updater.step()
            updater.zero_grad()
    return folder


@pytest.mark.parametrize("change", ["sign", "order"])
def test_a_buffer_of_the_same_norm_with_other_values(tmp_path: Path, change: str) -> None:
    reference = trained(tmp_path / "reference")
    verdict = compare(trained(tmp_path / "target", change), reference).verdict
    assert (verdict.outcome, verdict.headline.code) == (Outcome.DIFFER, VerdictCode.BUFFERS_WRITTEN)
    (said,) = [one for one in verdict.evidence if one.code is EvidenceCode.BUFFERS_WRITTEN]
    assert (said.place("name"), said.number("by_norm")) == ("bias", False)
    norms = [Trace(tmp_path / name).scalars(0)[0]["buffers"]["bias"] for name in ("target", "reference")]
    assert norms[0] == pytest.approx(norms[1], rel=1e-6)


def test_a_buffer_rounded_otherwise_is_the_same(tmp_path: Path) -> None:
    reference = trained(tmp_path / "reference")
    assert compare(trained(tmp_path / "target", "rounded"), reference).verdict.outcome is Outcome.AGREE


def with_own_updates(folder: Path, momentum: float) -> Path:
    """A program that writes its weights by itself."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4, momentum=momentum))
    with trueup.Tracer(folder, level="L0", steps="0-1"):
        for _ in range(3):
            model(torch.randn(32, 8)).square().mean().backward()
            for weight in model.parameters():
                weight.data.sub_(weight.grad, alpha=0.01)
                weight.grad = None
    return folder


def test_running_statistics_where_no_optimizer_of_the_framework_updates(tmp_path: Path) -> None:
    reference = with_own_updates(tmp_path / "reference", 0.1)
    verdict = compare(with_own_updates(tmp_path / "target", 0.9), reference).verdict
    assert (verdict.outcome, verdict.headline.code) == (Outcome.DIFFER, VerdictCode.BUFFERS_WRITTEN)
    assert compare(with_own_updates(tmp_path / "same", 0.1), reference).verdict.outcome is Outcome.AGREE


class Balanced(nn.Module):
    """Scores with a bias that the program writes between steps."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(8, 4)
        self.register_buffer("bias", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        return (self.scores(x) + self.bias).sigmoid()


def balanced(folder: Path, by: float, *, scale: float = 1.0) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(Balanced(), nn.Linear(4, 2))
    updater = torch.optim.SGD(model.parameters(), 0.01)
    with trueup.Tracer(folder, level="L0", steps="0-1", task="tensor"):
        for step in range(2):
            (model(torch.randn(16, 8)).square().mean() * (scale if step else 1.0)).backward()
            updater.step()
            updater.zero_grad()
            with torch.no_grad():
                model[0].bias.add_(torch.tensor([by, -by, by, by]))  # type: ignore[union-attr,operator]
    return folder


def test_a_buffer_that_is_written_between_steps(tmp_path: Path) -> None:
    reference = balanced(tmp_path / "reference", 0.1)
    verdict = compare(balanced(tmp_path / "target", -0.1), reference).verdict
    assert (verdict.headline.code, verdict.step) == (VerdictCode.BUFFER_BEGINS, 1)
    (said,) = [one for one in verdict.evidence if one.code is EvidenceCode.BUFFER_BEGINS]
    assert (said.place("name"), said.place("module"), said.number("by_norm")) == ("bias", "0", False)


def test_a_buffer_that_agrees_as_the_step_begins_is_no_cause(tmp_path: Path) -> None:
    reference = balanced(tmp_path / "reference", 0.1)
    verdict = compare(balanced(tmp_path / "target", 0.1, scale=2.0), reference).verdict
    assert verdict.outcome is Outcome.DIFFER
    assert VerdictCode.BUFFER_BEGINS not in {verdict.headline.code, *(p.code for p in verdict.headline.parts)}


class Attention(nn.Module):
    """Values summed by scores that a mask hides."""

    def __init__(self) -> None:
        super().__init__()
        self.qk, self.v = nn.Linear(8, 16), nn.Linear(8, 8)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k = self.qk(x).chunk(2, -1)
        return (q @ k.transpose(-1, -2) + mask).softmax(-1) @ self.v(x)


class Windowed(nn.Module):
    """A mask in a buffer, given to the attention unless ``is_read`` is false."""

    def __init__(self, hidden: float, *, is_read: bool) -> None:
        super().__init__()
        self.attention, self.is_read = Attention(), is_read
        self.register_buffer("mask", torch.full((6, 6), hidden).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, self.mask if self.is_read else torch.zeros(6, 6))


def windowed(folder: Path, hidden: float, *, is_read: bool = True) -> Path:
    torch.manual_seed(0)
    model = Windowed(hidden, is_read=is_read)
    updater = torch.optim.SGD(model.parameters(), 0.01)
    with trueup.Tracer(folder, level="L0", steps="0-1"):
        for _ in range(2):
            model(torch.randn(4, 6, 8)).square().mean().backward()
            updater.step()
            updater.zero_grad()
    return folder


@pytest.mark.parametrize(
    ("hidden", "is_read", "outcome"),
    [
        (-1e4, True, Outcome.AGREE),
        (-1e4, False, Outcome.DIFFER),  # no captured step reads it: a later one may
        (-2.0, True, Outcome.DIFFER),
    ],
    ids=["hides as well", "not read", "hides in part"],
)
def test_a_mask_of_another_number(tmp_path: Path, hidden: float, is_read: bool, outcome: Outcome) -> None:
    reference = windowed(tmp_path / "reference", -100.0, is_read=is_read)
    target = windowed(tmp_path / "target", hidden, is_read=is_read)
    assert compare(target, reference).verdict.outcome is outcome
