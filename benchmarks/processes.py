"""Running a program and measuring it from outside; where the two tools are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
WORKERS = Path(__file__).resolve().parent / "workers"
TRUEUP = [sys.executable, "-m", "trueup"]
_SAMPLING_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a program took, from its start to its end."""

    status: int
    wall_seconds: float
    cpu_seconds: float
    """of the process and of the children it waited for"""
    peak_rss_mib: float
    """of the process and all that it started, at any one moment"""
    output: str
    """standard output and error"""


def measure(command: list[str], *, cwd: Path | None = None, allowed: tuple[int, ...] = (0,)) -> Measured:
    """Run a command and measure it.

    Raises:
        RuntimeError: it ended with a status not allowed; with the end of its output.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        began = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=cwd, env=environment(), stdout=output, stderr=subprocess.STDOUT
        )
        memory = _Memory(process.pid)
        memory.start()
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        memory.stop()
        output.seek(0)
        text = output.read()
    if process.returncode not in allowed:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{text[-3000:]}")
    return Measured(
        status=process.returncode,
        wall_seconds=wall,
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        peak_rss_mib=max(memory.peak_mib, usage.ru_maxrss / 1024),
        output=text,
    )


def work(python: Path, worker: str, **spec: Any) -> dict[str, float]:
    """Run one of the workers under an interpreter and return what it measured of itself."""
    done = measure([str(python), str(WORKERS / worker), json.dumps(spec)])
    result: dict[str, float] = json.loads(done.output.strip().splitlines()[-1])
    return result


@cache
def msprobe_bin() -> Path | None:
    """Where msprobe's own environment keeps its programs; None, with a word about it, where there is none."""
    home = Path(os.environ.get("TRUEUP_MSPROBE_VENV", ROOT / ".cache" / "msprobe-venv"))
    if (home / "bin" / "msprobe").exists():
        return home / "bin"
    print("msprobe is not set up, its column stays empty: benchmarks/setup_msprobe.sh makes its environment")
    return None


def environment() -> dict[str, str]:
    """What programs run in: the repository's own packages are found."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


class _Memory(threading.Thread):
    """Samples the memory of a process and its descendants until stopped."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.peak_mib = 0.0
        self._pid = pid
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(_SAMPLING_SECONDS):
            try:
                root = psutil.Process(self._pid)
                family = [root, *root.children(recursive=True)]
                total = sum(member.memory_info().rss for member in family)
            except psutil.Error:
                continue
            self.peak_mib = max(self.peak_mib, total / 2**20)

    def stop(self) -> None:
        """End sampling."""
        self._over.set()
        self.join()
