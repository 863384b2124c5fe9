"""A run whose updates nobody saw is not one whose parameters are in no optimizer; NaN tells no dtype."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.comparing.traces import Recorder
from tests.diagnosing.made_steps import context_of, drawn, gradients, run, step
from trueup.comparing.captured import captured_alike
from trueup.diagnosing.stages.optimizer import OptimizerStage
from trueup.diagnosing.update_rule import precision_of
from trueup.store import StepView
from trueup.store.view import UPDATED, WEIGHT
from trueup.types.codes import StagesCode as Stages

W = drawn(0)
STEPPED = {"w": {**gradients(1), UPDATED: W - 0.1}}


@pytest.mark.parametrize(
    ("target", "options", "found"),
    [
        ({"w": {WEIGHT: W}}, {"optimizer": True}, []),
        ({"w": gradients(1)}, {"optimizer": False}, []),
        ({"w": gradients(1)}, {"optimizer": True}, [Stages.MOVED]),
    ],
    ids=["ended before its backward", "not captured", "has gradients and moves nothing"],
)
def test_what_is_said_of_a_run_without_an_update(
    target: dict[str, dict[tuple[str, str], np.ndarray]],
    options: dict[str, bool],
    found: list[Stages],
    tmp_path: Path,
) -> None:
    sides = (
        run(tmp_path / "t", step(target), options=options),
        run(tmp_path / "r", step(STEPPED), options={"optimizer": True}),
    )
    findings = OptimizerStage().check(context_of(*sides)).findings
    assert [one.headline.code for one in findings] == found


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.full(4096, np.nan), "float32"),
        (np.where(np.arange(4096) % 2, np.inf, -np.inf), "float32"),
        (np.where(np.arange(4096) % 2, np.nan, 0.1), "float32"),
        (np.where(np.arange(4096) % 2, np.nan, 0.5), "bfloat16"),
    ],
    ids=["NaN", "infinities", "NaN among float32", "NaN among bfloat16"],
)
def test_numbers_that_are_not_finite_fit_any_dtype(values: np.ndarray, dtype: str, tmp_path: Path) -> None:
    out = Recorder()
    out.record(out.call("parameter", "w"), "param", "value", values.astype(np.float32))
    trace = out.write(tmp_path / "run", values=True)
    assert precision_of(StepView(trace, trace.read(0, 0)), 0) == dtype


@pytest.mark.parametrize("part", ["optimizer", "gradients", "backward", "collectives"])
def test_a_part_that_one_side_was_not_asked_for_is_no_capture_alike(part: str) -> None:
    on = {"level": "L0", "task": "statistics", part: True}
    assert captured_alike({"options": on}, {"options": {**on}})
    assert not captured_alike({"options": on}, {"options": {**on, part: False}})
