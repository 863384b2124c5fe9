"""Averaged weights that the optimizer's update is followed by: a moving average, a target network."""

from __future__ import annotations

from trueup.comparing.averages import AverageGap, average_gaps
from trueup.diagnosing.stages.context import Context
from trueup.types.codes import Code, VerdictCode
from trueup.types.codes import StagesCode as Stages
from trueup.types.finding import Basis, Finding, Stage
from trueup.types.reason import Reason, reason

AVERAGED: dict[Code, str] = {
    VerdictCode.AVERAGE_DECAY_DIFFERS: "decay",
    VerdictCode.AVERAGES_BEFORE_UPDATE: "order",
    VerdictCode.AVERAGES_TWICE: "microbatches",
    VerdictCode.AVERAGE_LEAVES_OUT: "parameters_only",
}
"""how averages are made otherwise, and what is the cause of it"""


def averaged_weights(context: Context) -> tuple[list[Finding], tuple[Reason, ...]]:
    """A finding where averaged weights differ by more than what they are made of explains, and what is known
    beside that. After an earlier failure only what each run's own numbers tell."""
    found = average_gaps(context.target, context.reference, dict(context.steps))
    gap = found.gap
    if gap is None or (context.failed_before() is not None and not gap.is_told):
        return [], found.notes
    return [_finding(gap, context)], found.notes


def _finding(gap: AverageGap, context: Context) -> Finding:
    cause = AVERAGED.get(gap.headline.code)
    return Finding(
        stage=Stage.OPTIMIZER,
        headline=gap.headline,
        module=gap.names[0].rpartition(".")[0]
        if gap.headline.code is VerdictCode.AVERAGE_LEAVES_OUT
        else None,
        site=f"averaged weights · {gap.names[0]}",
        phase="optimizer",
        step=gap.step,
        rank=context.ranks[0],
        basis=Basis.FITTED if gap.is_told else Basis.RECORDED,
        evidence=gap.said,
        causes=() if cause is None else (reason(Stages.AVERAGE_CAUSE, key=cause),),
    )
