"""A program in a fork finds what it would find in a new Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import trueup

SHOWN = """
import sys
print([name for name in ("trueup", "torch") if name in sys.modules])
import trueup
print(trueup.__file__)
"""


def said(program: str, **more: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | more | {"OMP_NUM_THREADS": "1"},
    )
    return done.stdout.splitlines()


@pytest.mark.torch
def test_nothing_is_imported_before_the_program_does_so() -> None:
    assert said(SHOWN) == ["[]", str(trueup.__file__)]


@pytest.mark.torch
def test_another_package_of_the_name_ahead_on_the_path_is_the_one_imported(tmp_path: Path) -> None:
    other = tmp_path / "trueup" / "__init__.py"
    other.parent.mkdir()
    other.write_text("")
    assert said(SHOWN, PYTHONPATH=str(tmp_path)) == ["[]", str(other)]
