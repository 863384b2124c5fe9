"""Stage: the loss of the second step, where everything the first one did shows."""

from __future__ import annotations

from functools import partial

import polars as pl

from trueup.diagnosing.gradients import scalar_line
from trueup.diagnosing.stages.context import Context, counted, is_beyond, is_compared
from trueup.diagnosing.stages.forward import follows_from, loss_values
from trueup.diagnosing.stages.protocol import StageOutcome, StageStatus
from trueup.types.codes import StagesCode as Stages
from trueup.types.finding import Stage
from trueup.types.reason import Reason, reason


class NextLossStage:
    """Forward and loss of the second captured step."""

    stage = Stage.LOSS
    title = reason(Stages.TITLE, key="next_loss")

    def check(self, context: Context) -> StageOutcome:
        """Compare; where only this differs, say which way back to look."""
        outcome = partial(StageOutcome, stage=self.stage, title=self.title)
        if len(context.steps) < 2:
            why = reason(Stages.ONE_STEP)
            return outcome(status=StageStatus.UNDECIDED, conclusion=why)
        rows = context.of_phases("forward", "loss", at=1)
        evidence = (*loss_values(context, 1), *_given_loss(context, rows))
        if rows.filter(is_compared()).is_empty():
            why = reason(Stages.NOTHING_RECORDED, what="forward pass of the second step")
            return outcome(status=StageStatus.UNDECIDED, conclusion=why, evidence=evidence)
        evidence = (*evidence, counted(rows))
        if rows.filter(is_beyond()).is_empty():
            conclusion = context.agreement_at(rows, 1)
            return outcome(
                status=StageStatus.PASSED, conclusion=conclusion, evidence=evidence, confirmed=True
            )
        before = context.failed_before()
        if _agrees(rows) and (before is None or before.stage is Stage.DATA):
            conclusion = reason(Stages.NEXT_LOSS_AGREES, num=rows.filter(is_beyond()).height)
            return outcome(status=StageStatus.PASSED, conclusion=conclusion, evidence=evidence)
        if before is not None:
            conclusion = follows_from(before)
            return outcome(status=StageStatus.CONSEQUENCE, conclusion=conclusion, evidence=evidence)
        conclusion = reason(Stages.NEXT_LOSS_ONLY)
        return outcome(status=StageStatus.UNDECIDED, conclusion=conclusion, evidence=evidence)


def _agrees(rows: pl.DataFrame) -> bool:
    """Whether the loss itself was compared and agrees."""
    losses = _losses(rows)
    every = losses.filter(is_compared()).height == losses.height > 0
    return every and losses.filter(is_beyond()).is_empty()


def _losses(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter((pl.col("phase") == "loss") & (pl.col("slot") == "value"))


def _given_loss(context: Context, rows: pl.DataFrame) -> tuple[Reason, ...]:
    """The second loss of the run that was given the reference's gradients: equal to the reference's, where
    the target's own is further from it than rounding, it says that the update is right and the gradients are
    not."""
    if context.given is None or context.given_step is None or len(context.steps) < 2:
        return ()
    rank = context.ranks[0]
    given = scalar_line(context.given, rank, context.given_step + 1).get("loss")
    reference = scalar_line(context.reference, rank, context.steps[1][1]).get("loss")
    own = scalar_line(context.target, rank, context.steps[1][0]).get("loss")
    if given is None or reference is None or own is None:
        return ()
    is_apart = not _losses(rows).filter(is_beyond()).is_empty()
    code = Stages.UPDATE_RIGHT if given == reference and is_apart else Stages.GIVEN_LOSS
    return (reason(code, given=given, target=own, reference=reference),)
