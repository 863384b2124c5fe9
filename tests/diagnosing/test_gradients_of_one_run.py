"""A gradient inside the model that one run alone has is no fault where no weight is behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.diagnosing.diagnosis import Diagnosis  # noqa: E402
from trueup.diagnosing.gradients import VALUES  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.diagnosing.replay import build_plan  # noqa: E402
from trueup.store import Trace  # noqa: E402
from trueup.types.finding import Stage  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402


class Mixed(nn.Module):
    """Positions mixed by scores with a bias that the model gives."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.out = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        return x + self.out((self.score(x) @ x.transpose(1, 2) + bias).softmax(-1) @ x)


class Net(nn.Module):
    """``asked``: the bias of positions is made to require a gradient; ``learned``: it is made of a weight;
    ``cut``: that is detached."""

    def __init__(self, *, learned: bool, asked: bool, cut: bool) -> None:
        super().__init__()
        self.table, self.mixed, self.head = nn.Linear(4, 6), Mixed(), nn.Linear(6, 3)
        self.slope = nn.Parameter(torch.tensor([0.3])) if learned else None
        self.asked, self.cut = asked, cut

    def forward(self, x: Tensor) -> Tensor:
        at = torch.arange(x.shape[1], dtype=torch.float32)
        bias = -(at[:, None] - at[None]).abs()
        if self.slope is not None:
            bias = bias * (self.slope.detach() if self.cut else self.slope)
        if self.asked:
            bias = bias.requires_grad_(True)
        return self.head(self.mixed(self.table(x), bias).mean(1))


def capture(
    folder: Path, *, learned: bool = False, asked: bool = False, cut: bool = False, plan: str | None = None
) -> Trace:
    torch.manual_seed(4)
    model = Net(learned=learned, asked=asked, cut=cut)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with trueup.Tracer(folder, level="L0", steps="0,1", store_values_of=VALUES, replay=plan):
        for step in range(2):
            x = torch.randn(6, 5, 4, generator=torch.Generator().manual_seed(step))
            nn.functional.cross_entropy(model(x), torch.arange(6) % 3).backward()
            optimizer.step()
            optimizer.zero_grad()
    return Trace(folder)


def diagnosed(folder: Path, *, learned: bool = False, asked: bool = False, cut: bool = False) -> Diagnosis:
    reference = capture(folder / "reference", learned=learned)
    program = {"learned": learned, "asked": asked, "cut": cut}
    target = capture(folder / "target", **program)
    plan = build_plan(target, reference, folder / "replay" / "plan", level="L0", inside=(), steps={0})
    again = capture(folder / "replay", plan=str(plan.folder), **program)
    return diagnose(folder / "target", reference.path, output=folder / "out", replay=again.path)


def test_a_bias_that_is_made_to_require_a_gradient(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, asked=True)
    assert (found.outcome, found.findings) == (Outcome.AGREE, ())


def test_a_bias_that_is_cut_from_its_weight(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, learned=True, cut=True)
    assert found.outcome is Outcome.DIFFER
    assert found.findings[0].stage is Stage.BACKWARD
