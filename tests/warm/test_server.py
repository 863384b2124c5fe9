"""A program in a fork finds what it would find in a new Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import trueup
from tests.warm import COLD, warm_python

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


def test_a_hash_seed_of_its_own_holds_in_a_fork_and_another_in_a_new_python() -> None:
    program = "print(hash('word'))"

    def answer(python: str, seed: str) -> str:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": seed}
        return subprocess.check_output([python, "-c", program], env=environment, text=True)

    with warm_python(settings={"PYTHONHASHSEED": "3"}) as python:
        assert answer(python, "3") == answer(COLD, "3") != answer(python, "4") == answer(COLD, "4")
