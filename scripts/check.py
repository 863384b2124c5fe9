"""Static checks, and with ``--test`` the whole test suite: what CI runs. Stops at the first that fails."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = sys.executable
BIN = Path(PYTHON).parent

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
        workers = ["-n", "2"] if (os.cpu_count() or 1) > 1 else []
        command = [PYTHON, "-m", "pytest", *workers, "--durations=10"]
        return subprocess.run(command, cwd=ROOT, check=False).returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
