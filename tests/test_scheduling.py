"""Tests that share something run in one worker: xdist's own groups no longer did so, and nothing said it."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.scheduling import ROOT, unit_of

FILES = ("tests/wording/test_reason.py", "tests/types/test_option.py", "tests/types/test_site.py")


def test_a_group_is_of_the_file_or_of_the_function_that_is_marked() -> None:
    assert unit_of("tests/trainer/test_layouts.py::test_anything[a@b::c]") == "worlds"
    assert unit_of("tests/diagnosing/test_whose.py::test_two_processes_are_diagnosed[a]") == "worlds"
    assert unit_of("tests/diagnosing/test_whose.py::test_another") == "tests/diagnosing/test_whose.py"


def test_every_group_that_pytest_sees_is_read(request: pytest.FixtureRequest) -> None:
    for item in request.session.items:
        for mark in item.iter_markers("xdist_group"):
            assert unit_of(item.nodeid) == mark.args[0]


def test_a_file_stays_in_one_worker() -> None:
    words = [sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider", "-n", "2", *FILES]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout
    pairs = set(re.findall(r"\[(gw\d)\] \[ *\d+%\] PASSED (\S+?)::", done.stdout))
    assert sorted(file for _, file in pairs) == sorted(FILES)
    assert {worker for worker, _ in pairs} == {"gw0", "gw1"}
