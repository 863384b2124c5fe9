"""Capture never changes a run: losses, gradients, weights and random state are the same bits with it on and
off."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import trueup
from tests.adapters.torch.loops import LOOPS, Result
from trueup.store import Trace

pytestmark = pytest.mark.torch

MODES = [("L0", "statistics"), ("L1", "statistics"), ("mix", "statistics"), ("mix", "tensor")]


@pytest.mark.parametrize("loop", sorted(LOOPS))
@pytest.mark.parametrize(("level", "task"), MODES)
def test_same_bits_with_capture_on(loop: str, level: str, task: str, tmp_path: Path) -> None:
    expected = LOOPS[loop]()
    with trueup.Tracer(tmp_path / "run", level=level, task=task, steps="0-2"):
        actual = LOOPS[loop]()
    assert_same_bits(actual, expected)
    trace = Trace(tmp_path / "run")
    assert list(trace.steps()) == [0, 1, 2]
    assert trace.rank_facts(0)["num_failures"] == 0, trace.rank_facts(0)["failures"]


def test_the_check_can_fail() -> None:
    losses, gradients, weights, state = LOOPS["plain"]()
    weights[3].view(-1)[0] += 1e-7
    with pytest.raises(AssertionError):
        assert_same_bits((losses, gradients, weights, state), LOOPS["plain"]())


def assert_same_bits(actual: Result, expected: Result) -> None:
    assert actual[0] == expected[0]
    assert len(actual[1]) == len(expected[1])
    assert all(torch.equal(a, e) for a, e in zip(actual[1], expected[1], strict=True))
    assert all(torch.equal(a, e) for a, e in zip(actual[2], expected[2], strict=True))
    assert torch.equal(actual[3], expected[3])
