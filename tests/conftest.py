"""Tests that import MindSpore are collected only where it is: in its own environment (``make mindspore``)."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

# Tests run side by side: a thread for each core in each of them would wait for the others' most of the time.
os.environ.setdefault("OMP_NUM_THREADS", "1")

_OF_MINDSPORE = [
    "adapters/mindspore/*",
    "matching/test_torch_and_mindspore.py",
    "matching/test_mindspore_implementations.py",
]
collect_ignore_glob = [] if find_spec("mindspore") is not None else _OF_MINDSPORE


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was left out, or a green run looks whole."""
    if collect_ignore_glob:
        left_out = ", ".join(collect_ignore_glob)
        terminalreporter.write_line(f"{left_out} left out: no MindSpore in this environment")
