"""A common factor below the noise in size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.comparing.rules.judging import step_of
from tests.comparing.traces import Recorder
from trueup.comparing.judgement import DIFFERENT, WITHIN, Judgement
from trueup.comparing.metrics import VALUES
from trueup.comparing.noise import StepNoise
from trueup.comparing.rules import within_bound
from trueup.comparing.rules.common_factor import RULE
from trueup.comparing.thresholds import FACTOR_ROUNDED


@pytest.mark.parametrize(
    ("factor", "status"),
    [(1 - 0.8 * FACTOR_ROUNDED, WITHIN), (1 - 3 * FACTOR_ROUNDED, DIFFERENT)],
    ids=["of a rounded constant", "larger"],
)
def test_a_factor_is_judged_against_reruns_and_never_below_a_rounded_constant(
    factor: float, status: int, tmp_path: Path
) -> None:
    reference = np.random.default_rng(0).standard_normal((64, 64))
    sides = [Recorder(), Recorder()]
    for made, values in zip(sides, (reference * factor, reference), strict=True):
        made.record(made.call("parameter", "a.weight"), "param_grad", "clipped", values)
    quiet = np.full(1, 1e-9)
    noise = StepNoise(repeat=0 * quiet, perturbed=1e-6 + quiet, gain=1 + quiet, bias=quiet)
    context, metrics = step_of(tmp_path, *sides, noise=noise)
    metrics.evidence[:] = VALUES
    metrics.details["scale"][:] = factor
    metrics.difference[:] = abs(factor - 1) * metrics.norm
    judgement = Judgement.undecided(metrics.difference)
    allowed = replace(judgement.bounds, total=np.full(1, 1e-4) * metrics.norm)
    judgement = within_bound.RULE.apply(context, metrics, replace(judgement, bounds=allowed))
    assert judgement.status.tolist() == [WITHIN]
    assert RULE.apply(context, metrics, judgement).status.tolist() == [status]
