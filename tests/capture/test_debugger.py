"""PrecisionDebugger, driven as scripts written for msprobe drive it; each in a process of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.capture.programs import environment, python, write
from trueup.capture.watch import FileWatch
from trueup.store import Trace

pytestmark = pytest.mark.torch

START = """
import json, os, sys, time
import torch
from torch import nn
from trueup import PrecisionDebugger

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train():
    loss = model(torch.ones(5, 4)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    return loss

def one(debugger, *models):
    debugger.start(*models); loss = train(); debugger.stop(); debugger.step()
    return loss
"""


def drive(body: str, tmp_path: Path, *flags: str, config: dict[str, Any] | None = None) -> str:
    """Run a script with ``config.json`` beside it; returns what it said on standard error."""
    if config is not None:
        write(tmp_path / "config.json", json.dumps(config))
    result = python(*flags, write(tmp_path / "script.py", START + body), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    return result.stderr


def names(folder: Path, step: int, *kinds: str) -> set[str]:
    calls = Trace(folder).read(step, 0).calls
    return {r["name"] for r in calls.iter_rows(named=True) if r["kind"] in kinds and r["mode"] == "train"}


def test_start_stop_step(tmp_path: Path) -> None:
    body = """
debugger = PrecisionDebugger(config_path="config.json")
for _ in range(3):
    one(debugger, model)
"""
    said = drive(body, tmp_path, "-W", "error", config={"dump_path": "dump", "level": "mix"})
    assert said == ""
    trace = Trace(tmp_path / "dump")
    assert trace.steps() == {0: [0], 1: [0], 2: [0]}
    assert trace.manifest["level"] == "mix"
    assert {"", "0", "1", "2"} <= names(tmp_path / "dump", 2, "module")


def test_steps_level_and_task_of_the_arguments(tmp_path: Path) -> None:
    body = """
debugger = PrecisionDebugger(task="tensor", dump_path="dump", level="L0", step=[1])
for _ in range(3):
    one(debugger, model)
"""
    drive(body, tmp_path, "-W", "error")
    trace = Trace(tmp_path / "dump")
    assert trace.steps() == {1: [0]}
    assert trace.read(1, 0).summaries["tensor"].is_not_null().any()
    assert names(tmp_path / "dump", 1, "api") == set()


def test_calls_on_the_class(tmp_path: Path) -> None:
    body = """
try: PrecisionDebugger.start()
except Exception as error: print(type(error).__name__, error)
PrecisionDebugger(dump_path="dump", level="L0")
PrecisionDebugger.start(model); train(); PrecisionDebugger.stop(); PrecisionDebugger.step()
"""
    write(tmp_path / "script.py", START + body)
    result = python("script.py", cwd=tmp_path)
    assert result.stdout.startswith("ConfigError PrecisionDebugger: make one first"), result.stderr
    assert Trace(tmp_path / "dump").steps() == {0: [0]}


def test_only_what_runs_between_start_and_stop_is_captured(tmp_path: Path) -> None:
    body = """
other = nn.Bilinear(4, 4, 1)
def train_other():
    other(torch.ones(2, 4), torch.ones(2, 4)).sum().backward()
debugger = PrecisionDebugger(dump_path="dump", level="L0")
train_other()
debugger.start([model]); loss = model(torch.ones(5, 4)).sum(); train_other(); loss.backward()
debugger.stop(); debugger.step()
train_other()
"""
    drive(body, tmp_path)
    assert Trace(tmp_path / "dump").steps() == {0: [0]}
    types = Trace(tmp_path / "dump").read(0, 0).calls["type"].drop_nulls().cast(str).to_list()
    assert set(types) == {"Sequential", "Linear", "GELU"}


def test_a_window_holds_everything_that_ran(tmp_path: Path) -> None:
    """Two mini-batches of two microbatches each, and calls outside of modules, between one start and stop."""
    body = """
debugger = PrecisionDebugger(config_path="config.json")
for _ in range(2):
    debugger.start(model)
    for _ in range(2):
        optimizer.zero_grad()
        for _ in range(2):
            loss = torch.log_softmax(model(torch.ones(5, 4)), 0).square().mean()
            torch.exp(loss.detach())
            loss.backward()
        optimizer.step()
        torch.sin(loss.detach())
    debugger.stop()
    torch.cos(loss.detach())
    debugger.step()
"""
    drive(body, tmp_path, "-W", "error", config={"dump_path": "dump", "level": "mix"})
    trace = Trace(tmp_path / "dump")
    assert trace.steps() == {0: [0], 1: [0]}
    assert [(line["microbatches"], line["updates"]) for line in trace.scalars(0)] == [(4, [1, 3])] * 2
    for step in range(2):
        data = trace.read(step, 0)
        calls = list(data.calls.iter_rows(named=True))
        where = {
            name: [call["microbatch"] for call in calls if call["name"] == f"torch.{name}"]
            for name in ("log_softmax", "exp", "sin", "cos")
        }
        assert where == {"log_softmax": [0, 1, 2, 3], "exp": [0, 1, 2, 3], "sin": [1, 3], "cos": []}
        assert [call["microbatch"] for call in calls if call["name"] == "0"] == [0, 1, 2, 3]
        for phase, slot, microbatches in (
            ("forward", "output.0", {0, 1, 2, 3}),
            ("backward", "output.0", {0, 1, 2, 3}),
            ("param_grad", "accumulated", {0, 1, 2, 3}),
            ("param_grad", "clipped", {1, 3}),
            ("optimizer", "param", {1, 3}),
        ):
            of = data.records.filter((data.records["phase"] == phase) & (data.records["slot"] == slot))
            assert set(of["microbatch"]) == microbatches, (phase, slot)


def test_a_second_debugger_goes_on_with_the_first_one_s_steps(tmp_path: Path) -> None:
    body = """
one(PrecisionDebugger(config_path="config.json"), model)
one(PrecisionDebugger(config_path="config.json"), model)
"""
    said = drive(body, tmp_path, config={"dump_path": "dump", "level": "L0"})
    assert said == ""
    assert Trace(tmp_path / "dump").steps() == {0: [0], 1: [0]}
    said = drive(body, tmp_path, config={"dump_path": "dump", "level": "L0"})
    assert "already holds steps 0 to 1" in said
    assert "continues with step 2" in said
    assert list(Trace(tmp_path / "dump").steps()) == [0, 1, 2, 3]


def test_a_process_that_has_no_wanted_step_left_says_so(tmp_path: Path) -> None:
    body = "one(PrecisionDebugger(config_path='config.json'), model)"
    config = {"dump_path": "dump", "level": "L0", "step": [0]}
    drive(body, tmp_path, config=config)
    assert "has no step left to capture" in drive(body, tmp_path, config=config)


def test_two_folders_in_turn_are_two_traces(tmp_path: Path) -> None:
    body = """
first, second = PrecisionDebugger(dump_path="a", level="L0"), PrecisionDebugger(dump_path="b", level="L0")
one(first, model); one(second, model); one(first, model); one(first, model); one(second, model)
"""
    drive(body, tmp_path, "-W", "error")
    assert list(Trace(tmp_path / "a").steps()) == [0, 1, 2]
    assert list(Trace(tmp_path / "b").steps()) == [0, 1]


def test_verl_sets_the_folder_and_resets(tmp_path: Path) -> None:
    body = """
debugger = PrecisionDebugger(config_path="config.json", dump_path="base")
for step in (1, 2):
    for stage in ("actor_update", "critic_update"):
        debugger.service.config.dump_path = os.path.join("base", f"step_{step}", stage)
        debugger.start(model); train(); debugger.stop(); debugger.service.reset_status()
print(debugger.service.config.dump_path)
os._exit(0)
"""
    drive(body, tmp_path, config={"level": "L0"})
    found = sorted(p.parent.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("manifest.json"))
    assert found == [f"base/step_{n}/{stage}" for n in (1, 2) for stage in ("actor_update", "critic_update")]
    for folder in found:
        assert list(Trace(tmp_path / folder).steps()) == [0]


def test_hot_switch(tmp_path: Path) -> None:
    body = """
def switch(on):
    plain = json.load(open("config.json")); plain["dump_enable"] = on
    json.dump(plain, open("config.json", "w")); os.utime("config.json", ns=(time.time_ns(), time.time_ns()))
debugger = PrecisionDebugger(config_path="config.json")
one(debugger, model)
switch(True); one(debugger, model); one(debugger, model)
switch(False); one(debugger, model)
open("config.json", "w").write("{"); one(debugger, model)
"""
    said = drive(body, tmp_path, config={"dump_path": "dump", "level": "L0", "dump_enable": False})
    assert list(Trace(tmp_path / "dump").steps()) == [1, 2]
    assert "capture is off until it is corrected" in said


def test_without_dump_enable_the_file_is_read_once(tmp_path: Path) -> None:
    body = """
debugger = PrecisionDebugger(config_path="config.json")
one(debugger, model); open("config.json", "w").write("{"); one(debugger, model)
"""
    assert drive(body, tmp_path, config={"dump_path": "dump", "level": "L0"}) == ""
    assert list(Trace(tmp_path / "dump").steps()) == [0, 1]


def test_save_at_level_debug_keeps_nothing_else(tmp_path: Path) -> None:
    body = """
debugger = PrecisionDebugger(dump_path="dump", level="debug")
debugger.start(model); loss = train(); debugger.stop()
debugger.save({"a": torch.ones(3), "b": [torch.zeros(2), 7]}, "mine", save_backward=False)
debugger.step()
"""
    drive(body, tmp_path, "-W", "error")
    calls = Trace(tmp_path / "dump").read(0, 0).calls
    assert [n for n in calls["name"].cast(str).to_list() if "mine" in n] == ["save.mine.a", "save.mine.b.0"]
    assert Trace(tmp_path / "dump").scalars(0)[0]["saved"] == {"mine.b.1": 7}
    assert names(tmp_path / "dump", 0, "module") == set()


def test_init_step(tmp_path: Path) -> None:
    body = """
debugger = PrecisionDebugger(dump_path="dump", level="L0")
PrecisionDebugger.set_init_step(100)
one(debugger, model); one(debugger, model)
"""
    drive(body, tmp_path, "-W", "error")
    assert list(Trace(tmp_path / "dump").steps()) == [100, 101]


def test_module_dump_narrows_for_a_while(tmp_path: Path) -> None:
    body = """
from trueup.capture.debugger import module_dump, module_dump_end
debugger = PrecisionDebugger(dump_path="dump", level="L0")
debugger.start(); module_dump(model[0], "first"); train(); module_dump_end(); debugger.stop(); debugger.step()
one(debugger)
"""
    drive(body, tmp_path)
    assert len(names(tmp_path / "dump", 0, "module")) < len(names(tmp_path / "dump", 1, "module"))


def test_what_has_no_effect_warns_once(tmp_path: Path) -> None:
    body = """
debugger = PrecisionDebugger(dump_path="dump", level="L0")
PrecisionDebugger.register_custom_api(torch, "matmul")
for _ in range(2):
    debugger.start(model, token_range=[0, 1], rank_id=3); debugger.stop()
debugger.save(torch.ones(1), 5)
"""
    said = drive(body, tmp_path)
    assert said.count("token_range has no effect") == 1
    assert "rank_id=3 has no effect" in said
    assert "register_custom_api('matmul') has no effect" in said
    assert "expected text as name (got 5)" in said


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("PrecisionDebugger(config_path=3)", "config_path: expected a path"),
        ("PrecisionDebugger('none.json')", "no such file"),
        ("PrecisionDebugger(task='nan_check')", "not supported"),
        ("PrecisionDebugger(level='L5')", "level: expected one of: L0, L1, mix, debug"),
        ("PrecisionDebugger(dump_path='d').start(3)", "int is not a model"),
        ("PrecisionDebugger(dump_path='d').set_init_step(-1)", "set_init_step: expected an integer from 0"),
    ],
)
def test_a_mistake_is_a_clear_error(tmp_path: Path, call: str, message: str) -> None:
    write(tmp_path / "script.py", START + call)
    result = python("script.py", cwd=tmp_path)
    assert "ConfigError" in result.stderr
    assert message in result.stderr


def test_under_trueup_capture_the_command_line_holds(tmp_path: Path) -> None:
    body = """
debugger = PrecisionDebugger(dump_path="theirs", level="L1")
one(debugger, model); one(debugger, model)
"""
    write(tmp_path / "script.py", START + body)
    words = ("-m", "trueup", "capture", "-o", "ours", "--", "python3", "script.py")
    path = {"PATH": str(Path(sys.executable).parent)}
    result = python(*words, cwd=tmp_path, env=environment(**path))
    assert result.returncode == 0, result.stderr
    assert "its options and folder are used" in result.stderr
    assert list(Trace(tmp_path / "ours").steps()) == [0, 1]
    assert not (tmp_path / "theirs").exists()


@pytest.mark.parametrize("first", ["PrecisionDebugger(dump_path='theirs')", "seed_all(1)"])
def test_under_trueup_capture_trueup_may_be_used_before_torch_is_imported(tmp_path: Path, first: str) -> None:
    write(tmp_path / "script.py", f"from trueup import *\n{first}\n{START}\ntrain(); train()\n")
    words = ("-m", "trueup", "capture", "-o", "ours", "--", sys.executable, "script.py")
    result = python(*words, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "not captured" not in result.stderr
    assert not (tmp_path / "theirs").exists()


def test_a_compiled_model_is_never_asked_for_its_truth(tmp_path: Path) -> None:
    body = """
class Compiled(nn.Module):
    def __init__(self, inner): super().__init__(); self.inner = inner
    def forward(self, x): return self.inner(x)
    def __bool__(self): raise TypeError("no truth")
    def __len__(self): raise TypeError("no length")
model = Compiled(model)
one(PrecisionDebugger(dump_path="dump", level="L0"), model)
"""
    drive(body, tmp_path, "-W", "error")
    assert list(Trace(tmp_path / "dump").steps()) == [0]


def test_a_watched_file(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    assert not FileWatch(None).changed()
    watch = FileWatch(path)
    path.write_text("1")
    assert watch.changed()
    assert not watch.changed()
    path.unlink()
    assert not watch.changed()
    path.write_text("12")
    assert watch.changed()
