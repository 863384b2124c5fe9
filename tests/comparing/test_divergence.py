"""A divergence of a student from its teacher is judged by the size of the terms that cancel in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.comparing.losses.divergence import divergence_of  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402

ROWS, CLASSES = 24, 40
DRAWS = torch.Generator().manual_seed(0)
TEACHER = torch.randn(ROWS, CLASSES, generator=DRAWS)
STUDENT = TEACHER + 0.5 * torch.randn(ROWS, CLASSES, generator=DRAWS)


def divergence(temperature: float, times: float, reduction: str) -> Tensor:
    log_q, p = F.log_softmax(STUDENT / temperature, -1), F.softmax(TEACHER / temperature, -1)
    return times * F.kl_div(log_q, p, reduction=reduction)


@pytest.mark.filterwarnings("ignore:reduction")
@pytest.mark.parametrize("temperature", [1.0, 2.0, 4.0])
@pytest.mark.parametrize(("times", "reduction"), [(1.0, "batchmean"), (0.5, "mean"), (1.0, "sum")])
def test_a_divergence_is_reproduced(temperature: float, times: float, reduction: str) -> None:
    labels, logits = F.softmax(TEACHER / temperature, -1).double().numpy(), STUDENT.double().numpy()
    loss = float(divergence(temperature, times * temperature**2, reduction))
    found = divergence_of(loss, logits, labels)
    assert found is not None
    whole = float(divergence(temperature, 1.0, "sum"))
    entropy = float(-(labels * np.log(labels)).sum())
    assert 1.0 < found.cancels <= 1.001 * (2 * entropy + whole) / whole
    assert 1.0 < found.gradient_cancels < 40.0


def test_other_losses_are_none() -> None:
    labels, logits = F.softmax(TEACHER, -1), STUDENT.double().numpy()
    for loss in (F.cross_entropy(STUDENT, labels), 1.0371 * divergence(1.0, 1.0, "batchmean")):
        assert divergence_of(float(loss), logits, labels.double().numpy()) is None


Loss = Callable[[Tensor, Tensor], Tensor]


def plain(outputs: Tensor, p: Tensor) -> Tensor:
    return F.kl_div(outputs.log_softmax(-1), p, reduction="batchmean")


def by_hand(outputs: Tensor, p: Tensor) -> Tensor:
    return (p * (p.log() - outputs.log_softmax(-1))).sum(-1).mean()


def scaled(outputs: Tensor, p: Tensor) -> Tensor:
    return plain(outputs, p) * 1.002


def distilled(folder: Path, loss: Loss, moved: float = 0.0) -> Path:
    """One step of a student near its teacher, ``moved`` by a number that no softmax feels."""
    torch.manual_seed(1)
    student, teacher = nn.Linear(16, CLASSES), nn.Linear(16, CLASSES)
    with torch.no_grad():
        noise = torch.randn(CLASSES, 16, generator=torch.Generator().manual_seed(2))
        teacher.weight.copy_(student.weight + 0.03 * noise)
        teacher.bias.copy_(student.bias)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    kept = {"module", "parameter", "labels"}
    with trueup.Tracer(folder, level="L0", steps="0", store_values_of=kept):
        x = torch.randn(ROWS, 16, generator=torch.Generator().manual_seed(3))
        with torch.no_grad():
            p = (x @ teacher.weight.T + teacher.bias + moved).softmax(-1)
        loss(student(x), p).backward()
        optimizer.step()
        optimizer.zero_grad()
    return folder


@pytest.mark.parametrize(
    ("loss", "moved", "outcome"),
    [
        (plain, 3.0, Outcome.AGREE),
        (by_hand, 0.0, Outcome.AGREE),
        (by_hand, 17.0, Outcome.AGREE),
        (scaled, 0.0, Outcome.DIFFER),
    ],
)
def test_a_student_near_its_teacher(loss: Loss, moved: float, outcome: Outcome, tmp_path: Path) -> None:
    runs = distilled(tmp_path / "a", loss, moved), distilled(tmp_path / "b", plain)
    assert compare(*runs, output=tmp_path / "out").verdict.outcome is outcome
