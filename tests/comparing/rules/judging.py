"""Steps of real comparisons, as the rules are given them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.comparing.traces import Recorder
from trueup.comparing import rules, run
from trueup.comparing.history import History
from trueup.comparing.inflow import Inflow
from trueup.comparing.judgement import Judgement
from trueup.comparing.metrics import Metrics, measure
from trueup.comparing.noise import StepNoise
from trueup.comparing.rows import rows_from_match
from trueup.comparing.rules import StepContext
from trueup.comparing.tolerance import rounding_bound
from trueup.matching import match_step

Step = tuple[StepContext, Metrics]


def step_of(
    folder: Path, target: Recorder, reference: Recorder, noise: StepNoise | None = None
) -> tuple[StepContext, Metrics]:
    """The first step of two recorded runs."""
    sides = [made.write(folder / name).read(0, 0) for name, made in (("t", target), ("r", reference))]
    rows = rows_from_match(sides[0], sides[1], match_step(sides[0], sides[1]))
    metrics = measure(rows)
    context = StepContext(
        rows=rows,
        rounding=rounding_bound(rows, metrics, 1.0),
        noise=noise,
        inflow=Inflow(rows),
        history=History(),
        step=0,
        factor=1.0,
    )
    return context, metrics


@contextmanager
def steps_seen() -> Iterator[list[Step]]:
    """Collects what is judged while comparisons run."""
    seen: list[Step] = []

    def judge_step(context: StepContext, metrics: Metrics) -> Judgement:
        seen.append((context, metrics))
        return rules.judge_step(context, metrics)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "judge_step", judge_step)
        yield seen
