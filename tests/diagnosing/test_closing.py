"""One more run with the reference's outputs at the found modules alone says whether they explain the loss."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Collection
from pathlib import Path

import polars as pl
import pytest

torch = pytest.importorskip("torch")

from tests.diagnosing.cases import tells  # noqa: E402
from tests.diagnosing.replaying import capture  # noqa: E402
from tests.diagnosing.test_replay import MODELS, loop  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.diagnosing.replay.plan import build_plan  # noqa: E402
from trueup.store import Trace  # noqa: E402
from trueup.types.codes import ReplayCode  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
MAKE, LOSS, FAULTS = MODELS["gpt"]


def loss_of(trace: Trace) -> float:
    loss = trace.scalars(0)[0]["loss"]
    assert loss is not None
    return loss


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, Trace]:
    """A target with two faults, and its reference."""
    folder = tmp_path_factory.mktemp("runs")
    plants = [FAULTS[name][0] for name in ("norm-eps", "gelu-tanh")]
    target = capture(folder / "target", loop(MAKE, LOSS, plants), task="tensor")
    return target, capture(folder / "reference", loop(MAKE, LOSS), task="tensor")


def with_outputs_of(modules: Collection[str], runs: tuple[Trace, Trace], folder: Path) -> Trace:
    plants = [FAULTS[name][0] for name in ("norm-eps", "gelu-tanh")]
    plan = build_plan(*runs, folder / "plan", outputs_of=modules)
    return capture(folder / "run", loop(MAKE, LOSS, plants), replay=str(plan.folder))


def test_all_faulty_modules_close_the_gap_and_one_of_them_does_not(
    runs: tuple[Trace, Trace], tmp_path: Path
) -> None:
    own, there = map(loss_of, runs)
    places = [FAULTS[name][1] for name in ("norm-eps", "gelu-tanh")]
    assert own != there
    assert loss_of(with_outputs_of(places, runs, tmp_path / "both")) == there
    for place in places:
        assert loss_of(with_outputs_of([place], runs, tmp_path / place)) not in (own, there)


def test_nothing_else_is_put_in(runs: tuple[Trace, Trace], tmp_path: Path) -> None:
    place = FAULTS["gelu-tanh"][1]
    forced = (
        with_outputs_of([place], runs, tmp_path).forced(0, 0).with_columns(pl.col(pl.Categorical).cast(str))
    )
    replaced = forced.filter(pl.col("state") == "replaced").select("phase", "slot").rows()
    assert sorted(replaced) == [("backward", "input.0"), ("forward", "output.0")]


SCRIPT = """
import sys, torch
torch.manual_seed(0); torch.set_num_threads(1)
class Half(torch.nn.Module):
    def forward(self, x): return x * (0.5 if len(sys.argv) == 1 else 0.25)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), Half(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(2):
    model(torch.ones(4, 8) * (step + 1)).square().mean().backward()
    optimizer.step(); optimizer.zero_grad()
"""


def test_a_diagnosis_says_so_within_its_budget(tmp_path: Path) -> None:
    from trueup.cli.app import run

    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    target, reference = ([sys.executable, str(script), *more] for more in (["other"], []))
    for name, command in (("target", target), ("reference", reference)):
        assert run(["capture", "--preset", "diagnose", "-o", str(tmp_path / name), "-q", "--", *command]) == 0
    shown = {}
    for seconds in (0.0, 600.0):
        shown[seconds] = diagnose(
            tmp_path / "target",
            tmp_path / "reference",
            output=tmp_path / f"out {seconds}",
            command=shlex.split(shlex.join(target)),
            budget=seconds,
        ).findings[0]
    codes = ReplayCode.LOSS_EXPLAINED, ReplayCode.LOSS_WITH
    assert not any(tells(one, *codes) for one in shown[0.0].evidence)
    assert any(tells(one, codes[0], modules=("1",)) for one in shown[600.0].evidence)
