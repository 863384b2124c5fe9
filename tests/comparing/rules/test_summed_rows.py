"""Gradients that are sums over rows, a little beyond measured noise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.comparing.rules.judging import step_of
from tests.comparing.traces import Recorder
from trueup.comparing.judgement import DIFFERENT, WITHIN, Judgement
from trueup.comparing.noise import StepNoise
from trueup.comparing.rules.summed_rows import RULE

ROWS, WIDTH = 64, 16


def status_of(folder: Path, *, error: float, score: float, arrives: float = 1e-7, agrees: bool = True) -> int:
    """The verdict over a bias whose gradient is off by ``error``, and what arrived by ``arrives``, both
    relative; it is ``score`` times what is allowed."""
    arrived = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)
    sides = [Recorder(), Recorder()]
    for made in sides:
        made.record(made.call("module", "a"), "backward", "output.0", arrived)
        made.record(made.call("parameter", "a.bias"), "param_grad", "local", arrived.sum(0))
    at = np.zeros(2)
    context, metrics = step_of(folder, *sides, noise=StepNoise(repeat=at, perturbed=at, gain=at, bias=at))
    gradient = context.rows.phase_is("param_grad")
    metrics.difference[:] = np.where(gradient, error, arrives) * metrics.norm
    judgement = replace(
        Judgement.undecided(metrics.difference),
        status=np.where(gradient | (not agrees), DIFFERENT, WITHIN),
        score=np.where(gradient, score, 0.5),
    )
    return int(RULE.apply(context, metrics, judgement).status[gradient][0])


@pytest.mark.parametrize(
    ("case", "status"),
    [
        ({"error": 5e-7, "score": 1.4}, WITHIN),
        ({"error": 1e-5, "score": 1.4}, DIFFERENT),
        ({"error": 5e-7, "score": 2.1}, DIFFERENT),
        ({"error": 5e-7, "score": 1.4, "arrives": 1e-8}, DIFFERENT),
        ({"error": 5e-7, "score": 1.4, "agrees": False}, DIFFERENT),
    ],
    ids=[
        "alike in all rows",
        "more than all rows make",
        "far beyond noise",
        "less arrives",
        "what arrives differs",
    ],
)
def test_what_arrived_explains_a_sum_over_rows(case: dict[str, float], status: int, tmp_path: Path) -> None:
    """The norms of the two are about the same here, so that 64 rows leave up to 8 times what arrived."""
    assert status_of(tmp_path, **case) == status  # type: ignore[arg-type]


def test_the_bound_holds_for_any_errors() -> None:
    draw = np.random.default_rng(1)
    for alike in (0.0, 0.5, 1.0):
        error = alike * draw.standard_normal(WIDTH) + (1 - alike) * draw.standard_normal((ROWS, WIDTH))
        error = np.broadcast_to(error, (ROWS, WIDTH))
        assert np.linalg.norm(error.sum(0)) <= np.sqrt(ROWS) * np.linalg.norm(error) * (1 + 1e-12)
