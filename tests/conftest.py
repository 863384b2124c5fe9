"""Tests that import MindSpore are collected only where it is: in its own environment (``make mindspore``)."""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.scheduling import ByFile, unit_of
from tests.warm import COLD, OF_TRUEUP, TRUEUP, WARM, warm_python

# Tests run side by side: a thread for each core in each of them would wait for the others' most of the time.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("POLARS_MAX_THREADS", "1")

# Triton decides at its first import: here its kernels run in its interpreter, on the CPU.
os.environ.setdefault("TRITON_INTERPRET", "1")

# A busy machine is no failure: hypothesis judges what a test computes, not how long examples take.
settings.register_profile("trueup", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("trueup")

_OF_MINDSPORE = [
    "adapters/mindspore/*",
    "trainer/mindspore/*",
    "matching/test_torch_and_mindspore.py",
    "matching/test_mindspore_implementations.py",
    "weights/test_mindspore.py",
]
collect_ignore_glob = [] if find_spec("mindspore") is not None else _OF_MINDSPORE


def pytest_configure(config: pytest.Config) -> None:
    """Programs that tests start have the frameworks at hand; MindSpore's threads do not spin in turns."""
    if find_spec("mindspore") is not None:
        import mindspore

        mindspore.set_device("CPU")
        mindspore.runtime.launch_blocking()
    if WARM not in os.environ:
        closing = ExitStack()
        os.environ[WARM] = closing.enter_context(warm_python(COLD, *OF_TRUEUP, *TRUEUP))
        config.add_cleanup(closing.close)
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        sys.executable = os.environ[WARM]


LONG = {"slow", "distributed", "browser", "msprobe"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that share something run one after the other; those with most that is long begin."""
    long = Counter(
        unit_of(item.nodeid) for item in items if LONG & {mark.name for mark in item.iter_markers()}
    )
    items.sort(key=lambda item: -long[unit_of(item.nodeid)])


def pytest_collection_finish() -> None:
    """What stands now stays: whoever goes through all objects leaves it out."""
    gc.collect()
    gc.freeze()


MOST_OPEN = 120
"""files that a test process has open: more are of traces that nobody reads any more"""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Nor does anyone go through what the tests before this one imported and keep: a capture looks twice for
    copies of its weights, 20 ms each among the 200,000 objects that a file of diagnoses gathers.

    What a file's tests shared is then left out too, and stays where it holds itself: behind the file all is
    gone through once (a third of a second) if much has stayed.
    """
    result = yield
    if (nextitem is None or nextitem.path != item.path) and _num_open() > MOST_OPEN:
        gc.unfreeze()
    gc.collect()
    gc.freeze()
    return result


def _num_open() -> float:
    try:
        return len(os.listdir("/proc/self/fd"))
    except FileNotFoundError:
        return float("inf")


def pytest_sessionfinish() -> None:
    """Freed in order, as without it."""
    gc.unfreeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file's tests run in one worker, where what they share is made once."""
    return ByFile(config, log)


@pytest.fixture(autouse=True)
def no_layout_declared() -> Iterator[None]:
    """What a test's program declares of its processes does not reach the next test's."""
    yield
    declared = sys.modules.get("trueup.capture.declared")
    if declared is not None:
        declared.withdraw_layout()


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs start in a new Python, as they do outside of tests."""
    monkeypatch.setattr(sys, "executable", COLD)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was left out, or a green run looks whole."""
    if collect_ignore_glob:
        left_out = ", ".join(collect_ignore_glob)
        terminalreporter.write_line(f"{left_out} left out: no MindSpore in this environment")
