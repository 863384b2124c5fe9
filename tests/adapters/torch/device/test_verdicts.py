"""What a run on a device is said to be is what the same run on the CPU is said to be."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from torch.utils import backend_registration

from tests.capture.programs import environment, run_trueup

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(
        not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
        reason="torch takes no device written in Python: 2.6 does not",
    ),
]

ROOT = Path(__file__).parents[4]
PROGRAM = Path(__file__).with_name("program.py")


def trueup(folder: Path, *words: str | Path) -> int:
    done = run_trueup(*words, cwd=folder, env=environment(PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1"))
    assert done.returncode in (0, 1), done.stderr[-3000:]
    return done.returncode


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``cpu-none``, ``lazy-eps`` and so on."""
    folder = tmp_path_factory.mktemp("verdicts")
    for where in ("cpu", "lazy"):
        for fault in ("none", "eps", "rate"):
            command = ("--", sys.executable, PROGRAM, where, fault)
            trueup(
                folder,
                "capture",
                "--preset",
                "diagnose",
                "--deterministic",
                "-o",
                f"{where}-{fault}",
                *command,
            )
    return folder


def verdict(folder: Path, where: str, fault: str) -> dict[str, Any]:
    """What the stages are and where the first fault is, with a replay."""
    replay = f"{sys.executable} {PROGRAM} {where} {fault}"
    out = f"{where}-{fault}-out"
    status = trueup(
        folder, "diagnose", f"{where}-{fault}", f"{where}-none", "--replay", replay, "-o", out, "--json"
    )  # fmt: skip
    found = json.loads((folder / out / "diagnosis.json").read_text(encoding="utf-8"))
    return {
        "status": status,
        "stages": [(stage["stage"], stage["status"]) for stage in found["stages"]],
        "findings": [
            (one["site"], [kind["name"] for kind in one["kinds"]], one["confidence"])
            for one in found["findings"]
        ],
    }


@pytest.mark.parametrize("fault", ["none", "eps", "rate"])
def test_a_diagnosis_with_replay_is_the_same(traces: Path, fault: str) -> None:
    cpu, lazy = (verdict(traces, where, fault) for where in ("cpu", "lazy"))
    assert lazy == cpu
    assert bool(cpu["findings"]) == (fault != "none")


def test_a_run_on_the_device_agrees_with_one_on_the_cpu(traces: Path) -> None:
    assert trueup(traces, "compare", "lazy-none", "cpu-none", "-o", "devices") == 0
    assert trueup(traces, "compare", "lazy-eps", "cpu-none", "-o", "apart") == 1
