"""Stage: the long run, judged by its loss curves against the reference's own spread."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from trueup.curves.comparison import CurveComparison, Options, compare_curves
from trueup.curves.conditions import ASSUMABLE
from trueup.curves.reading import read_curve
from trueup.diagnosing.stages.context import Context
from trueup.diagnosing.stages.protocol import StageOutcome, StageStatus
from trueup.errors import ConfigError
from trueup.types.codes import StagesCode as Stages
from trueup.types.finding import Basis, Finding, Stage
from trueup.types.reason import Reason, reason
from trueup.types.status import Outcome

"""The standard's thresholds and the reference's spread are measured, not the fault's place."""


def curves_of(logs: Sequence[str]) -> CurveComparison | None:
    """The target's log, then the reference's and those of its repeats, judged; None without logs.

    What a proof from traces would show of weights, settings and data, the stages before have looked at.

    Raises:
        ConfigError: the target's log alone.
        TraceError: a log cannot be read.
        NothingCompared: the logs have nothing in common.
    """
    if not logs:
        return None
    if len(logs) < 2:
        raise ConfigError(
            f"--curves {logs[0]}: say what to compare with, --curves TARGET_LOG REFERENCE_LOG ..."
        )
    target, *references = (read_curve(log) for log in logs)
    return compare_curves(target, references, Options(assumed=frozenset(ASSUMABLE)))


class LongRunStage:
    """The whole run, as its logs tell."""

    stage = Stage.LONG_RUN
    title = reason(Stages.TITLE, key="long_run")

    def check(self, context: Context) -> StageOutcome:
        """The judgement of the curves; where a stage before failed, what they show may follow from it."""
        outcome = partial(StageOutcome, stage=self.stage, title=self.title)
        found = context.curves
        if found is None:
            why = reason(Stages.NO_CURVES)
            return outcome(status=StageStatus.SKIPPED, conclusion=why)
        judgement = found.judgement
        conclusion = judgement.headline
        details = {"case": judgement.case, "step": judgement.step}
        outcome = partial(outcome, evidence=_evidence(found), details=details)
        if judgement.outcome is not Outcome.DIFFER:
            passed = judgement.outcome is Outcome.AGREE
            status = StageStatus.PASSED if passed else StageStatus.UNDECIDED
            return outcome(status=status, conclusion=conclusion, confirmed=passed)
        before = context.failed_before()
        if before is not None:
            conclusion = reason(Stages.MAY_FOLLOW, judgement.headline, stage=before.stage.value)
            return outcome(status=StageStatus.CONSEQUENCE, conclusion=conclusion)
        return outcome(
            status=StageStatus.FAILED, conclusion=conclusion, findings=(_finding(found),), confirmed=True
        )


def _evidence(found: CurveComparison) -> tuple[Reason, ...]:
    """What the judgement rests on; then each criterion of the standard that the logs answer."""
    criteria = [
        reason(Stages.CRITERION, c.title, c.value, c.threshold, criterion=c.key, status=c.status.value)
        for c in found.evidence.criteria
        if c.key not in ASSUMABLE
    ]
    return (*found.judgement.reasons, *criteria)


def _finding(found: CurveComparison) -> Finding:
    judgement = found.judgement
    names = [str(Path(curve.name)) for curve in (found.target, *found.references)]
    return Finding(
        stage=Stage.LONG_RUN,
        headline=judgement.headline,
        module=None,
        site=f"loss curve, {judgement.case.replace('_', ' ')}",
        step=judgement.step,
        basis=Basis.CURVES,
        evidence=(*judgement.reasons, *judgement.remarks),
        causes=judgement.advice,
        next=reason(
            Stages.SEE_CURVES,
            target=names[0],
            references=names[1:],
            also=[c.line for c in found.commands[:1]],
        ),
    )
