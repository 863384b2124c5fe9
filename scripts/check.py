"""Static checks, and with ``--test`` the whole test suite: what CI runs. Stops at the first that fails.

Tests marked ``mindspore`` run in an environment of their own: MindSpore needs an older numpy.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = sys.executable
BIN = Path(PYTHON).parent
MINDSPORE = ROOT / ".venv-mindspore" / "bin" / "python"

CHECKS = [
    ("format", [str(BIN / "ruff"), "format", "--check", "."]),
    ("lint", [str(BIN / "ruff"), "check", "."]),
    ("types", [PYTHON, "-m", "mypy"]),
    ("layers", [str(BIN / "lint-imports"), "--no-logo"]),
]


def main() -> int:
    """Run the checks in order; returns the first exit status that is not 0."""
    for name, command in CHECKS:
        began = time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        print(
            f"{name:8} {'ok' if done.returncode == 0 else 'FAILED'}  {time.perf_counter() - began:.1f} s",
            flush=True,
        )
        if done.returncode:
            print(done.stdout + done.stderr)
            return done.returncode
    if "--test" in sys.argv[1:]:
        return _pytest(PYTHON, "-m", "not mindspore") or _mindspore_tests()
    return 0


def _pytest(python: str, *words: str) -> int:
    cores = os.cpu_count() or 1  # one worker more: tests wait for the programs they start
    workers = ["-n", str(min(cores, 8) + 1), "--dist", "loadgroup"] if cores > 1 else []
    command = [python, "-m", "pytest", *workers, "--durations=10", *words]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def _mindspore_tests() -> int:
    """Those of the files that have the marker; in CI it is a failure that MindSpore is not there."""
    if not _has_mindspore():
        in_ci = os.environ.get("CI") == "true"
        verdict = "FAILED" if in_ci else "skipped"
        print(f"tests with MindSpore {verdict}: {MINDSPORE.parent.parent.name} has none; try: make mindspore")
        return int(in_ci)
    files = [
        path for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.mindspore" in path.read_text()
    ]
    return _pytest(str(MINDSPORE), "-m", "mindspore", *(str(path.relative_to(ROOT)) for path in files))


def _has_mindspore() -> bool:
    program = "import importlib.util as u, sys; sys.exit(u.find_spec('mindspore') is None)"
    return MINDSPORE.exists() and subprocess.run([MINDSPORE, "-c", program], check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
