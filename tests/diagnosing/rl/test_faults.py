"""Faults planted in a real RL loop are found at their stage and quantity; benign variants agree.

rl/faults.py has all of them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from rl.faults import BENIGN, FAULTS, GRPO, judged, run_once
from rl.loop import Trainer

from trueup.diagnosing.pipeline import diagnose
from trueup.diagnosing.rl.outcomes import generated
from trueup.diagnosing.rl.walk import RLComparison, compare_rollouts
from trueup.diagnosing.stages.naming import kind_named
from trueup.diagnosing.stages.protocol import StageOutcome, StageStatus
from trueup.types.codes import RLCode, StagesCode
from trueup.types.finding import Basis, EvidenceRank, Finding, Stage
from trueup.types.reason import Reason, reason
from trueup.types.status import Outcome

pytestmark = pytest.mark.torch
TRIED = (
    "OverBatch-free",
    "K1",
    "LocalCount",
    "Stale",
    "NoTemperature",
    "RolloutBehind",
    "MaskOffByOneInLoss",
    "ReferenceUpdated",
    "ValueClipOff",
    "NotZeroed",
    "BeforeFiltering",
    "ReturnsOfWhitened",
    "NoLowerClip",
    "EntropyOfLogits",
    "Repeated-free",
    "ReferenceLate",
)


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("rl"), {}


@pytest.mark.parametrize("name", TRIED)
def test_a_fault_is_found_where_it_is(name, place) -> None:
    folder, references = place
    fault = FAULTS[name]
    first = judged(folder, fault, references).failed[0]
    assert (first.stage, first.quantity, first.conclusion.code) == (fault.stage, fault.quantity, fault.code)


@pytest.mark.parametrize("name", ["packing", "row order", "all of them"])
def test_the_same_training_laid_out_otherwise_agrees(name, place) -> None:
    folder, references = place
    reference, target = BENIGN[name]
    held = run_once(folder, reference, references)
    found = compare_rollouts(Trainer(folder / name, target, held).run(), held)
    assert found is not None
    assert found.outcome is Outcome.AGREE


def test_other_rollouts_are_no_fault_and_formulas_still_judged(place) -> None:
    """Another seed: other tokens, another model; nothing is given the same tokens."""
    folder, references = place
    held = run_once(folder, GRPO, references)
    found = compare_rollouts(Trainer(folder / "seed", replace(GRPO, seed=5)).run(), held)
    assert found is not None
    assert found.outcome is Outcome.UNDECIDED
    assert found.headline.code is RLCode.ROLLOUTS
    by = {one.quantity: one.conclusion.code for one in found.checks if one.step == 1}
    assert by["advantages"] is RLCode.FORMULA_HOLDS
    assert by["policy_loss"] is RLCode.FORMULA_HOLDS


def test_a_diagnosis_of_records_alone(place, tmp_path) -> None:
    folder, references = place
    held = run_once(folder, GRPO, references)
    target = FAULTS["K1"].trainer(tmp_path / "target", GRPO, held).run()
    found = diagnose(target, held, output=tmp_path)
    assert found.verdict is not None
    assert (found.verdict.stage, found.verdict.site) == (Stage.KL_TERM, "actor: kl_loss")
    statuses = {one.stage: one.status for one in found.stages}
    assert statuses[Stage.ADVANTAGES] is StageStatus.PASSED
    assert (tmp_path / "diagnosis.json").exists()


def test_tokens_that_the_runs_generated_are_no_fault_of_the_data(place) -> None:
    """From the same prompts; where the prompts differ too, the batches stay a fault of the data."""
    folder, references = place
    held = run_once(folder, GRPO, references)
    apart = compare_rollouts(Trainer(folder / "generated", replace(GRPO, seed=5)).run(), held)
    assert apart is not None
    assert apart.generated_apart is not None
    assert apart.generated_apart.code is RLCode.ROLLOUTS
    batches = data_outcome(reason(StagesCode.BATCH, relation="other", labels=False))
    said = generated(batches, apart.generated_apart)
    assert (said.status, said.findings) == (StageStatus.CONSEQUENCE, ())
    mask = data_outcome(reason(StagesCode.SAME_SHARD))
    assert generated(mask, apart.generated_apart) is mask
    prompts = replace(apart.checks[0], quantity="prompts", status=StageStatus.FAILED)
    assert RLComparison(checks=(prompts, *apart.checks)).generated_apart is None


def data_outcome(headline: Reason) -> StageOutcome:
    kind = kind_named("wrong_data", EvidenceRank.STATED, headline)
    finding = Finding(
        stage=Stage.DATA,
        headline=headline,
        module="",
        site="batch of step 1",
        basis=Basis.RECORDED,
        kinds=(kind,),
    )
    title = reason(StagesCode.TITLE, key="data")
    return StageOutcome(
        stage=Stage.DATA, title=title, status=StageStatus.FAILED, conclusion=headline, findings=(finding,)
    )
