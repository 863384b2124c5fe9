"""``trueup capture`` from outside: one process, and two under msrun with collectives."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.adapters.mindspore.reading import Captured
from tests.warm import COLD
from trueup.monitoring.reader import open_run
from trueup.store import Trace

pytestmark = [pytest.mark.mindspore, pytest.mark.slow]
PROGRAMS = Path(__file__).with_name("programs")


def trueup_capture(*words: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    found = [str(Path(one).parent) for one in (sys.executable, COLD)]  # msrun lies beside the second
    path = os.pathsep.join([*found, os.environ.get("PATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "trueup", "capture", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "PATH": path, **(env or {})},
    )


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        number: int = one.getsockname()[1]
        return number


def test_seed_and_determinism_from_outside(tmp_path: Path) -> None:
    """Two runs of an unseeded program with dropout are alike under one seed, and the environment fits."""
    losses: list[Any] = []
    for name, interpreter in (("one", COLD), ("two", sys.executable)):
        done = trueup_capture(
            *("-o", tmp_path / name, "--seed", "7", "--deterministic", "--", interpreter),
            PROGRAMS / "unseeded.py",
            env={"HCCL_DETERMINISTIC": "false"},
        )
        assert done.returncode == 0, done.stderr[-3000:]
        losses.append([line["loss"] for line in Trace(tmp_path / name).scalars(0)])
    assert losses[0] == losses[1]
    assert len(losses[0]) == 2
    manifest = Trace(tmp_path / "one").manifest
    assert manifest["deterministic_algorithms"] is True
    assert manifest["environment"]["LCCL_DETERMINISTIC"] == "1"
    limits = Trace(tmp_path / "one").rank_facts(0)["limits"]
    assert any("HCCL_DETERMINISTIC was set to 'false'" in limit for limit in limits), limits


def test_the_monitor_from_outside(tmp_path: Path) -> None:
    done = trueup_capture("--monitor", "-o", tmp_path / "run", "--", sys.executable, PROGRAMS / "seeded.py")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "watched 2 steps" in done.stderr
    run = open_run(tmp_path / "run")
    norms = run.series("gradient", "l2_norm")
    assert norms is not None
    assert tuple(norms.names) == ("weight",)
    assert (norms.values > 0).all()


@pytest.mark.distributed
def test_two_processes_under_msrun(tmp_path: Path) -> None:
    """A worker of MindSpore ends by a segmentation fault now and then (once in some hundred runs, on a loaded
    machine): tried once more then."""
    for folder in (tmp_path / "first", tmp_path / "again"):
        folder.mkdir()
        done = trueup_capture(
            *("-o", tmp_path / "run", "--overwrite", "--level", "mix", "--config", _config(folder), "--"),
            *("msrun", "--worker_num", "2", "--local_worker_num", "2", "--master_port", str(_free_port())),
            *("--join", "True", "--log_dir", folder / "log", PROGRAMS / "data_parallel.py"),
            env={"PYTHONFAULTHANDLER": "1"},
        )
        logs = sorted((folder / "log").glob("*.log"))
        said = [log.read_text(encoding="utf-8")[-4000:] for log in logs]
        if "Error code: -11" not in done.stderr:
            break
    assert done.returncode == 0, "\n".join([done.stderr[-3000:], *said])
    trace = Trace(tmp_path / "run")
    assert trace.manifest["world_size"] == 2
    runs = [Captured(tmp_path / "run", 0, rank) for rank in range(2)]
    for rank, run in enumerate(runs):
        assert run.facts["num_failures"] == 0, run.facts["failures"]
        assert run.value("", "forward", "input.0")[0, 0] == rank + 1
    name = "mindspore.mint.distributed.all_reduce"
    given = [run.value(name, "collective", "input.0", kind="collective") for run in runs]
    for run in runs:
        total = run.value(name, "collective", "output.0", kind="collective")
        np.testing.assert_allclose(total, given[0] + given[1], rtol=1e-6)
        np.testing.assert_allclose(run.value("weight", "param_grad", "clipped"), total / 2, rtol=1e-6)
        reduced = run.one("mindspore.ops.Primitive.AllReduce", "collective", "output.0")
        assert reduced["site"]["kind"] == "collective"
        unread = run.one("mindspore.mint.distributed.all_gather", "collective", "input.0.0")
        assert unread["reason"] == "uninitialised memory"
        gathered = run.value("mindspore.mint.distributed.all_gather", "collective", "output.0.1")
        assert gathered.tolist() == [1.0, 1.0]


def _config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text('{"task": "tensor", "level": "mix", "step": [0]}')
    return path
