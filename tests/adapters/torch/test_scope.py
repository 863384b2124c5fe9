"""``scope`` and ``list`` by msprobe's full names: what msprobe 26.2.0 dumps for the same program.

The expected names are those the real msprobe dumped, with ``Tensor.add`` for its ``Tensor.__add__``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trueup
from trueup.importers import open_trace
from trueup.importers.msprobe.export import export_msprobe

pytestmark = pytest.mark.torch


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.b(F.relu(self.a(x)))
        return out


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(F.softmax(x, -1))
        return out


def train(debugger: trueup.PrecisionDebugger, steps: int = 1) -> list[float]:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        labels = torch.tensor([0, 2])
        debugger.start(model=model)
        loss = F.cross_entropy(model(torch.randn(2, 4)), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()
        losses.append(loss.item())
    return losses


def run(
    tmp_path: Path,
    *,
    level: str,
    steps: int = 1,
    beside: dict[str, list[int]] | None = None,
    **section: list[str],
) -> list[float]:
    config = {"task": "statistics", "dump_path": str(tmp_path / "run"), "level": level, "statistics": section}
    config |= beside or {}
    (tmp_path / "config.json").write_text(json.dumps(config))
    debugger = trueup.PrecisionDebugger(config_path=tmp_path / "config.json")
    losses = train(debugger, steps)
    debugger._session.close()
    return losses


def dumped(tmp_path: Path) -> list[dict[str, Any]]:
    """Entries of every step, as msprobe names them."""
    folders = export_msprobe(open_trace(tmp_path / "run"), tmp_path / "dump")
    return [json.loads((folder / "dump.json").read_text())["data"] for folder in folders]


def names(entries: dict[str, Any]) -> set[str]:
    """Without updates of the optimizer and the gradients of parameters, which have a test of their own."""
    return {name for name in entries if ".add_." not in name and "parameters_grad" not in name}


def calls(prefix: str, numbers: str, suffix: str) -> set[str]:
    return {f"{prefix}.{number}.{suffix}" for number in numbers}


MODULES_1 = {f"Module.blocks.1.{one}.forward.0" for one in ("a.Linear", "b.Linear", "Block")}
APIS_1 = {
    "Functional.linear.2.forward",
    "Functional.relu.1.forward",
    "Functional.linear.3.forward",
    "Tensor.add.1.forward",
}
CASES: list[tuple[str, dict[str, list[str]], set[str]]] = [
    (
        "L1",
        {"scope": ["Functional.linear.1.forward", "Functional.relu.1.forward"]},
        {*calls("Functional.linear", "12", "forward"), "Tensor.add.0.forward", "Functional.relu.1.forward"},
    ),
    (
        "L1",
        {"scope": ["Functional.linear.5.forward", "Functional.linear.5.backward"]},
        {
            f"{one}.{phase}"
            for one in (
                "Functional.linear.5",
                "Tensor.add.2",
                "Functional.softmax.0",
                "Functional.linear.6",
                "Functional.cross_entropy.0",
            )
            for phase in ("forward", "backward")
        },
    ),
    (
        "L1",
        {"scope": ["Functional.softmax.0.backward", "Functional.relu.1.backward"]},
        {
            "Functional.softmax.0.backward",
            *calls("Tensor.add", "12", "backward"),
            *calls("Functional.linear", "345", "backward"),
            *calls("Functional.relu", "12", "backward"),
        },
    ),
    (
        "L0",
        {"scope": ["Module.blocks.1.Block.forward.0", "Module.blocks.2.a.Linear.forward.0"]},
        {*MODULES_1, "Module.blocks.2.Block.forward.0", "Module.blocks.2.a.Linear.forward.0"},
    ),
    (
        "mix",
        {"scope": ["Functional.linear.2.forward", "Module.blocks.1.Block.forward.0"]},
        {*MODULES_1, *APIS_1},
    ),
    (
        "mix",
        {"scope": ["Functional.softmax.0.backward", "Module.blocks.2.Block.backward.0"]},
        {
            "Functional.softmax.0.backward",
            "Tensor.add.2.backward",
            "Functional.relu.2.backward",
            *calls("Functional.linear", "45", "backward"),
            *{f"Module.blocks.2.{one}.backward.0" for one in ("a.Linear", "b.Linear", "Block")},
        },
    ),
    ("L1", {"list": ["Functional.linear.1.forward"]}, {"Functional.linear.1.forward"}),
    ("L1", {"list": ["Functional.linear.1.backward"]}, {"Functional.linear.1.backward"}),
    (
        "L1",
        {"list": ["Functional.linear.1"]},
        {"Functional.linear.1.forward", "Functional.linear.1.backward"},
    ),
    ("L1", {"list": ["Tensor.__add__.1.forward"]}, {"Tensor.add.1.forward"}),
    ("L0", {"list": ["Module.blocks.1.Block.forward.0"]}, {"Module.blocks.1.Block.forward.0"}),
    ("mix", {"list": ["Module.blocks.1.Block.forward.0"]}, {*MODULES_1, *APIS_1}),
    (
        "mix",
        {"list": ["Module.blocks.1.b.Linear.backward.0"]},
        {"Functional.linear.3.backward", "Module.blocks.1.b.Linear.backward.0"},
    ),
    (
        "L1",
        {"scope": ["Functional.linear.1.forward", "Functional.relu.2.forward"], "list": ["relu"]},
        {"Functional.relu.1.forward", "Functional.relu.2.forward"},
    ),
    (
        "mix",
        {
            "scope": ["Functional.linear.1.forward", "Functional.linear.4.forward"],
            "list": ["Module.blocks.1.b.Linear.forward.0"],
        },
        {"Functional.linear.3.forward", "Module.blocks.1.b.Linear.forward.0"},
    ),
]


@pytest.mark.parametrize(("level", "section", "expected"), CASES)
def test_exactly_what_msprobe_dumps(
    level: str, section: dict[str, list[str]], expected: set[str], tmp_path: Path
) -> None:
    run(tmp_path, level=level, **section)
    (found,) = dumped(tmp_path)
    assert names(found) == expected


def test_the_span_begins_anew_at_every_step(tmp_path: Path) -> None:
    run(tmp_path, level="L1", steps=3, scope=["Functional.linear.1.forward", "Functional.relu.1.forward"])
    first, *others = dumped(tmp_path)
    assert [names(one) for one in others] == [names(first)] * 2


@pytest.mark.parametrize(
    ("section", "owners"),
    [
        ({"list": ["blocks.1"]}, {"blocks.1.a.Linear", "blocks.1.b.Linear"}),
        (
            {"scope": ["Module.blocks.2.Block.backward.0", "Module.blocks.2.b.Linear.backward.0"]},
            {"blocks.2.b.Linear"},
        ),
        ({"scope": ["Module.blocks.0.Block.forward.0", "Module.blocks.1.Block.forward.0"]}, set()),
    ],
)
def test_gradients_of_parameters_follow_their_module(
    section: dict[str, list[str]], owners: set[str], tmp_path: Path
) -> None:
    run(tmp_path, level="L0", **section)
    (found,) = dumped(tmp_path)
    there = {name for name in found if "parameters_grad" in name}
    assert there == {f"Module.{one}.parameters_grad.0" for one in owners}


NOTHING = [
    ({"scope": ["Functional.linear.40.forward", "Functional.relu.2.forward"]}, "Functional.linear.4.forward"),
    ({"list": ["Module.block.1.Block.forward.0"]}, "Module.blocks.1.Block.forward.0"),
    ({"scope": ["Functional.linear.0.forward", "Functional.relu.0.forward"], "list": ["softmax"]}, ""),
]


@pytest.mark.parametrize(("section", "nearest"), NOTHING)
def test_nothing_captured_is_said_with_the_nearest_names(
    section: dict[str, list[str]], nearest: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = run(tmp_path, level="mix", **section)
    trace = open_trace(tmp_path / "run")
    said = trace.rank_facts(0)["outside_scope"]
    assert nearest in said
    assert said == json.loads((tmp_path / "run/manifest.json").read_text())["nothing_captured"]
    assert said in trace.rank_facts(0)["limits"]
    assert said in capsys.readouterr().err
    whole = tmp_path / "whole"
    whole.mkdir()
    assert run(whole, level="mix") == plain, "training is not affected"
    assert "outside_scope" not in open_trace(whole / "run").rank_facts(0)


def test_an_end_that_never_comes_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, level="L1", scope=["Functional.linear.1.forward", "Functional.linear.99.forward"])
    (found,) = dumped(tmp_path)
    assert "Functional.cross_entropy.0.backward" in found
    assert "Functional.linear.99.forward" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("last", "why"),
    [
        ("Functional.linear.99.forward", "(nearest: Functional.linear."),
        ("Functional.linear.0.forward", "did not run after Functional.linear.3.forward"),
    ],
)
def test_an_end_before_the_begin_is_told_from_one_that_is_no_call(
    last: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, level="L1", scope=["Functional.linear.3.forward", last])
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "said"), [("Functional.relu.0.forward", True), ("Module.had.Linear.forward.0", False)]
)
def test_a_function_at_level_l0_is_told_from_a_slip_of_the_pen(
    name: str, said: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, level="L0", list=[name])
    assert ("Level L0 captures modules alone" in capsys.readouterr().err) == said


def test_a_name_that_nothing_has_beside_others_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, level="mix", list=["relu", "soffmax"])
    facts = open_trace(tmp_path / "run").rank_facts(0)
    assert [*facts["unmatched_names"]] == ["soffmax"]
    said = facts["unmatched_names"]["soffmax"]
    assert said in facts["limits"]
    assert said in capsys.readouterr().err


ABSENT = [
    ({"step": [7]}, "steps 0 to 1,"),
    ({"rank": [1]}, "rank 0 alone"),
    ({"module_ranks": [2, 3]}, "rank 0 alone"),
]


@pytest.mark.parametrize(("asked", "there"), ABSENT)
def test_steps_and_ranks_that_the_run_has_not_are_said(
    asked: dict[str, list[int]], there: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, level="L0", steps=2, beside=asked)
    said = json.loads((tmp_path / "run/manifest.json").read_text())["nothing_captured"]
    assert there in said
    assert said in capsys.readouterr().err
