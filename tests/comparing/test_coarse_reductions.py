"""Gradients that are summed over ranks in bfloat16 on one side."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.comparing.traces import Recorder
from trueup.comparing.run import compare
from trueup.types.codes import VerdictCode

OWN, OTHERS = np.random.default_rng(0).standard_normal((2, 256)).astype(np.float16)
FINE = np.random.default_rng(1).standard_normal(256).astype(np.float32)
SUM = OWN.astype(np.float32) + OTHERS.astype(np.float32)


def reduced(name: str, given: np.ndarray, made: np.ndarray) -> Recorder:
    out = Recorder()
    call = out.call("api", f"torch.distributed.{name}")
    out.record(call, "collective", "input.0", given)
    out.record(call, "collective", "output.0", made)
    return out


@pytest.mark.parametrize(
    ("name", "given", "made", "is_named"),
    [
        ("all_reduce", OWN, SUM.astype(np.float16), True),
        ("all_gather", OWN, SUM.astype(np.float16), False),
        ("all_reduce", OWN.astype(np.float32), SUM, False),
        ("all_reduce", OWN[:1], SUM[:1].astype(np.float16), False),
        ("all_reduce", OWN * np.float16(1.5), (SUM * 1.5).astype(np.float16), False),
    ],
    ids=["a sum", "nothing is summed", "one dtype", "a number that is logged", "of other numbers"],
)
def test_a_sum_over_ranks_in_half_precision(
    name: str, given: np.ndarray, made: np.ndarray, is_named: bool, tmp_path: Path
) -> None:
    reference = OWN[: len(given)].astype(np.float32), SUM[: len(made)]
    reduced(name, given, made).write(tmp_path / "target")
    reduced(name, *reference).write(tmp_path / "reference")
    found = compare(tmp_path / "target", tmp_path / "reference").verdict
    assert (found.headline.code is VerdictCode.COMPUTES_IN) is is_named
    if is_named:
        assert found.headline.place("functions") == ("all_reduce",)
        assert (found.headline.place("target"), found.headline.place("reference")) == ("float16", "float32")
        assert found.phase == "collective"


@pytest.mark.parametrize(
    ("given", "is_named"),
    [
        (FINE.astype(np.float16), True),
        (FINE, False),
        ((FINE * 1.5).astype(np.float16), False),
        (OWN[:200], False),
    ],
    ids=["the same numbers", "one dtype", "other numbers", "fewer numbers"],
)
def test_sums_by_calls_of_other_names(given: np.ndarray, is_named: bool, tmp_path: Path) -> None:
    for name, call, slot, sent in (
        ("target", "torch.distributed.all_reduce", "input.0", given),
        ("reference", "c10d.allreduce_", "input.0.0", FINE),
    ):
        out = Recorder()
        before = out.call("module", "first", type_="Linear")
        out.record(before, "forward", "output.0", OWN.astype(np.float32))
        out.record(out.call("api", call), "collective", slot, sent)
        out.write(tmp_path / name)
    found = compare(tmp_path / "target", tmp_path / "reference").verdict
    assert (found.headline.code is VerdictCode.COMPUTES_IN) is is_named
