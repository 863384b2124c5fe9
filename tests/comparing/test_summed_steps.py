"""Gradients that one run reduces in every microbatch, each a step of its own, and the other once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.comparing.traces import Recorder
from trueup.comparing.run import compare
from trueup.types.codes import RecordCode

PARTS = [np.random.default_rng(seed).standard_normal(32).astype(np.float32) for seed in range(2)]
EACH = [[one] for one in PARTS]
AT_END: list[list[np.ndarray]] = [[], [PARTS[0] + PARTS[1]]]


def run(folder: Path, sent: Sequence[Sequence[np.ndarray]]) -> Path:
    """Steps of a model that sends these flat gradients after backward, and an update's at last."""
    for step, arrays in enumerate(sent):
        out, draw = Recorder(), np.random.default_rng(step).standard_normal
        root = out.call("module", "", type_="Net")
        for slot in ("input.0", "output.0"):
            out.record(root, "forward", slot, draw((4, 8)).astype(np.float32))
        for array in arrays:
            call = out.call("collective", "torch.distributed.all_reduce")
            out.record(call, "collective", "input.0", array)
            out.record(call, "collective", "output.0", 2 * array)
        if step == len(sent) - 1:
            call = out.call("collective", "torch.distributed.all_gather")
            out.record(call, "collective", "input.1", draw(16).astype(np.float32))
        out.write(folder, step=step, world_size=2)
    return folder


@pytest.mark.parametrize("other_way", [False, True])
def test_a_sum_over_steps_is_no_difference(other_way: bool, tmp_path: Path) -> None:
    sides = run(tmp_path / "end", AT_END), run(tmp_path / "each", EACH)
    comparison = compare(*(sides[::-1] if other_way else sides))
    assert comparison.verdict.outcome.value == "agree"
    codes = comparison.frame()["reason_code"].cast(pl.String).to_list()
    assert codes.count(RecordCode.SUMMED_OVER_STEPS.value) == 2


@pytest.mark.parametrize(
    "sent",
    [
        [[], [2 * PARTS[1]]],
        [[], [(PARTS[0] + PARTS[1]) / 2]],
        [[], [0.5 * PARTS[0] + PARTS[1]]],
    ],
    ids=["the last twice", "divided again", "counts the first less"],
)
def test_another_sum_differs(sent: list[list[np.ndarray]], tmp_path: Path) -> None:
    verdict = compare(run(tmp_path / "target", sent), run(tmp_path / "each", EACH)).verdict
    assert (verdict.outcome.value, verdict.step) == ("differ", 1)


def test_sums_begin_anew_where_both_have_sent(tmp_path: Path) -> None:
    """Else what one run sent in the first update would explain a difference in the next."""
    end = [*AT_END, [], [3 * PARTS[0] + PARTS[1]]]
    verdict = compare(run(tmp_path / "target", end), run(tmp_path / "each", EACH * 2)).verdict
    assert (verdict.outcome.value, verdict.step) == ("differ", 3)
