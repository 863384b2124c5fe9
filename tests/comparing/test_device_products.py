"""TF32 and reduced-precision reductions widen what they touch, where both runs allow them on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.comparing.traces import Recorder
from trueup.comparing.options import CompareOptions
from trueup.comparing.run import compare
from trueup.types.status import Outcome

TF32 = {"allow_tf32": True}
REDUCED = {"allow_bf16_reduced_precision_reduction": True}


def run(error: float, at: str, *, device: str = "cuda:0", dtype: str = "float32") -> Recorder:
    """A norm, then a linear over 4096 terms; the output of one of the two is off."""
    out, draw = Recorder(), np.random.default_rng(0)
    for name, kind in (("ln", "LayerNorm"), ("fc", "Linear")):
        call = out.call("module", name, type_=kind)
        for slot in ("input.0", "output.0"):
            values = draw.standard_normal((8, 4096)).astype(np.float32)
            if name == at and slot == "output.0":
                values = values * (1 + error * draw.choice([-1, 1], values.shape)).astype(np.float32)
            out.record(call, "forward", slot, values)
            out.step.kinds[-1] = dtype, (8, 4096), device, None
    return out


def agrees(
    folder: Path, error: float, at: str, target: dict[str, Any], reference: dict[str, Any], **how: Any
) -> bool:
    run(error, at, **how).write(folder / "target", **target)
    run(0.0, at, **how).write(folder / "reference", **reference)
    found = compare(folder / "target", folder / "reference", options=CompareOptions())
    return found.verdict.outcome is not Outcome.DIFFER


@pytest.mark.parametrize(
    ("error", "at", "target", "reference", "how", "expected"),
    [
        (1e-3, "fc", TF32, TF32, {}, True),
        (4e-3, "fc", TF32, TF32, {}, False),  # more than TF32 makes
        (1e-3, "fc", TF32, {}, {}, False),  # one run alone computes in TF32: that is a difference
        (1e-3, "fc", {}, {}, {}, False),
        (1e-3, "fc", TF32, TF32, {"device": "cpu"}, False),  # the setting says nothing of a CPU
        (1e-4, "ln", TF32, TF32, {}, False),  # before the first product: an eps still shows
        (0.04, "fc", REDUCED, REDUCED, {"dtype": "bfloat16"}, True),
        (0.04, "fc", REDUCED, {}, {"dtype": "bfloat16"}, False),
        (0.04, "fc", {}, {}, {"dtype": "bfloat16"}, False),
        (0.1, "fc", REDUCED, REDUCED, {"dtype": "bfloat16"}, False),
        (1e-4, "fc", REDUCED, REDUCED, {}, False),  # nothing of float32
    ],
)  # fmt: skip
def test_what_both_allow_is_explained_and_no_more(
    tmp_path: Path,
    error: float,
    at: str,
    target: dict[str, Any],
    reference: dict[str, Any],
    how: dict[str, Any],
    expected: bool,
) -> None:
    assert agrees(tmp_path, error, at, target, reference, **how) is expected
