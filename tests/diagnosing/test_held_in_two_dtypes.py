"""What two runs hold in two dtypes, and rows of one side, as findings of their stage and the only ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.comparing import test_counted_rows as rows
from tests.comparing.test_first_in_two_dtypes import BASE, COARSE, Program, train
from trueup.diagnosing.diagnosis import Diagnosis
from trueup.diagnosing.pipeline import diagnose
from trueup.types.codes import VerdictCode
from trueup.types.codes.kinds import CauseCode
from trueup.types.finding import KindCode, Stage
from trueup.types.status import Outcome

pytestmark = pytest.mark.torch

CASES = {
    "residual stream": (
        replace(BASE, stream=COARSE),
        VerdictCode.RESULT_IN,
        Stage.FORWARD,
        CauseCode.UPCAST_LEFT_OUT,
    ),
    "loss": (replace(BASE, loss=COARSE), VerdictCode.LOSS_IN, Stage.FORWARD, CauseCode.UPCAST_LEFT_OUT),
    "weights": (replace(BASE, gates=COARSE), VerdictCode.WEIGHTS_IN, Stage.WEIGHTS, CauseCode.MODEL_DTYPE),
}


@pytest.mark.parametrize("case", CASES)
def test_the_dtype_is_the_only_finding(case: str, tmp_path: Path) -> None:
    target, code, stage, cause = CASES[case]
    found = diagnosed(tmp_path, target, BASE)
    assert found.outcome is Outcome.DIFFER
    assert [one.headline.code for one in found.findings] == [code]
    (finding,) = found.findings
    assert (finding.stage, finding.kinds[0].name) == (stage, KindCode.DTYPE_OR_ROUNDING)
    assert [one.code for one in finding.causes] == [cause]


def diagnosed(folder: Path, target: Program, reference: Program) -> Diagnosis:
    runs = train(folder / "target", target), train(folder / "reference", reference)
    return diagnose(*runs, output=folder / "diagnosis")


def test_a_factor_beyond_rounding_stands_beside_the_dtype(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, replace(BASE, gates=COARSE, sent=1.25), BASE)
    first, *more = found.findings
    assert first.headline.code is VerdictCode.WEIGHTS_IN
    assert Stage.REDUCTION in {one.stage for one in more}


def test_another_form_of_attention_has_no_finding(tmp_path: Path) -> None:
    assert diagnosed(tmp_path, replace(BASE, eager=True), BASE).outcome is Outcome.AGREE


def test_positions_that_count_are_a_mask_of_the_loss(tmp_path: Path) -> None:
    sides = replace(rows.BASE, z_of_all=True), rows.BASE
    runs = [
        rows.train(tmp_path / name, one) for name, one in zip(("target", "reference"), sides, strict=True)
    ]
    (finding,) = diagnose(*runs, output=tmp_path / "diagnosis").findings
    assert (finding.headline.code, finding.stage) == (VerdictCode.POSITIONS_COUNT, Stage.LOSS)
    assert finding.kinds[0].name is KindCode.WRONG_MASK


def test_a_frozen_row_is_a_missing_gradient(tmp_path: Path) -> None:
    large = replace(rows.BASE, rows=64, length=64)
    sides = replace(large, padding=0), large
    runs = [
        rows.train(tmp_path / name, one) for name, one in zip(("target", "reference"), sides, strict=True)
    ]
    (finding,) = diagnose(*runs, output=tmp_path / "diagnosis").findings
    assert (finding.headline.code, finding.stage) == (VerdictCode.ROWS_TRAIN, Stage.BACKWARD)
    assert finding.kinds[0].name is KindCode.FROZEN_OR_MISSING_GRADIENT
