"""The public names as editors and type checkers see them."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import trueup

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
curve: trueup.Placement = trueup.Shard(0)
"""
WRONG = """
import trueup

trueup.PrecisionDebuger
trueup.PrecisionDebugger(config="config.json")
trueup.PrecisionDebugger.start(modle=None)
trueup.PrecisionDebugger("config.json").save(1.0, 2)
trueup.Tracer()
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
    assert errors == [["wrong.py", str(line)] for line in (4, 5, 6, 7, 8)]


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


def test_completion_knows_every_public_name() -> None:
    assert set(trueup.__all__) <= set(dir(trueup))
    for name in trueup.__all__:
        if inspect.isclass(getattr(trueup, name)) or inspect.isfunction(getattr(trueup, name)):
            assert inspect.signature(getattr(trueup, name)) is not None
