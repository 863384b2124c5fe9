"""Checks of RL records as stages of a diagnosis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from trueup.diagnosing.diagnosis import Diagnosis
from trueup.diagnosing.rl.steps import QuantityCheck
from trueup.diagnosing.rl.walk import RL_STAGES, RLComparison
from trueup.diagnosing.stages.protocol import StageOutcome, StageStatus
from trueup.types.codes import RLCode, StagesCode
from trueup.types.finding import Basis, Finding, Stage
from trueup.types.reason import Reason, reason

_WORST = (StageStatus.FAILED, StageStatus.CONSEQUENCE, StageStatus.UNDECIDED, StageStatus.PASSED)


def stage_outcomes(comparison: RLComparison) -> tuple[StageOutcome, ...]:
    """What each stage found; those of which nothing was recorded are left out."""
    failed = comparison.failed
    return tuple(_outcomes(comparison.checks, failed))


def diagnosis_of_records(
    target: Path, reference: Path, comparison: RLComparison, *, seconds: dict[str, float]
) -> Diagnosis:
    """The diagnosis of two runs that have such records and no trace."""
    outcomes = stage_outcomes(comparison)
    findings = tuple(_finding(one) for one in comparison.failed)
    return Diagnosis(
        target=str(target),
        reference=str(reference),
        outcome=comparison.outcome,
        headline=findings[0].headline if findings else comparison.headline,
        confidence=findings[0].confidence if findings else None,
        stages=outcomes,
        findings=findings,
        seconds=seconds,
    )


def same_sequences(outcome: StageOutcome) -> StageOutcome:
    """Batches that differ though both runs train on the same sequences hold them in another order, or in
    other mini-batches: no fault."""
    return _without_batches(outcome, StageStatus.PASSED, reason(RLCode.SAME_SEQUENCES))


def generated(outcome: StageOutcome, conclusion: Reason) -> StageOutcome:
    """Batches that differ though both runs were given the same prompts hold what the runs generated: other
    tokens there follow from the models or from their draws, and are no fault of the data."""
    return _without_batches(outcome, StageStatus.CONSEQUENCE, conclusion)


def _without_batches(outcome: StageOutcome, status: StageStatus, conclusion: Reason) -> StageOutcome:
    batches = (StagesCode.BATCH,)
    if outcome.stage is not Stage.DATA or not any(one.headline.has(*batches) for one in outcome.findings):
        return outcome
    kept = tuple(one for one in outcome.findings if not one.headline.has(*batches))
    if kept:
        return replace(outcome, findings=kept, conclusion=kept[0].headline)
    return replace(
        outcome,
        status=status,
        conclusion=conclusion,
        evidence=(outcome.conclusion, *outcome.evidence),
        findings=(),
    )


def _outcomes(checks: Sequence[QuantityCheck], failed: Sequence[QuantityCheck]) -> Iterator[StageOutcome]:
    for stage in RL_STAGES:
        seen = [one for one in checks if one.stage is stage]
        if not seen:
            continue
        at_fault = [one for one in failed if one.stage is stage]
        rest = [
            one for one in seen if one.status is not StageStatus.FAILED
        ]  # a fault of a later step follows from the first
        shown = min(at_fault or rest or seen, key=lambda one: (_WORST.index(one.status), one.step))
        late = not at_fault and len(rest) < len(seen)
        yield StageOutcome(
            stage=stage,
            title=reason(StagesCode.TITLE, key=stage.value),
            status=StageStatus.CONSEQUENCE if late else shown.status,
            conclusion=shown.conclusion,
            evidence=tuple(
                dict.fromkeys(one.conclusion for one in seen if not one.passed and one is not shown)
            ),
            findings=tuple(map(_finding, at_fault)),
            confirmed=any(one.confirmed for one in at_fault) or shown.passed,
            details={"steps": sorted({one.step for one in seen})},
        )


def _finding(check: QuantityCheck) -> Finding:
    return Finding(
        stage=check.stage,
        headline=check.conclusion,
        module=None,
        site=f"{check.role}: {check.quantity}",
        phase=_PHASES.get((check.role, check.stage)),
        step=check.step,
        basis=Basis.RECORDED if check.confirmed else Basis.EQUAL_INPUTS,
        evidence=(check.conclusion, *check.evidence),
    )


_PHASES = {
    ("rollout", Stage.ROLLOUT): "rollout",
    ("actor", Stage.OLD_LOG_PROBS): "compute_log_prob",
    ("reference", Stage.REFERENCE_LOG_PROBS): "ref_log_prob",
    ("critic", Stage.VALUES): "values",
    ("actor", Stage.POLICY_LOSS): "update",
    ("actor", Stage.KL_TERM): "update",
    ("critic", Stage.VALUE_LOSS): "update",
    ("actor", Stage.UPDATE): "update",
    ("critic", Stage.UPDATE): "update",
}
