"""States that one run carries from step to step, and what calls without gradients are given."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.types.codes import StagesCode  # noqa: E402
from trueup.types.finding import Finding  # noqa: E402

VALUES = frozenset({"module", "parameter", "labels", "configuration"})
IDS = torch.randint(20, (6, 4, 5), generator=torch.Generator().manual_seed(1))


class Recurrent(nn.Module):
    """Returns its state beside what it makes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.cell, self.head = nn.Embedding(20, 8), nn.RNN(8, 8), nn.Linear(8, 20)

    def forward(self, ids: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """(rows, tokens) and (1, tokens, 8) to (rows, tokens, 20) and the state."""
        out, state = self.cell(self.embedding(ids), state)
        return self.head(out), state


def recurrent(folder: Path, *, carries: bool = True, shift: float = 0.0) -> Path:
    torch.manual_seed(0)
    model, state = Recurrent(), torch.zeros(1, 5, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trueup.Tracer(folder, level="L0", steps="0-1", store_values_of=VALUES):
        for step in range(3):
            given = state.detach() if carries else torch.zeros(1, 5, 8)
            logits, state = model(IDS[step], given + shift)
            logits.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return folder


def first(target: Path, reference: Path, output: Path) -> Finding:
    return diagnose(target, reference, output=output).findings[0]


def test_a_state_that_one_run_carries_is_told(tmp_path: Path) -> None:
    clean, fresh = recurrent(tmp_path / "clean"), recurrent(tmp_path / "fresh", carries=False)
    for at, (sides, side) in enumerate((((fresh, clean), "reference"), ((clean, fresh), "target"))):
        found = first(*sides, tmp_path / str(at))
        assert found.headline.code is StagesCode.STATE_CARRIED
        assert found.headline.place("side") == side
        assert found.evidence[0].code is StagesCode.STATE_RETURNED


def test_another_input_is_no_carried_state(tmp_path: Path) -> None:
    """Twin: both runs carry theirs, and one adds something to it."""
    found = first(recurrent(tmp_path / "t", shift=0.1), recurrent(tmp_path / "r"), tmp_path / "out")
    assert found.headline.code is not StagesCode.STATE_CARRIED


def taught(folder: Path, *, shift: int = 0, share: float = 1.0) -> Path:
    """A loss against what the model gives of another batch, without gradients."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 20))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trueup.Tracer(folder, level="L0", steps="0-1", store_values_of=VALUES):
        for step in range(3):
            with torch.no_grad():
                other = model((IDS[step] + shift) % 20).softmax(-1)
            (model(IDS[step + 3]) - share * other).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return folder


def test_other_data_of_a_call_without_gradients_is_told(tmp_path: Path) -> None:
    clean = taught(tmp_path / "clean")
    found = diagnose(taught(tmp_path / "other", shift=1), clean, output=tmp_path / "out")
    assert StagesCode.EVALUATED_ON in [one.headline.code for one in found.findings]


def test_what_nothing_is_made_of_is_no_finding(tmp_path: Path) -> None:
    """Twin: an evaluation of another batch, which no loss reads."""
    clean = taught(tmp_path / "clean", share=0.0)
    found = diagnose(taught(tmp_path / "other", shift=1, share=0.0), clean, output=tmp_path / "out")
    assert StagesCode.EVALUATED_ON not in [one.headline.code for one in found.findings]
