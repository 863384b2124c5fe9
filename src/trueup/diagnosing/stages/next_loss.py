"""Stage: the loss of the second step, where everything the first one did shows."""

from __future__ import annotations

from typing import Any

from trueup.diagnosing.gradients import scalar_line
from trueup.diagnosing.stages.context import Context, counted, is_beyond, is_compared
from trueup.diagnosing.stages.forward import loss_said, source_of
from trueup.diagnosing.stages.protocol import StageOutcome, StageStatus
from trueup.types.finding import Stage


class NextLossStage:
    """Forward and loss of the second captured step."""

    stage = Stage.LOSS
    title = "Next loss: the forward of the second step"

    def check(self, context: Context) -> StageOutcome:
        """Compare; where only this differs, say which way back to look."""
        common: dict[str, Any] = {"stage": self.stage, "title": self.title}
        if len(context.steps) < 2:
            why = "only one step was captured on both sides"
            return StageOutcome(**common, status=StageStatus.UNDECIDED, said=why)
        rows = context.of_phases("forward", "loss", at=1)
        evidence = (*loss_said(context, 1), *_given_said(context))
        if rows.filter(is_compared()).is_empty():
            why = "no forward of the second step was recorded on both sides"
            return StageOutcome(**common, status=StageStatus.UNDECIDED, said=why, evidence=evidence)
        evidence = (*evidence, f"records: {counted(rows)}")
        if rows.filter(is_beyond()).is_empty():
            exact = (rows["status"] == "equal").all()
            said = "Equal bit for bit." if exact else "Agrees within rounding."
            return StageOutcome(
                **common, status=StageStatus.PASSED, said=said, evidence=evidence, confirmed=True
            )
        before = context.failed_before()
        if before is not None:
            said = f"Differs, which follows from {source_of(before)}."
            return StageOutcome(**common, status=StageStatus.CONSEQUENCE, said=said, evidence=evidence)
        said = (
            "Differs, although no fault was found in the first step: look again at its backward, with the "
            "values of every gradient."
        )
        return StageOutcome(**common, status=StageStatus.UNDECIDED, said=said, evidence=evidence)


def _given_said(context: Context) -> tuple[str, ...]:
    """The second loss of the run that was given the reference's gradients: equal to the reference's, it
    says that the update is right and the gradients are not."""
    if context.given is None or context.given_step is None or len(context.steps) < 2:
        return ()
    rank = context.ranks[0]
    given = scalar_line(context.given, rank, context.given_step + 1).get("loss")
    theirs = scalar_line(context.reference, rank, context.steps[1][1]).get("loss")
    own = scalar_line(context.target, rank, context.steps[1][0]).get("loss")
    if given is None or theirs is None or own is None:
        return ()
    losses = f"{given:.8g} (reference {theirs:.8g}, own {own:.8g})"
    said = f"with the reference's gradients put in, the next loss is {losses}"
    if given == theirs != own:
        return (f"{said}: the update is right, the target's own gradients are not",)
    return (said,)
