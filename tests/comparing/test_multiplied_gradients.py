"""What multiplies a gradient after backward multiplies its rounding, as unscaling and clipping do."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.comparing.deciding_comparing import step
from tests.comparing.traces import Recorder
from trueup.comparing.judgement import DIFFERENT
from trueup.comparing.rules import judge_step
from trueup.comparing.tolerance import multiplied_after_backward, operand_scale

Array = NDArray[np.float32]
RANDOM = np.random.default_rng(3)
ARRIVING = RANDOM.standard_normal((64, 6)).astype(np.float32) * 700
WEIGHT = RANDOM.standard_normal((6, 5)).astype(np.float32) * 300
ONE = np.array([-41.0], np.float32)


def gradients(given: dict[str, Array], left: dict[str, Array], off: float = 1.0):
    """A module that sends large gradients, and what its optimizer gets, ``off`` times in the target."""

    def make(out: Recorder, target: bool) -> None:
        module = out.call("module", "lin", type_="Linear")
        out.record(module, "forward", "input.0", RANDOM.standard_normal((64, 5)).astype(np.float32) * 0 + 1)
        out.record(module, "backward", "output.0", ARRIVING)
        for name, array in left.items():
            call = out.call("parameter", name)
            out.record(call, "param_grad", "accumulated", array)
            out.record(call, "param_grad", "clipped", given[name] * np.float32(off if target else 1.0))

    return step(make)


@pytest.mark.parametrize("factor", [1 / 512, 1 / 65_536, 0.013, 1.0])
def test_the_scale_of_a_multiple_is_multiplied(factor: float) -> None:
    context, metrics = gradients({"lin.weight": WEIGHT * np.float32(factor)}, {"lin.weight": WEIGHT})
    scale, rows = operand_scale(context.rows, metrics), context.rows
    before, after = (scale[rows.slot_is(slot)].item() for slot in ("accumulated", "clipped"))
    assert after == pytest.approx(before * factor, rel=1e-5)


@pytest.mark.parametrize("factor", [1 / 512, 1.0])
def test_a_gradient_that_is_not_unscaled_differs(factor: float) -> None:
    context, metrics = gradients({"lin.weight": WEIGHT * np.float32(factor)}, {"lin.weight": WEIGHT}, 1 / 512)
    assert (judge_step(context, metrics).status[context.rows.slot_is("clipped")] == DIFFERENT).all()


def test_a_sum_over_ranks_keeps_the_rounding_of_its_terms() -> None:
    small = RANDOM.standard_normal((6, 5)).astype(np.float32)
    context, metrics = gradients({"lin.weight": small}, {"lin.weight": WEIGHT})
    assert (multiplied_after_backward(context.rows) == 1).all()
    assert operand_scale(context.rows, metrics)[-1] > 100 * np.linalg.norm(small)


@pytest.mark.parametrize(("factor", "multiplied"), [(1 / 512, True), (1 / 64, False)])
def test_one_number_is_multiplied_as_the_others_are(factor: float, multiplied: bool) -> None:
    given = {"lin.weight": WEIGHT / np.float32(512), "lin.bias": ONE * np.float32(factor)}
    context, _ = gradients(given, {"lin.weight": WEIGHT, "lin.bias": ONE})
    assert (multiplied_after_backward(context.rows)[-1] != 1) == multiplied


def test_one_number_by_itself_may_be_a_sum() -> None:
    context, _ = gradients({"lin.bias": ONE / np.float32(512)}, {"lin.bias": ONE})
    assert (multiplied_after_backward(context.rows) == 1).all()
