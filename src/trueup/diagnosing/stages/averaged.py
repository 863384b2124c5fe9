"""Copies of the weights beside the model: averages that follow the optimizer's update (a moving average, a
target network), and master weights that an optimizer of the program's own updates."""

from __future__ import annotations

import numpy as np

from trueup.comparing.averages import AverageGap, average_gaps
from trueup.comparing.masters import MasterGap, master_gap
from trueup.diagnosing.stages.context import Context
from trueup.diagnosing.stages.naming import kind_named
from trueup.diagnosing.stages.own_update import Conclusion, OwnMove, own_constants
from trueup.store.view import ACCUMULATED
from trueup.types.codes import Code, VerdictCode
from trueup.types.codes import StagesCode as Stages
from trueup.types.finding import Basis, EvidenceRank, Finding, Stage
from trueup.types.reason import Reason, reason

AVERAGED: dict[Code, str] = {
    VerdictCode.AVERAGE_DECAY_DIFFERS: "decay",
    VerdictCode.AVERAGES_BEFORE_UPDATE: "order",
    VerdictCode.AVERAGES_TWICE: "microbatches",
    VerdictCode.AVERAGE_LEAVES_OUT: "parameters_only",
    VerdictCode.AVERAGES_LOSE_CHANGES: "coarse",
}
"""how averages are made otherwise, and what is the cause of it"""


def averaged_weights(context: Context) -> tuple[list[Finding], tuple[Reason, ...]]:
    """A finding where averaged weights differ by more than what they are made of explains, and what is known
    beside that. After an earlier failure only what each run's own numbers tell."""
    found = average_gaps(context.target, context.reference, dict(context.steps))
    gap = found.gap
    if gap is None or (context.failed_before() is not None and not gap.is_explained):
        return [], found.notes
    return [_finding(gap, context)], found.notes


def _finding(gap: AverageGap, context: Context) -> Finding:
    cause = AVERAGED.get(gap.headline.code)
    return Finding(
        stage=Stage.OPTIMIZER,
        headline=gap.headline,
        kinds=(kind_named("dtype_or_rounding", EvidenceRank.FITTED, gap.evidence[0]),)
        if cause == "coarse"
        else (),
        module=gap.names[0].rpartition(".")[0]
        if gap.headline.code is VerdictCode.AVERAGE_LEAVES_OUT
        else None,
        site=f"averaged weights · {gap.names[0]}",
        phase="optimizer",
        step=gap.step,
        rank=gap.rank,
        basis=Basis.FITTED if gap.is_explained else Basis.RECORDED,
        evidence=gap.evidence,
        causes=() if cause is None else (reason(Stages.AVERAGE_CAUSE, key=cause),),
    )


MASTERS: dict[Code, tuple[str, str]] = {
    VerdictCode.MASTERS_ROUNDED: ("dtype_or_rounding", "rounded"),
    VerdictCode.MASTERS_DECAY: ("wrong_optimizer_setting", "decay"),
    VerdictCode.MASTERS_SCALED: ("wrong_optimizer_setting", "scaled"),
    VerdictCode.MASTERS_DIFFER: ("", "update"),
}
"""how master weights differ -> kind of fault, and what causes it"""


def master_weights(context: Context) -> list[Finding]:
    """A finding where equal gradients make other master weights; none after a failure of the same step or an
    earlier one."""
    gap = master_gap(context.target, context.reference, dict(context.steps))
    before = [one for outcome in context.earlier for one in outcome.findings]
    if gap is None or any(one.step is None or one.step <= gap.step for one in before):
        return []
    return [_of_masters(gap, context)]


def _of_masters(gap: MasterGap, context: Context) -> Finding:
    kind, cause = MASTERS[gap.headline.code]
    of_own = (VerdictCode.MASTERS_DIFFER, VerdictCode.MASTERS_DECAY)
    own = _of_own_adam(gap, context) if gap.headline.code in of_own else None
    if own is not None and gap.is_explained and own.headline.code is not Stages.OWN_DECAY:
        own = None
    return Finding(
        stage=Stage.OPTIMIZER,
        headline=gap.headline if own is None else own.headline,
        kinds=(kind_named(kind, EvidenceRank.FITTED, gap.evidence[0]),) if kind else (),
        module=None,
        site=f"master weights · {gap.names[0]}",
        phase="optimizer",
        step=gap.step,
        rank=context.ranks[0],
        basis=Basis.RECORDED if own is None and not gap.is_explained else Basis.FITTED,
        evidence=gap.evidence if own is None else (*gap.evidence, *own.evidence),
        causes=(own.causes if own is not None else ()) or (reason(Stages.MASTER_CAUSE, key=cause),),
    )


def _of_own_adam(gap: MasterGap, context: Context) -> Conclusion | None:
    """What an Adam of the programs' own does otherwise, where they take its first step."""
    if gap.step != 0:
        return None
    book = context.pair(0)[0]
    sides: tuple[dict[str, OwnMove], dict[str, OwnMove]] = ({}, {})
    for fqn, move in gap.moves.items():
        gradient = book.value(book.parameter(fqn, *ACCUMULATED))
        if gradient is not None and gradient.size == move.before.size:
            flat = gradient.astype(np.float64).ravel()
            for side, after in zip(sides, (move.target, move.reference), strict=True):
                side[fqn] = OwnMove(after - move.before, flat, move.before, move.rounding)
    return own_constants(*sides) if sides[0] else None
