"""Programs that differ, compared in steps that hold no update: open, since an update is not seen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.comparing.test_program_code import HELPERS, side
from tests.comparing.traces import Recorder
from trueup.comparing.run import compare
from trueup.types.codes import NextCode, VerdictCode
from trueup.types.status import Outcome
from trueup.types.verdict import Verdict

STILL, MOVED = (1.0, 1.0), (1.0, 0.9)
"""the weight at the beginning of each step"""


def compared(
    folder: Path,
    weights: Sequence[float],
    *,
    divisor: str = "3",
    gradients: bool = True,
    update: bool = False,
) -> Verdict:
    """Two runs with the same numbers, whose programs divide by 2 and by another number."""
    for name, by in {"target": divisor, "reference": "2"}.items():
        for step, value in enumerate(weights):
            out, x = Recorder(), np.full(4, value, np.float32)
            layer = out.call("module", "layer", out.call("module", "", type_="Net"), type_="Layer")
            weight = out.call("parameter", "layer.weight", layer)
            out.record(weight, "param", "value", x)
            out.record(layer, "forward", "output.0", np.ones(4, np.float32))
            if gradients:
                out.record(weight, "param_grad", "local", x)
            if update:
                out.record(weight, "optimizer", "param", x)
            out.write(folder / name, step=step)
        program = side(folder / f"{name}-program", helpers=HELPERS.replace("/ 2", f"/ {by}"))
        (program / "code").rename(folder / name / "code")
    return compare(folder / "target", folder / "reference").verdict


def test_what_may_differ_at_the_update_is_open_before_it(tmp_path: Path) -> None:
    verdict = compared(tmp_path, STILL)
    assert verdict.outcome is Outcome.UNDECIDED
    assert verdict.headline.code is VerdictCode.BEFORE_UPDATE
    assert verdict.headline.place("function") == "normalised"
    assert verdict.headline.number("steps") == 2
    assert verdict.next is not None
    assert verdict.next.code is NextCode.CAPTURE_UPDATE


@pytest.mark.parametrize(
    ("weights", "how"),
    [
        (STILL, {"divisor": "2"}),  # the same program
        (STILL, {"gradients": False}),  # no training
        (STILL, {"update": True}),  # a learning rate of 0
        (MOVED, {}),  # an update that no optimizer of PyTorch makes
        (STILL[:1], {}),  # one step, which may be all that was asked for
    ],
)
def test_anything_else_agrees(weights: Sequence[float], how: dict[str, Any], tmp_path: Path) -> None:
    assert compared(tmp_path, weights, **how).outcome is Outcome.AGREE
