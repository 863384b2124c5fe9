"""A common factor below the noise in size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.comparing.traces import Recorder
from trueup.comparing.coherence import ROUNDED, judge_coherence
from trueup.comparing.judge import judge
from trueup.comparing.judgement import DIFFERENT, WITHIN
from trueup.comparing.metrics import VALUES, measure
from trueup.comparing.noise import StepNoise
from trueup.comparing.rows import rows_from_match
from trueup.matching import match_step


@pytest.mark.parametrize(
    ("factor", "status"),
    [(1 - 0.8 * ROUNDED, WITHIN), (1 - 3 * ROUNDED, DIFFERENT)],
    ids=["of a rounded constant", "larger"],
)
def test_a_factor_is_judged_against_reruns_and_never_below_a_rounded_constant(
    factor: float, status: int, tmp_path: Path
) -> None:
    reference = np.random.default_rng(0).standard_normal((64, 64))
    sides = []
    for name, values in (("target", reference * factor), ("reference", reference)):
        made = Recorder()
        made.record(made.call("parameter", "a.weight"), "param_grad", "clipped", values)
        sides.append(made.write(tmp_path / name).read(0, 0))
    rows = rows_from_match(*sides, match_step(*sides))
    metrics = measure(rows)
    metrics.evidence[:] = VALUES
    metrics.details["scale"][:] = factor
    metrics.difference[:] = abs(factor - 1) * metrics.norm
    verdict = judge(rows, metrics, np.full(len(rows), 1e-4) * metrics.norm)
    quiet = np.full(len(rows), 1e-9)
    noise = StepNoise(repeat=0 * quiet, perturbed=1e-6 + quiet, gain=1 + quiet, bias=quiet)
    judge_coherence(rows, metrics, noise, verdict, 1.0)
    assert verdict.status.tolist() == [status]
