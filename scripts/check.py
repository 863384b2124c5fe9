"""Static checks, and with ``--test`` the whole test suite: what CI runs. Stops at the first that fails.

Tests marked ``mindspore`` run in an environment of their own: MindSpore needs an older numpy. They run beside
the others, so that no core waits for the last of either.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = sys.executable
BIN = Path(PYTHON).parent
MINDSPORE = ROOT / ".venv-mindspore" / "bin" / "python"

QUICK = [
    ("format", [str(BIN / "ruff"), "format", "--check", "."]),
    ("lint", [str(BIN / "ruff"), "check", "."]),
    ("layers", [str(BIN / "lint-imports"), "--no-logo"]),
    ("wording", [PYTHON, str(ROOT / "scripts" / "check_wording.py")]),
]
ROOM = 10 * 2**30
TYPES = ("types", [PYTHON, "-m", "mypy"])  # takes a minute: beside all others
COMPILED = ("compiled", [PYTHON, str(ROOT / "scripts" / "compile_tests.py")])


def main() -> int:
    """Run the checks in order; returns the first exit status that is not 0."""
    with_tests = "--test" in sys.argv[1:]
    types, compiled = Check(*TYPES), Check(*COMPILED) if with_tests else None
    for name, command in QUICK:
        if status := Check(name, command).status():
            for one in filter(None, (types, compiled)):
                one.stop()
            return status
    if compiled is None:
        return types.status()
    compiled.status()
    cores = min(os.cpu_count() or 1, 8)
    with ThreadPoolExecutor(1) as beside:
        mindspore = beside.submit(_mindspore_tests, max(1, cores // 2))
        tests, _ = _pytest(PYTHON, cores + (cores > 1), "-m", "not mindspore")
        status = types.status() or tests
        of_mindspore, said = mindspore.result()
    print(said)
    return status or of_mindspore


class Check:
    """A static check that has begun, with nothing to read from it unless it fails."""

    def __init__(self, name: str, command: list[str]) -> None:
        self._name = name
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def status(self) -> int:
        """Its exit status, once it has ended; says how it went."""
        said, _ = self._process.communicate()
        failed = self._process.returncode != 0
        print(f"{self._name:8} {'FAILED' if failed else 'ok'}", flush=True)
        if failed:
            print(said)
        return self._process.returncode

    def stop(self) -> None:
        """Another has failed: what this one says is not waited for."""
        self._process.kill()
        self._process.communicate()


def _pytest(python: str, workers: int, *words: str, aside: bool = False) -> tuple[int, str]:
    """Exit status, and what it says if it runs ``aside``; else that is seen at once."""
    command = [python, "-m", "pytest", "-n", str(workers), "--durations=10", *words]
    compiled = Path(tempfile.gettempdir()) / "trueup-inductor"  # a minute of g++, if nothing was kept
    with tempfile.TemporaryDirectory(prefix="trueup-tests-", dir=_memory()) as folder:
        environment = {
            "TORCHINDUCTOR_CACHE_DIR": str(compiled),
            **os.environ,
            "TMPDIR": folder,
            "PYTHONDONTWRITEBYTECODE": "",  # a thousand programs would compile the source each for itself
        }
        kept = subprocess.PIPE if aside else None
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            check=False,
            text=True,
            stdout=kept,
            stderr=kept and subprocess.STDOUT,
        )
        return done.returncode, done.stdout or ""


def _memory() -> str | None:
    """A folder in memory where there is room: the tests write and delete a hundred thousand files."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or shutil.disk_usage(memory).free < ROOM:
        return None
    return None if os.statvfs(memory).f_flag & os.ST_NOEXEC else str(memory)


def _mindspore_tests(workers: int) -> tuple[int, str]:
    """Those of the files that have the marker; in CI it is a failure that MindSpore is not there."""
    if not _has_mindspore():
        in_ci = os.environ.get("CI") == "true"
        verdict, home = "FAILED" if in_ci else "skipped", MINDSPORE.parent.parent.name
        return int(in_ci), f"tests with MindSpore {verdict}: {home} has none; try: make mindspore"
    files = [
        path for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.mindspore" in path.read_text()
    ]
    names = [str(path.relative_to(ROOT)) for path in files]
    return _pytest(str(MINDSPORE), workers, "-m", "mindspore", *names, aside=True)


def _has_mindspore() -> bool:
    program = "import importlib.util as u, sys; sys.exit(u.find_spec('mindspore') is None)"
    return MINDSPORE.exists() and subprocess.run([MINDSPORE, "-c", program], check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
