"""What a sum of terms that cancel may differ by: the rounding of its terms."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.comparing.deciding_comparing import step
from tests.comparing.traces import Recorder
from trueup.comparing.judgement import DIFFERENT
from trueup.comparing.rules import judge_step
from trueup.comparing.tolerance import operand_scale

Array = NDArray[np.float32]
TERMS = np.random.default_rng(4).standard_normal(4096).astype(np.float32)
CANCEL = (TERMS - TERMS.mean()).astype(np.float32)


def summed(terms: Array, off: float = 0.0, name: str = "torch.Tensor.sum"):
    """A function that makes one number of many, ``off`` more in the target, whose terms are rounded
    otherwise."""

    def make(out: Recorder, target: bool) -> None:
        call = out.call("api", name)
        given = terms * np.float32(1 + 2.0**-23) if target else terms
        out.record(call, "forward", "input.0", given)
        out.record(call, "forward", "output.0", np.array([given.sum() + (off if target else 0)], np.float32))

    return step(make)


def test_terms_that_cancel_keep_their_size() -> None:
    context, metrics = summed(CANCEL)
    assert operand_scale(context.rows, metrics)[-1] == pytest.approx(np.linalg.norm(CANCEL), rel=1e-5)


def test_a_sum_of_one_sign_is_larger_than_that() -> None:
    context, metrics = summed(np.abs(TERMS))
    assert operand_scale(context.rows, metrics)[-1] == pytest.approx(np.abs(TERMS).sum(), rel=1e-5)


def test_a_mean_is_no_sum() -> None:
    context, metrics = summed(CANCEL, name="torch.Tensor.mean")
    assert operand_scale(context.rows, metrics)[-1] < 2


@pytest.mark.parametrize(("off", "differs"), [(0.0, False), (2e-6, False), (1e-3, True)])
def test_a_term_more_is_no_rounding(off: float, differs: bool) -> None:
    context, metrics = summed(CANCEL, off)
    assert bool((judge_step(context, metrics).status[-1:] == DIFFERENT).all()) is differs
