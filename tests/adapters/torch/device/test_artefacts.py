"""The kernel compiles ahead of time, without a device, and sums nothing in local memory: a sample.

All of them: ``benchmarks/triton_artefacts.py``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from trueup.adapters.torch.device.triton_launch import is_recent

ROOT = Path(__file__).parents[4]

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("triton") is None, reason="triton is for Linux"),
]
recent = pytest.mark.skipif(
    find_spec("triton") is not None and not is_recent(version("triton")),
    reason="the kernel is for triton 3.4 and later",
)


def compiled(*options: str) -> list[dict[str, object]]:
    """What the script prints."""
    cold = Path(sys.prefix, "bin", "python")  # triton has not been imported there, and interprets nothing
    command = [str(cold), str(ROOT / "benchmarks" / "triton_artefacts.py"), "--first", *options]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@recent
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_compiles_without_spills(target: str) -> None:
    (row,) = compiled("--targets", target, "--dtypes", "bfloat16")
    assert int(str(row["saved_bytes"])) <= 64
    assert row["bytes_an_element"] == 2
    if target == "sm_90":
        assert row["loop_local"] == 0
        assert 0 < float(str(row["instructions_an_element"])) < 40


@pytest.mark.parametrize(("triton", "expected"), [("3.2.0", False), ("3.4.0", True), ("3.10.1+git", True)])
def test_older_versions_of_triton_are_left_alone(triton: str, expected: bool) -> None:
    assert is_recent(triton) is expected
