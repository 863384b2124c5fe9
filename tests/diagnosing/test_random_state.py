"""Random numbers of a recomputed forward: the backward draws others, and what runs after it as well."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import trueup  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.types.finding import Stage  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402

KEPT = frozenset({"module", "parameter", "labels", "configuration"})


class Inner(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.up, self.down, self.p = nn.Linear(16, 32), nn.Linear(32, 16), p

    def forward(self, x: Tensor) -> Tensor:
        given: Tensor = self.down(F.dropout(torch.tanh(self.up(x)), self.p))
        return given


class Model(nn.Module):
    def __init__(self, keeps: bool | None, p: float) -> None:
        super().__init__()
        self.first, self.inner, self.keeps = nn.Linear(8, 16), Inner(p), keeps

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.dropout(self.first(x), 0.1)
        if self.keeps is None:
            return hidden + self.inner(hidden)
        made = checkpoint(self.inner, hidden, use_reentrant=False, preserve_rng_state=self.keeps)
        return hidden + made


def trained(folder: Path, keeps: bool | None = None, p: float = 0.1) -> Path:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Model(keeps, p)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(4, 8, 8)
    with trueup.Tracer(folder, level="L0", steps="0", store_values_of=KEPT):
        for half in x.chunk(2):
            model(half).square().mean().backward()
        optimizer.step()
    return folder


@pytest.mark.parametrize(
    ("keeps", "p", "stage"),
    [(False, 0.1, Stage.BACKWARD), (None, 0.3, Stage.FORWARD), (True, 0.1, None)],
    ids=["state not restored", "another rate", "state restored"],
)
def test_the_place_is_the_backward_whose_recomputation_draws_anew(
    keeps: bool | None, p: float, stage: Stage | None, tmp_path: Path
) -> None:
    reference, run = trained(tmp_path / "reference"), trained(tmp_path / "run", keeps, p)
    verdict = compare(run, reference).verdict
    diagnosis = diagnose(run, reference, output=tmp_path / "out")
    if stage is None:
        assert (verdict.outcome, diagnosis.outcome) == (Outcome.AGREE, Outcome.AGREE)
    else:
        assert verdict.phase == stage.value
        assert diagnosis.findings[0].stage is stage
