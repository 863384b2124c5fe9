"""Every reader, given damaged files: it succeeds, or says which file is wrong."""

from __future__ import annotations

import random
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz.harness import problem_of
from tests.fuzz.mutations import MUTATIONS, mutated
from tests.fuzz.seeds import Seed
from trueup.cli.printing import error_line

_ROOT = Path(__file__).resolve().parents[2]


def test_200_damaged_files_are_read_or_refused() -> None:
    """``make fuzz`` runs 10,000."""
    command = [sys.executable, "-m", "tests.fuzz.harness", "--num", "200", "--seed", "1"]
    ran = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "200 inputs" in ran.stdout


def _raises(error: BaseException) -> Callable[[], int]:
    def status() -> int:
        raise error

    return status


def _prints(message: str, status: int = 2) -> Callable[[], int]:
    def printed() -> int:
        error_line(message)
        return status

    return printed


def _warns() -> int:
    warnings.warn("divide by zero", RuntimeWarning, stacklevel=1)
    return 0


@pytest.mark.parametrize(
    "read",
    [
        _raises(KeyError("other")),
        _raises(MemoryError()),
        _raises(BaseException("a panic of rust")),
        _prints("internal error in trueup: KeyError: 'other'"),
        _prints("something is wrong somewhere"),
        _prints("", status=97),
        _warns,
    ],
)
def test_the_harness_sees_what_is_handled_badly(read: Callable[[], int], tmp_path: Path) -> None:
    problem, _ = problem_of(Seed(reader="test", files=(), read=read), tmp_path / "data.json")
    assert problem


def test_a_clear_error_is_no_problem(tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    problem, _ = problem_of(Seed(reader="test", files=(), read=_prints(f"{file} is not JSON")), file)
    assert not problem


@pytest.mark.parametrize("data", [b"", b"1", b'{"a": [1, {"b": 2.5}]}\n{"c": null}\n', bytes(range(256))])
def test_mutations_take_any_content_and_come_again(data: bytes) -> None:
    for mutation in MUTATIONS:
        for number in range(20):
            assert isinstance(mutation(data, random.Random(number)), bytes)
    made = [mutated(data, random.Random(number)) for number in range(50)]
    assert made == [mutated(data, random.Random(number)) for number in range(50)]
    assert any(content != data for content, _ in made)
