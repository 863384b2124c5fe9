"""A module that makes another shape of the same batch is where the runs part, also under a replay, which
cannot put values of the one into the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.diagnosing.diagnosis import Diagnosis  # noqa: E402
from trueup.diagnosing.gradients import VALUES  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.diagnosing.replay import build_plan  # noqa: E402
from trueup.store import Trace  # noqa: E402
from trueup.types.codes import VerdictCode  # noqa: E402
from trueup.types.finding import Stage  # noqa: E402
from trueup.types.reason import reason  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402


class Block(nn.Module):
    """Convolutions whose positions are averaged at the end, so that any number of them fits."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 6, 3, **{"padding": 1, **settings})
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)).relu()


class Net(nn.Module):
    """``skipped``: positions left out between the block and what mixes its channels."""

    def __init__(self, skipped: int = 0, **settings: Any) -> None:
        super().__init__()
        self.block, self.mix, self.head = Block(**settings), nn.Linear(6, 6), nn.Linear(6, 3)
        self.cut = lambda t: t[:, skipped:]

    def forward(self, x: Tensor) -> Tensor:
        t = self.cut(self.block(x).transpose(1, 2))
        return self.head((t + torch.tanh(self.mix(t))).mean(1))


def capture(folder: Path, *, length: int = 12, plan: str | None = None, **program: Any) -> Trace:
    torch.manual_seed(4)
    model = Net(**program)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    generator = torch.Generator().manual_seed(5)
    with trueup.Tracer(folder, level="L0", steps="0,1", store_values_of=VALUES, replay=plan):
        for _ in range(2):
            x = torch.randn(6, 4, 20, generator=generator)[..., :length]
            nn.functional.cross_entropy(model(x), torch.arange(6) % 3).backward()
            optimizer.step()
            optimizer.zero_grad()
    return Trace(folder)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return capture(tmp_path_factory.mktemp("shape") / "reference")


def diagnosed(folder: Path, reference: Trace, *, replay: bool, **program: Any) -> Diagnosis:
    target, again = capture(folder / "target", **program), None
    if replay:
        plan = build_plan(target, reference, folder / "replay" / "plan", level="L0", inside=(), steps={0})
        again = capture(folder / "replay", plan=str(plan.folder), **program).path
    return diagnose(folder / "target", reference.path, output=folder / "out", replay=again)


@pytest.mark.parametrize("replay", [False, True], ids=["as captured", "replayed"])
@pytest.mark.parametrize("settings", [{"stride": 2}, {"padding": 0}, {"dilation": 2}], ids=str)
def test_a_setting(settings: dict[str, int], replay: bool, reference: Trace, tmp_path: Path) -> None:
    found = diagnosed(tmp_path, reference, replay=replay, **settings)
    assert [one.stage for one in found.findings] == [Stage.FORWARD]
    headline = dict(found.findings[0].headline.places)
    assert (headline["name"], headline["module"]) == (next(iter(settings)), "block.conv")


@pytest.mark.parametrize("replay", [False, True], ids=["as captured", "replayed"])
def test_positions_left_out_between_modules(replay: bool, reference: Trace, tmp_path: Path) -> None:
    found = diagnosed(tmp_path, reference, replay=replay, skipped=1)
    facts = {"module": "mix", "given": 1, "target": "[6, 11, 6]", "reference": "[6, 12, 6]"}
    assert [one.headline for one in found.findings] == [reason(VerdictCode.OTHER_SHAPE, **facts)]


@pytest.mark.parametrize("replay", [False, True], ids=["as captured", "replayed"])
def test_a_batch_of_another_length_is_the_data(replay: bool, reference: Trace, tmp_path: Path) -> None:
    found = diagnosed(tmp_path, reference, replay=replay, length=14)
    assert found.findings[0].stage is Stage.DATA
    verdict = compare(tmp_path / "target", reference.path).verdict
    assert (verdict.headline.code, verdict.headline.place("name")) == (VerdictCode.DATA_DIFFERS, "0")


def test_the_same_settings_written_out_agree(reference: Trace, tmp_path: Path) -> None:
    found = diagnosed(tmp_path, reference, replay=True, stride=1, dilation=1)
    assert found.outcome is Outcome.AGREE
