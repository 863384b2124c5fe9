"""Two small real runs, captured once: the second computes GELU another way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.capture.programs import TRAIN, python, run_trueup, write


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the traces ``reference`` and ``target`` at level mix."""
    folder = tmp_path_factory.mktemp("runs")
    write(folder / "train.py", TRAIN)
    write(folder / "other.py", TRAIN.replace("nn.GELU()", 'nn.GELU(approximate="tanh")'))
    for name, script in (("reference", "train.py"), ("target", "other.py")):
        interpreter = python("-c", "import sys; print(sys.executable)", cwd=folder).stdout.strip()
        made = run_trueup("capture", "-o", name, "--level", "mix", "--", interpreter, script, cwd=folder)
        assert made.returncode == 0, made.stderr
    return folder
