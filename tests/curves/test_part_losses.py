"""Parts of the loss that logs print by themselves: read, held to the standard's limits, a finding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.curves.simulating import autoregressive
from trueup.curves.comparison import CurveComparison, compare_curves
from trueup.curves.reading import read_curve
from trueup.types.arrays import Floats
from trueup.types.codes import CurvesCode as Code
from trueup.types.status import Outcome

STEPS = 400


def _log(path: Path, loss: Floats, part: Floats, kind: str) -> Path:
    lines = []
    for at, (one, other) in enumerate(zip(loss, part, strict=True), 1):
        if kind == "megatron":
            lines.append(
                f" [2026-01-02 03:04:05] iteration {at:8d}/{STEPS:8d} | consumed samples: {at * 8:12d} | "
                f"elapsed time per iteration (ms): 100.0 | learning rate: 1.0E-04 | global batch size: 8 | "
                f"lm loss: {one:.6E} | load_balancing_loss: {other:.6E} | loss scale: 1.0 | "
                "grad norm: 1.000 | number of skipped iterations:   0 | number of nan iterations:   0 |"
            )
        else:
            lines.append(
                f"2026-01-02 03:04:05,678 - INFO - {{ Epoch:[  1/  1], step:[{at:5d}/{STEPS:5d}], "
                f"loss: {one + 0.01 * other:5.6f}, lm_loss: {one:5.6f}, load_balancing_loss: {other:5.6f}, "
                "per_step_time: 100ms, lr: 1.0e-04, overflow cond: False, loss_scale: 1.0, global_norm: [1.0]"
            )
    path.write_text("\n".join(lines) + "\n")
    return path


def _compared(folder: Path, kind: str, change: Floats | float, seed: int = 0) -> CurveComparison:
    random = np.random.default_rng(seed)
    at = np.arange(STEPS)
    trend, part = 2 + 8 * (1 + at / 40) ** -0.5, 1.01 + 0.3 * np.exp(-at / 30)
    grown = np.minimum(1.0, at / 20)  # both begin with the same weights

    def noise(size: float) -> Floats:
        return grown * autoregressive(STEPS, 0.3, size, random)

    logs = [
        _log(folder / f"{name}.log", trend + noise(0.002), factor * part + noise(0.002), kind)
        for name, factor in (("t", 1 + np.asarray(change)), ("r", np.ones(STEPS)))
    ]
    target, reference = (read_curve(log) for log in logs)
    return compare_curves(target, [reference])


@pytest.mark.parametrize("kind", ["megatron", "mindformers"])
@pytest.mark.parametrize(
    ("change", "step"),
    [(1.0, 1), (-0.5, 1), (0.02, 1), (0.03 * np.minimum(1, np.arange(STEPS) / 50), None)],
    ids=["twice", "half", "2 %", "grows"],
)
def test_a_part_that_differs_is_a_finding(
    kind: str, change: Floats | float, step: int | None, tmp_path: Path
) -> None:
    found = _compared(tmp_path, kind, change)
    said = [one for one in (found.judgement.headline, *found.judgement.remarks) if one.code is Code.PART_LOSS]
    assert [one.facts["step"] for one in said] == [step]
    assert found.judgement.outcome is not Outcome.AGREE
    if found.judgement.headline.code is Code.PART_LOSS:
        assert Code.CHECK_ROUTER in {one.code for one in found.judgement.advice}


@pytest.mark.parametrize("kind", ["megatron", "mindformers"])
@pytest.mark.parametrize("seed", range(3))
def test_noise_in_a_part_is_none(kind: str, seed: int, tmp_path: Path) -> None:
    """Nor half of the standard's limits."""
    for change in (0.0, 0.003, 0.006 * np.minimum(1, np.arange(STEPS) / 50)):
        assert _compared(tmp_path, kind, change, seed).evidence.part_losses == ()
