"""What a module makes of integers alone owes nothing to a coarse dtype that stands before it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.comparing.traces import Recorder
from trueup.comparing.run import compare
from trueup.types.status import Outcome

RNG = np.random.default_rng(3)
HIDDEN, ANGLES, NOISE = (RNG.normal(size=size) for size in ((4, 20, 48), (4, 20, 6), (4, 20, 6)))


def run(folder: Path, *, error: float, last: int, coarse: bool = False, weight: str = "") -> Path:
    """An embedding in float16, then cosines in float32 of positions up to ``last`` (and of the embedding);
    ``weight``: one that the module has."""
    out = Recorder()
    ids = np.arange(80, dtype=np.int64).reshape(4, 20)
    if weight:
        out.record(out.call("parameter", weight), "param", "value", HIDDEN[0].astype(np.float32))
    embed, rope = out.call("module", "embed"), out.call("module", "rope")
    out.record(embed, "forward", "input.0", ids)
    out.record(embed, "forward", "output.0", HIDDEN.astype(np.float16))
    out.record(rope, "forward", "input.0", np.linspace(0, last, 20).astype(np.int64))
    if coarse:
        out.record(rope, "forward", "input.1", HIDDEN.astype(np.float16))
    out.record(rope, "forward", "output.0", (ANGLES * (1 + error * NOISE)).astype(np.float32))
    out.write(folder, values=True)
    return folder


@pytest.mark.parametrize(
    ("error", "more", "outcome"),
    [
        (1e-4, {"last": 19}, Outcome.DIFFER),
        (1e-7, {"last": 19}, Outcome.AGREE),
        (1e-4, {"last": 100_000}, Outcome.AGREE),
        (1e-4, {"last": 19, "coarse": True}, Outcome.AGREE),
        (1e-4, {"last": 19, "weight": "rope.inner.weight"}, Outcome.AGREE),
        (1e-4, {"last": 19, "weight": "other.weight"}, Outcome.DIFFER),
    ],
    ids=[
        "coarser than float32",
        "a rounding",
        "far",
        "a coarse input",
        "a weight inside",
        "another's weight",
    ],
)
def test_cosines_of_positions(error: float, more: Any, outcome: Outcome, tmp_path: Path) -> None:
    sides = [run(tmp_path / name, error=one, **more) for name, one in (("target", error), ("reference", 0.0))]
    assert compare(*sides).verdict.outcome is outcome
