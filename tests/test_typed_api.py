"""The public names as editors and type checkers see them."""

from __future__ import annotations

import inspect
import os
import runpy
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import trueup
from trueup.capture.keywords import TracerKeywords
from trueup.capture.options import CaptureOptions
from trueup.monitoring.keywords import MonitorKeywords, RuleKeywords
from trueup.monitoring.settings import MonitorSettings, RuleSettings

ROOT = Path(__file__).parents[1]

SCRIPT = """
import trueup
from trueup import PrecisionDebugger, Tracer, seed_all

seed_all(seed=1)
debugger = PrecisionDebugger(config_path="config.json", level="mix")
debugger.start(model=None)
PrecisionDebugger.start()
debugger.save(1.0, "loss", save_backward=False)
debugger.stop()
debugger.step()
with Tracer("runs/target", level="mix") as tracer:
    tracer.save("loss", 1.0)
Tracer("runs/b", steps="0,5-8", ranks=[0, 3], scope=("a", "b"), max_bytes="20GB", seed=1, names=["fc"])
trueup.Monitor(every=10, modules=["*.mlp"], on_alarm=print, rules={"spike_sigmas": 4.0})
curve: trueup.Placement = trueup.Shard(0)
"""
WRONG = """
import trueup

trueup.PrecisionDebuger
trueup.PrecisionDebugger(config="config.json")
trueup.PrecisionDebugger.start(modle=None)
trueup.PrecisionDebugger("config.json").save(1.0, 2)
trueup.Tracer()
trueup.Tracer("r", level="L3")
trueup.Tracer("r", leval="L1")
trueup.Tracer("r", steps=1.5)
trueup.Tracer("r", deterministic="yes")
trueup.Monitor(evry=10)
trueup.Monitor(every="10")
trueup.Monitor(rules={"spike_sigma": 4.0})
"""


SETTINGS = """
[mypy]
strict = true
follow_imports = silent
[mypy-torch.*,polars.*,pyarrow.*,pydantic.*,rich.*,typer.*,jinja2.*]
follow_imports = skip
"""
"""no public name has a type of these packages, and to read them takes four times as long"""


@pytest.mark.slow
def test_a_script_is_checked_and_its_mistakes_are_found(tmp_path: Path) -> None:
    for name, text in {"right.py": SCRIPT, "wrong.py": WRONG, "mypy.ini": SETTINGS}.items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", "right.py", "wrong.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "MYPYPATH": str(Path(trueup.__file__).parents[1])},
    )
    errors = [line.split(":")[:2] for line in done.stdout.splitlines() if ": error:" in line]
    assert done.returncode == 1, done.stdout + done.stderr
    assert errors == [["wrong.py", str(line)] for line in range(4, 16)]


def test_signatures_without_an_instance() -> None:
    assert list(inspect.signature(trueup.PrecisionDebugger.start).parameters) == [
        "model",
        "token_range",
        "rank_id",
        "scheduled_tokens",
    ]
    assert list(inspect.signature(trueup.PrecisionDebugger.save).parameters) == [
        "variable",
        "name",
        "save_backward",
    ]
    assert (inspect.getdoc(trueup.PrecisionDebugger.step) or "").startswith("The training step is over")
    assert next(iter(inspect.signature(trueup.PrecisionDebugger).parameters)) == "config_path"


def test_keyword_types_are_those_of_the_options() -> None:
    script = runpy.run_path(str(ROOT / "docs" / "make_keywords.py"))
    for module in script["MODULES"]:
        written = (script["SOURCE"] / module.path).read_text(encoding="utf-8")
        assert written == module.text(), "run python docs/make_keywords.py"


@pytest.mark.parametrize(
    ("keywords", "options", "without"),
    [
        (TracerKeywords, CaptureOptions, {"output"}),
        (MonitorKeywords, MonitorSettings, set()),
        (RuleKeywords, RuleSettings, set()),
    ],
)
def test_every_option_is_a_keyword(keywords: type, options: type, without: set[str]) -> None:
    assert set(keywords.__annotations__) == {field.name for field in fields(options)} - without


def test_signatures_name_every_option() -> None:
    given = inspect.signature(trueup.Tracer).parameters
    assert {"output", "framework", "monitor", "level", "steps", "scope"} <= set(given)
    assert (given["level"].default, given["deterministic"].default) == ("L0", None)
    assert {"on_alarm", "every", "rules"} <= set(inspect.signature(trueup.Monitor).parameters)
    assert [name for name, one in given.items() if one.kind is one.VAR_KEYWORD] == []


@pytest.mark.parametrize(
    ("given", "shown"),
    [([0, 2], "0,2"), ((0, "5-8"), "0,5-8"), ([[0, 3]], "0-3"), ("0-1", "0-1"), (None, "all"), ([], "")],
)
def test_steps_in_each_form(given: object, shown: str, tmp_path: Path) -> None:
    assert str(trueup.Tracer(tmp_path / "run", steps=given).options.steps) == shown  # type: ignore[arg-type]


def test_completion_knows_every_public_name() -> None:
    assert set(trueup.__all__) <= set(dir(trueup))
    for name in trueup.__all__:
        if inspect.isclass(getattr(trueup, name)) or inspect.isfunction(getattr(trueup, name)):
            assert inspect.signature(getattr(trueup, name)) is not None
