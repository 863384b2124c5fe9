"""Capture never changes a MindSpore run: losses, gradients and weights are the same bits with and without."""

from __future__ import annotations

from pathlib import Path

import pytest

import trueup
from tests.adapters.mindspore.loops import LOOPS, STEPS, finite
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
        assert actual == expected, (level, task)
        trace = Trace(path)
        assert list(trace.steps()) == list(range(STEPS))
        assert trace.rank_facts(0)["num_failures"] == 0, trace.rank_facts(0)["failures"]


def test_the_check_can_fail() -> None:
    losses, gradients, weights = LOOPS["classic_optimizer"]()
    changed = bytes([weights[3][0] ^ 1]) + weights[3][1:]
    assert (losses, gradients, [*weights[:3], changed, *weights[4:]]) != LOOPS["classic_optimizer"]()
