"""Another dtype on one side is a diagnosis' first finding; beside it stand those it does not explain."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.adapters.torch.reading import capture
from tests.models.mixed_gpt import Program, train
from trueup.diagnosing.diagnosis import Diagnosis
from trueup.diagnosing.pipeline import diagnose
from trueup.diagnosing.stages import StageStatus
from trueup.types.codes import StagesCode, VerdictCode, WeightsCode
from trueup.types.codes.kinds import CauseCode
from trueup.types.finding import KindCode, Stage
from trueup.types.status import Outcome

pytestmark = pytest.mark.torch

Diagnosed = Callable[..., Diagnosis]


@pytest.fixture(scope="module")
def diagnosed(tmp_path_factory: pytest.TempPathFactory) -> Diagnosed:
    @cache
    def captured(program: Program) -> Path:
        folder = tmp_path_factory.mktemp("run") / "trace"
        capture(folder, lambda: train(program), level="mix", task="tensor")
        return folder

    def pair(target: Program, reference: Program) -> Diagnosis:
        return diagnose(captured(target), captured(reference), output=tmp_path_factory.mktemp("diagnosis"))

    return pair


CASES = {
    "autocast": (Program(autocast="bfloat16"), VerdictCode.COMPUTES_IN, CauseCode.AUTOCAST_ON_ONE_SIDE),
    "model": (Program(dtype="bfloat16"), VerdictCode.COMPUTES_IN, CauseCode.MODEL_DTYPE),
    "norm": (Program(norm="bfloat16"), VerdictCode.COMPUTES_IN, CauseCode.UPCAST_LEFT_OUT),
    "loss": (Program(loss="float16"), VerdictCode.COMPUTES_IN, CauseCode.UPCAST_LEFT_OUT),
    "embedding": (Program(embedding="bfloat16"), VerdictCode.CASTS_TO, CauseCode.UPCAST_LEFT_OUT),
}


@pytest.mark.parametrize("case", CASES)
def test_the_dtype_is_the_only_finding(case: str, diagnosed: Diagnosed) -> None:
    lower, code, cause = CASES[case]
    diagnosis = diagnosed(lower, Program())
    assert diagnosis.outcome is Outcome.DIFFER
    assert [finding.headline.code for finding in diagnosis.findings] == [code]
    (finding,) = diagnosis.findings
    assert (finding.stage, finding.kinds[0].name) == (Stage.FORWARD, KindCode.DTYPE_OR_ROUNDING)
    assert [one.code for one in finding.causes] == [cause]
    assert all(
        one.status is not StageStatus.FAILED for one in diagnosis.stages if one.stage is not Stage.FORWARD
    )


def test_weights_of_another_dtype_agree_within_its_rounding(diagnosed: Diagnosed) -> None:
    outcomes = {one.stage: one for one in diagnosed(Program(dtype="bfloat16"), Program()).stages}
    weights = outcomes[Stage.WEIGHTS]
    assert weights.status is StageStatus.PASSED
    assert weights.conclusion.code is WeightsCode.WITHIN_ROUNDING
    assert (weights.conclusion.place("target"), weights.conclusion.place("reference")) == (
        "bfloat16",
        "float32",
    )


def test_weights_of_another_seed_are_none_of_its_rounding(diagnosed: Diagnosed) -> None:
    diagnosis = diagnosed(Program(dtype="bfloat16", seed=1), Program())
    assert diagnosis.findings[0].stage is Stage.WEIGHTS


def test_a_fault_that_the_dtype_does_not_explain_is_found_beside_it(diagnosed: Diagnosed) -> None:
    diagnosis = diagnosed(Program(autocast="bfloat16", shift=3.0), Program())
    first, *others = diagnosis.findings
    assert first.headline.code is VerdictCode.COMPUTES_IN
    assert any(one.module == "blocks.1.norm" for one in others)
    assert diagnosis.headline.code is StagesCode.AND_MORE


def test_one_dtype_on_both_sides_is_no_finding(diagnosed: Diagnosed) -> None:
    program = Program(autocast="bfloat16")
    assert diagnosed(Program(autocast="bfloat16", eager=True), program).outcome is Outcome.AGREE
