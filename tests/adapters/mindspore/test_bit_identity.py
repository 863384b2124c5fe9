"""Capture never changes a MindSpore run: losses, gradients and weights are the same bits with and without."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import trueup
from tests.adapters.mindspore.loops import LOOPS, STEPS, Result, finite
from trueup.store import Trace

pytestmark = pytest.mark.mindspore

MODES = [("L0", "statistics"), ("L1", "statistics"), ("mix", "tensor")]


@pytest.mark.parametrize("loop", sorted(LOOPS))
def test_same_bits_with_capture_on(loop: str, tmp_path: Path) -> None:
    expected = LOOPS[loop]()
    assert finite(expected)
    for level, task in MODES:
        path = tmp_path / f"{level}-{task}"
        with trueup.Tracer(path, framework="mindspore", level=level, task=task, steps="0-2"):
            actual = LOOPS[loop]()
        assert differences(actual, expected) == [], (level, task)
        trace = Trace(path)
        assert list(trace.steps()) == list(range(STEPS))
        assert trace.rank_facts(0)["num_failures"] == 0, trace.rank_facts(0)["failures"]


def test_the_check_can_fail() -> None:
    losses, gradients, weights = LOOPS["classic_optimizer"]()
    changed = bytes([weights[3][0] ^ 1]) + weights[3][1:]
    again = losses, gradients, [*weights[:3], changed, *weights[4:]]
    assert [line.split(":")[0] for line in differences(again, LOOPS["classic_optimizer"]())] == ["weights 3"]


def differences(actual: Result, expected: Result) -> list[str]:
    """A line for each array whose bits are others: how many numbers, and by how much at most."""
    lines = []
    for what, some, others in zip(("losses", "gradients", "weights"), actual, expected, strict=True):
        assert len(some) == len(others)
        for at, (one, other) in enumerate(zip(some, others, strict=True)):
            if one != other:
                values = [np.frombuffer(data, np.float32) for data in (one, other)]
                num, most = np.sum(values[0] != values[1]), np.abs(values[0] - values[1]).max()
                lines.append(f"{what} {at}: {num} of {values[0].size} numbers, {most:.3g} at most")
    return lines
