"""A part of a model that the program calls by itself before the model: its weights have one name in every
step. And what a loss of sequences without alignment was told."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import trueup  # noqa: E402
from trueup.adapters.torch.labels import labels_of  # noqa: E402
from trueup.store import Trace  # noqa: E402
from trueup.store.view import WEIGHT, StepView  # noqa: E402


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Sequential(nn.Linear(6, 6), nn.Tanh()), nn.Linear(6, 3)

    def forward(self, states: Tensor) -> Tensor:
        found: Tensor = self.head(self.encoder[1](states))
        return found


def test_weights_of_a_part_have_one_name_in_every_step(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Whole()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with trueup.Tracer(tmp_path / "run", level="L0", steps="0-2"):
        for _ in range(3):
            model(model.encoder(torch.randn(4, 6))).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    trace = Trace(tmp_path / "run")
    names = [set(StepView(trace, trace.read(step, 0)).parameters) for step in (0, 1, 2)]
    assert names[0] == names[1] == names[2] == {name for name, _ in model.named_parameters()}
    view = StepView(trace, trace.read(2, 0))
    assert all(view.parameter(name, *WEIGHT) is not None for name in names[2])


def test_what_ctc_was_told() -> None:
    logits = torch.randn(8, 2, 5, requires_grad=True)
    letters = torch.randint(1, 5, (2, 3))
    for reduction in ("mean", "sum"):
        loss = functional.ctc_loss(
            logits.log_softmax(-1), letters, torch.tensor([8, 6]), torch.tensor([3, 2]), 4, reduction
        )
        labels, numbers = labels_of(loss)
        assert labels == []
        assert numbers == {
            "blank": 4,
            "zero_infinity": False,
            "input_lengths": [8, 6],
            "target_lengths": [3, 2],
        }
