"""Runs a fixed list of tests with other versions than the pinned ones, in an environment made for them.

    python scripts/check_versions.py --python python3.10 torch==2.4.0 numpy==1.24.0 polars==1.33.0
    python scripts/check_versions.py torch==2.6.0 transformers==4.49.0

What is not named is the newest that resolves. PyPI's torch brings its CUDA packages, about 5 GB. Not part of
CI. Warnings are no failures here: older packages warn of what newer ones changed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ["pytest>=8.3", "pytest-timeout>=2.3", "pytest-xdist>=3.6", "hypothesis>=6.100", "openpyxl>=3.1"]
TESTS = [
    "tests/adapters/torch/test_bit_identity.py",
    "tests/adapters/torch/test_api_names.py",
    "tests/adapters/torch/test_values.py",
    "tests/capture",
    "tests/store",
    "tests/comparing/test_verdict.py",
    "tests/curves",
    "tests/diagnosing/test_replay.py",
]


def main() -> int:
    """Exit status of pytest, 1 where the versions do not install or the command line does not start."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("versions", nargs="+", help="requirements, as for pip")
    parser.add_argument("--python", default=sys.executable, help="the interpreter; default: this one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([given.python, "-m", "venv", folder], check=True)
        python = str(Path(folder, "bin", "python"))
        install = [python, "-m", "pip", "install", "-q", "--no-cache-dir"]
        wanted = [f"{ROOT}[torch,curves]", *TOOLS, *given.versions]
        if subprocess.run([*install, *wanted]).returncode:
            return 1
        subprocess.run([python, "-m", "pip", "list"])
        if subprocess.run([python, "-m", "trueup", "--help"], stdout=subprocess.DEVNULL).returncode:
            return 1
        tests = [python, "-m", "pytest", "-n", "0", "-W", "default", *TESTS]
        return subprocess.run(tests, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode


if __name__ == "__main__":
    sys.exit(main())
