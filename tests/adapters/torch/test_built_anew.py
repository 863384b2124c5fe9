"""A model that the program builds anew between two steps, and loads the state of the one before into."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.store import Trace  # noqa: E402
from trueup.types.codes import VerdictCode  # noqa: E402


class Net(nn.Module):
    """Waits for the garbage collector: it holds itself."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 4), nn.Linear(4, 1)
        self.itself = [self]

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.down(self.up(x).tanh())
        return found


def trained(folder: Path, *, anew: bool = False, beside: bool = False) -> Path:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    kept = []
    with trueup.Tracer(folder, level="L0", steps="0-2"):
        for step in range(3):
            if step == 1 and (anew or beside):
                states = [copy.deepcopy(one.state_dict()) for one in (model, optimizer)]
                kept += [model] if beside else []
                model = Net()
                optimizer = torch.optim.AdamW(model.parameters(), 0.01)
                model.load_state_dict(states[0])
                optimizer.load_state_dict(states[1])
            torch.manual_seed(step)
            model(torch.randn(3, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return folder


def test_it_has_the_names_of_the_one_before(tmp_path: Path) -> None:
    anew = trained(tmp_path / "anew", anew=True)
    verdict = compare(anew, trained(tmp_path / "plain")).verdict
    assert verdict.headline.code is VerdictCode.BIT_IDENTICAL
    assert {one["name"] for one in Trace(anew).rank_facts(0)["roots"]} == {""}


def test_beside_one_that_lives_it_has_its_own(tmp_path: Path) -> None:
    found = Trace(trained(tmp_path / "run", beside=True)).rank_facts(0)["roots"]
    assert {one["name"] for one in found} == {"", "Net"}


def test_one_of_other_shapes_is_another_model(tmp_path: Path) -> None:
    with trueup.Tracer(tmp_path / "run", level="L0", steps="0-2"):
        for width in (4, 4, 6):
            model = nn.Sequential(nn.Linear(4, width), nn.Linear(width, 1))
            model(torch.randn(3, 4)).square().mean().backward()
            torch.optim.SGD(model.parameters(), 0.1).step()
    trace = Trace(tmp_path / "run")
    names = [set(trace.read(step, 0).calls["name"].cast(str)) & {"", "Sequential"} for step in range(3)]
    assert names == [{""}, {""}, {"Sequential"}]
