"""Functions of torch have the names that torch documents."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from trueup.store import Trace

pytestmark = pytest.mark.torch

PROGRAM = """
import torch
from torch.overrides import resolve_name
resolve_name(torch.relu)  # torch remembers the names of all its functions as they are now
import trueup

model = torch.nn.Linear(3, 3)
with trueup.Tracer({folder!r}, level="mix"):
    hidden = model(torch.ones(2, 3))
    hidden.data_ptr()
    torch.relu(hidden).sum().backward()
"""


def test_a_function_that_capture_watches_keeps_its_name(tmp_path: Path) -> None:
    program = PROGRAM.format(folder=str(tmp_path / "run"))
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    calls = Trace(tmp_path / "run").read(0, 0).calls["name"].cast(pl.String).to_list()
    assert "torch.relu" in calls
    assert not [name for name in calls if "data_ptr" in name]
