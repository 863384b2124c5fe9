"""Supposed causes are tried: what a setting, or float32, leaves of the error decides what is said."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.diagnosing.cases import tells  # noqa: E402
from trueup.cli.app import run  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.types.codes import ReplayCode  # noqa: E402
from trueup.types.codes import StagesCode as Stages  # noqa: E402
from trueup.types.codes.kinds import KindReason  # noqa: E402
from trueup.types.finding import Finding  # noqa: E402
from trueup.types.reason import reason  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

SCRIPT = """
import sys, torch
from torch import nn
torch.manual_seed(0); torch.set_num_threads(1)
case = sys.argv[1]
class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.note, self.planned = 0.5, 1, 0.5
        self._table = self.planned * torch.ones(8)
    def forward(self, x):
        return x * self.scale * self._table * (1.25 if case == "code and note" else 1)
class Difference(nn.Module):
    def forward(self, x):
        y = x if case == "coarse" else x.float()
        return (100 * y - 99 * y).to(x.dtype)
model = nn.Sequential(nn.Linear(8, 8), Scale(), nn.Linear(8, 8))
if case in ("fine", "coarse"):
    model = nn.Sequential(nn.Linear(8, 8), Difference(), nn.Linear(8, 8)).to(torch.bfloat16)
if case == "setting": model[1].scale = 0.25
if case == "two settings": model[1].scale, model[1].note = 0.25, 7
if case == "code and note": model[1].note = 7
if case == "made with it": model[1].planned = 0.25; model[1]._table = 0.25 * torch.ones(8)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(2):
    torch.manual_seed(step)
    x = torch.randn(16, 8).to(model[0].weight.dtype)
    model(x).float().square().mean().backward()
    optimizer.step(); optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("trials")
    (place / "train.py").write_text(SCRIPT, encoding="utf-8")
    return place


def found(case: str, folder: Path, *, reference: str = "plain", budget: float = 600.0) -> Finding:
    """The first finding of a case against its reference."""
    commands = {name: [sys.executable, str(folder / "train.py"), name] for name in (case, reference)}
    for name, command in commands.items():
        if not (folder / name).exists():
            assert (
                run(["capture", "--preset", "diagnose", "-o", str(folder / name), "-q", "--", *command]) == 0
            )
    command = shlex.split(shlex.join(commands[case]))
    output = folder / f"out {case} {budget}"
    return diagnose(
        folder / case, folder / reference, output=output, command=command, budget=budget
    ).findings[0]


def test_a_setting_that_explains_the_error_is_proven(folder: Path) -> None:
    one = found("setting", folder)
    assert tells(one.headline, Stages.SETTING_DIFFERS, name="scale")
    assert any(tells(said, ReplayCode.TRIED_AND_EQUAL, module="1") for said in one.evidence)


def test_of_two_settings_the_one_that_acts_leads(folder: Path) -> None:
    one = found("two settings", folder)
    assert tells(one.headline, Stages.SETTING_DIFFERS, name="scale")
    tried = [said for said in one.evidence if said.code is ReplayCode.TRIED_AND_EQUAL]
    parts = [part for said in tried for part in said.parts]
    assert parts == [reason(ReplayCode.WITH_SETTING, name="scale", value="0.5")]  # the reference's
    assert not any(tells(said, Stages.SETTING_DIFFERS, name="note") for said in one.evidence)


def test_a_setting_that_changes_nothing_gives_way_to_what_the_values_say(folder: Path) -> None:
    one = found("code and note", folder)
    assert not tells(one.headline, Stages.SETTING_DIFFERS)
    (argument,) = one.kinds[0].sentence.parts  # the call of the module's code, by name
    assert tells(argument, KindReason.ARGUMENT, call="mul", target="1.25", reference="1")
    assert any(tells(said, ReplayCode.TRIED_WITHOUT_EFFECT) for said in one.evidence)


def test_without_time_for_it_nothing_is_tried(folder: Path) -> None:
    one = found("setting", folder, budget=0.0)
    assert tells(one.headline, Stages.SETTING_DIFFERS, name="scale")
    tried = (ReplayCode.TRIED, ReplayCode.TRIED_AND_EQUAL, ReplayCode.TRIED_WITHOUT_EFFECT)
    assert not any(said.code in tried for said in one.evidence)


def test_what_float32_explains_is_rounding_whatever_it_looks_like(folder: Path) -> None:
    one = found("coarse", folder, reference="fine")
    assert [kind.name for kind in one.kinds] == ["dtype_or_rounding"]
    assert any(part.code is ReplayCode.IN_FLOAT32 for said in one.evidence for part in said.parts)


def test_a_setting_that_acted_before_stays_where_nothing_else_is_known(folder: Path) -> None:
    """Set in the running program it changes nothing: the table was made with it."""
    one = found("made with it", folder)
    assert any(tells(said, ReplayCode.TRIED_WITHOUT_EFFECT) for said in one.evidence)
    print(one.kinds[0], one.headline)
    assert one.kinds[0].name == "wrong_scale"
