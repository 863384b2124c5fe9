"""``PrecisionDebugger`` and ``Tracer`` in a MindSpore program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mindspore as ms
import pytest
from mindspore.experimental import optim

import trueup
from tests.adapters.mindspore.models import GPT, batch, cross_entropy, start
from tests.adapters.mindspore.reading import Captured
from tests.warm import COLD
from trueup.capture import session
from trueup.store import Trace

pytestmark = pytest.mark.mindspore


@pytest.fixture(autouse=True)
def no_session() -> Iterator[None]:
    yield
    running = session.current()
    if running is not None:
        running.close()


def config(path: Path, **keys: Any) -> Path:
    path.write_text(json.dumps({"task": "statistics", "step": [], "rank": [], **keys}))
    return path


class Program:
    """A training loop as one with msprobe has it."""

    def __init__(self, debugger: trueup.PrecisionDebugger) -> None:
        start()
        self.debugger = debugger
        self.model = GPT(layers=1)
        self.model.set_train()
        self.optimizer = optim.AdamW(list(self.model.trainable_params()), lr=1e-2)
        self.gradient = ms.value_and_grad(
            lambda ids, labels: cross_entropy(self.model(ids), labels), None, self.optimizer.parameters
        )

    def steps(self, number: int) -> None:
        for step in range(number):
            self.debugger.start(self.model)
            self.optimizer(self.gradient(*batch(step))[1])
            self.debugger.stop()
            self.debugger.step()


def names(path: Path, step: int = 0) -> set[str]:
    """Names of calls that something is recorded of."""
    run = Captured(path, step)
    return {r["site"]["name"] for r in run.records if r["phase"] == "forward"}


def test_steps_levels_and_framework(tmp_path: Path) -> None:
    file = config(tmp_path / "config.json", dump_path=str(tmp_path / "run"), level="mix", step=[0, "2-3"])
    Program(trueup.PrecisionDebugger(config_path=file)).steps(5)
    trace = Trace(tmp_path / "run")
    assert list(trace.steps()) == [0, 2, 3]
    assert trace.manifest["framework"] == "mindspore"
    assert {"layers.0.attn", "mindspore.mint.matmul", "mindspore.ops.cross_entropy"} <= names(
        tmp_path / "run"
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("MintFunctional.linear.0.forward", {"mindspore.mint.nn.functional.linear"}),
        ("Mint.chunk", {"mindspore.mint.chunk"}),
        ("Functional.cross_entropy", {"mindspore.ops.cross_entropy"}),
        ("Tensor.__mul__", {"mindspore.Tensor.__mul__"}),
    ],
)
def test_lists_take_msprobe_s_names(given: str, expected: set[str], tmp_path: Path) -> None:
    file = config(
        tmp_path / "config.json", dump_path=str(tmp_path / "run"), level="L1", statistics={"list": [given]}
    )
    Program(trueup.PrecisionDebugger(config_path=file)).steps(1)
    assert names(tmp_path / "run") == expected


def test_scope_takes_cells_and_data_mode_narrows(tmp_path: Path) -> None:
    section = {
        "scope": ["Cell.layers.0.attn.Attention.forward.0", "Cell.layers.0.attn.Attention.forward.0"],
        "data_mode": ["forward", "output"],
    }
    file = config(tmp_path / "config.json", dump_path=str(tmp_path / "run"), level="L0", statistics=section)
    Program(trueup.PrecisionDebugger(config_path=file)).steps(1)
    assert names(tmp_path / "run") == {"layers.0.attn", "layers.0.attn.qkv", "layers.0.attn.out"}
    run = Captured(tmp_path / "run")
    assert {r["slot"] for r in run.records if r["phase"] == "forward"} == {"output.0"}
    assert not [r for r in run.records if r["phase"] == "backward"]


def test_a_checksum_as_msprobe_s_md5_mode(tmp_path: Path) -> None:
    file = config(
        tmp_path / "config.json",
        dump_path=str(tmp_path / "run"),
        level="L0",
        statistics={"summary_mode": "md5"},
    )
    Program(trueup.PrecisionDebugger(config_path=file)).steps(1)
    assert Captured(tmp_path / "run").one("", "forward", "output.0")["summary"]["crc32"] is not None


def test_the_hot_switch(tmp_path: Path) -> None:
    keys = {"dump_path": str(tmp_path / "run"), "level": "L0"}
    file = config(tmp_path / "config.json", dump_enable=False, **keys)
    program = Program(trueup.PrecisionDebugger(config_path=file))
    program.steps(1)
    assert not (tmp_path / "run" / "step_000000").exists()
    config(file, dump_enable=True, **keys)
    program.steps(2)
    assert len(list((tmp_path / "run").glob("step_*"))) >= 1


BOTH = """
import sys
from pathlib import Path
import {first}
import {second}
import numpy, torch, mindspore
from tests.adapters.mindspore.loops import plain

def with_torch():
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()

if sys.argv[1] == "torch":
    with_torch()
else:
    model = torch.nn.Linear(3, 3)
    with torch.no_grad():
        model(torch.ones(2, 3))
    plain()
"""


@pytest.mark.parametrize("trains", ["torch", "mindspore"])
@pytest.mark.parametrize("first", ["torch", "mindspore"])
def test_of_two_frameworks_the_one_that_trains_is_captured(trains: str, first: str, tmp_path: Path) -> None:
    second = "mindspore" if first == "torch" else "torch"
    program = tmp_path / "program.py"
    program.write_text(BOTH.format(first=first, second=second))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "trueup",
            "capture",
            "-o",
            tmp_path / "run",
            "--",
            COLD if first != trains == "mindspore" else sys.executable,
            program,
            trains,
        ],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    trace = Trace(tmp_path / "run")
    assert trace.manifest["framework"] == {"torch": "pytorch"}.get(trains, trains)
    assert list(trace.steps()) == [0, 1]
    assert trace.rank_facts(0)["num_failures"] == 0
