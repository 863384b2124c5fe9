"""What is paired, what is left free and why, and what a plan needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.diagnosing.replaying import Loop, capture, replay, sites
from trueup.diagnosing.replay import build_plan, origins
from trueup.diagnosing.replay.plan import read_plan
from trueup.errors import ConfigError, TraceError
from trueup.store import Trace
from trueup.store.left_free import left_free_from_plain
from trueup.types.codes import LeftFree
from trueup.types.reason import reason

pytestmark = pytest.mark.torch


class Net(nn.Module):
    """Calls one module as often as told, and another."""

    def __init__(self, times: int, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.again = nn.Linear(4, 4)
        self.wide = nn.Linear(4, width)
        self.times = times

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(self.times):
            x = torch.tanh(self.again(x))
        return self.wide(x)


def training(
    times: int = 2, width: int = 3, steps: int = 2, change: Callable[[Net], object] = lambda net: None
) -> Loop:
    def run() -> None:
        torch.manual_seed(0)
        net = Net(times, width)
        change(net)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for step in range(steps):
            x = torch.randn(5, 4, generator=torch.Generator().manual_seed(step))
            net(x).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


def test_calls_of_another_number_stay_free_and_are_listed(tmp_path: Path) -> None:
    made, _, plan = replay(tmp_path, training(times=2), training(times=3))
    assert LeftFree.NUM_CALLS_DIFFERS in {left.reason.code for left in plan.steps[0].left}
    assert "again" not in set(sites(made).filter(phase="forward")["name"])
    assert "first" in set(sites(made).filter(phase="forward")["name"])
    assert "" in {o.module for o in origins(tmp_path / "replay", tmp_path / "reference")}


def test_another_shape_is_not_forced(tmp_path: Path) -> None:
    made, _, _ = replay(tmp_path, training(width=3), training(width=6))
    rows = sites(made).filter(name="wide", phase="forward", slot="output.0")
    assert rows["state"].to_list() == ["free"]
    assert rows["reason"][0] == LeftFree.SHAPE_DIFFERS.value
    free = [left_free_from_plain(one["reason"]) for one in made.rank_facts(0)["replay"]["free"]]
    assert reason(LeftFree.SHAPE_DIFFERS, target="[5, 6]", reference="[5, 3]") in free


def test_two_steps_and_one_finding(tmp_path: Path) -> None:
    def bend(net: Net) -> None:
        net.first.register_forward_hook(lambda module, args, out: out * 1.01)

    made, _, plan = replay(tmp_path, training(), training(change=bend), steps="0-1")
    assert [p.step for p in plan.steps] == [0, 1]
    assert read_plan(plan.folder) == plan
    first = origins(tmp_path / "replay", tmp_path / "reference")[0]
    assert (first.module, first.step) == ("first", 0)
    assert made.forced(1, 0).filter(phase="forward", state="replaced").height > 0


def test_api_calls_inside_one_module(tmp_path: Path) -> None:
    made, _, _ = replay(tmp_path, training(), training(), level="mix", inside=["again"])
    parents = Trace(made.path).read(0, 0).calls
    calls = sites(made).filter(kind="api")["call"].to_list()
    assert calls
    assert {parents["name"][parents["parent"][c]] for c in calls} == {"again"}


def test_a_reference_without_values(tmp_path: Path) -> None:
    reference = capture(tmp_path / "reference", training())
    with pytest.raises(TraceError, match="--preset diagnose"):
        build_plan(reference, reference, tmp_path / "plan")
    modules = capture(tmp_path / "modules", training(), store_values_of=["module"])
    assert build_plan(reference, modules, tmp_path / "plan").steps[0].num_forced > 0
    with pytest.raises(TraceError, match="--level mix --task tensor"):
        build_plan(reference, modules, tmp_path / "plan", level="mix")


def test_no_such_module_or_step(tmp_path: Path) -> None:
    reference = capture(tmp_path / "reference", training(), task="tensor", level="mix")
    with pytest.raises(ConfigError, match="no module 'nowhere'"):
        build_plan(reference, reference, tmp_path / "plan", level="mix", inside=["nowhere"])
    with pytest.raises(TraceError, match=r"no step in common of those asked for \(7\)"):
        build_plan(reference, reference, tmp_path / "plan", steps={7})


def test_a_run_that_is_no_replay(tmp_path: Path) -> None:
    trace = capture(tmp_path / "run", training())
    with pytest.raises(TraceError, match="no plan of a replay"):
        origins(trace.path, trace.path)
    with pytest.raises(TraceError, match="holds no replay"):
        trace.forced(0, 0)
