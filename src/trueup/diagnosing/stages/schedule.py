"""The optimizer from step to step: when it steps, with which learning rate, what became of its state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np

from trueup.diagnosing.stages.context import Context
from trueup.diagnosing.stages.gaps import are_unseen
from trueup.diagnosing.stages.naming import kind_named
from trueup.diagnosing.stages.protocol import StageStatus
from trueup.diagnosing.thresholds import ROUNDED_LEAST, ROUNDED_TIMES, SUM_EXPLAINED
from trueup.numerics.dtypes import DTYPES
from trueup.store.view import UPDATED
from trueup.types.codes import StagesCode as Stages
from trueup.types.codes.kinds import CauseCode
from trueup.types.finding import Basis, EvidenceRank, Finding, Stage
from trueup.types.reason import Reason, reason
from trueup.types.trace import ScalarLine


def schedule_findings(context: Context, *, known: set[str]) -> list[Finding]:
    """One finding where the learning rates of some step differ and ``known`` does not say so already."""
    if "lr" in known:
        return []
    rank = context.ranks[0]
    target, reference = (_rates(source.scalars(rank)) for source in (context.target, context.reference))
    first, other = context.steps[0]
    shared = [step for step in target if step - first + other in reference]
    apart = [step for step in shared if not _same(target[step], reference[step - first + other])]
    if not apart:
        return []
    step = apart[0]
    a, b = target[step], reference[step - first + other]
    rates = reason(Stages.LEARNING_RATE, step=step, **_shown(a, b))
    counted, moved = schedulers_apart(context)
    num_apart = reason(Stages.STEPS_DIFFER, num=len(apart), total=len(shared))
    causes = causes_of_apart(counted, moved)
    if causes is None and any(len(set(side.values())) > 1 for side in (target, reference)):
        is_other = counted is not None or _is_of_no_neighbor(a, reference, step - first + other)
        causes = (reason(Stages.SCHEDULE_SETTINGS), *(() if is_other else (reason(Stages.SCHEDULER_CAUSE),)))
    headline = (counted and counted.headline) or moved or rates
    stand = counted and counted.evidence
    kind = kind_named(
        "wrong_optimizer_setting",
        EvidenceRank.STATED,
        headline,
        causes=causes,
        without=(CauseCode.SCHEDULE_OFF,),
    )
    return [
        Finding(
            stage=Stage.OPTIMIZER,
            headline=headline,
            module=None,
            site=f"learning rate of step {step}",
            phase="optimizer",
            step=step,
            rank=rank,
            kinds=(kind,),
            basis=Basis.RECORDED,
            evidence=(
                rates,
                num_apart,
                *_without_update(context, step, moved),
                *(one for one in (moved, stand) if one),
            ),
            causes=kind.causes,
            next_note=reason(Stages.COMPARE_SCHEDULERS),
        )
    ]


def _without_update(context: Context, step: int, moved: Reason | None) -> list[Reason]:
    """Where the step before ``step`` has no update on either side, and one schedule has moved on in it."""
    at = next((at for at, (own, _) in enumerate(context.steps) if own == step), 0)
    if moved is None or not at or context.steps[at - 1][0] != step - 1:
        return []
    updates = [any(book.parameters_with(*UPDATED) for book in context.pair(one)) for one in (at - 1, at)]
    side = "target" if moved.code is Stages.RATE_EARLIER else "reference"
    return [reason(Stages.MOVED_WITHOUT_UPDATE, step=step - 1, side=side)] if updates == [False, True] else []


def stepping_findings(context: Context) -> list[Finding]:
    """One finding where the same microbatches make another number of updates."""
    target, reference = context.microbatches
    data = context.outcome_of(Stage.DATA)
    same = data is not None and data.status is StageStatus.PASSED
    if target is None or reference is None or target == reference or not same:
        return []
    step, rank = context.steps[0][0], context.ranks[0]
    causes: tuple[Reason, ...]
    made = [book.parameters_with(*UPDATED) for book in context.pair()]
    unseen = map(are_unseen, made, context.pair(), (context.target, context.reference))
    updated = tuple(map(bool, made))
    if any(made) and any(unseen):
        return []
    if updated == (True, False) and target < reference:
        return []  # it updates of fewer gradients than the reference clears without an update
    if updated == (True, False):  # the reference's step ended because gradients were cleared
        stepping = reason(Stages.SUMMED_BEFORE_UPDATE, target=target, reference=reference)
        causes = (reason(Stages.NOT_CLEARED_CAUSE),)
        kind = replace(kind_named("missing_zero_grad", EvidenceRank.STATED, stepping), causes=causes)
    elif updated != (False, True):
        unrecorded = {} if all(updated) else {"recorded": False}
        stepping = reason(Stages.STEPS_AFTER, target=target, reference=reference, **unrecorded)
        each = (reason(Stages.STEP_EACH_CAUSE),) if target == 1 else ()
        causes = (*each, reason(Stages.ACCUMULATION_CAUSE))
        kind = kind_named("wrong_optimizer_setting", EvidenceRank.STATED, stepping, causes=causes)
    else:  # the target's step ended because gradients were cleared
        stepping = reason(Stages.CLEARED_BEFORE_UPDATE, target=target, reference=reference)
        causes = (reason(Stages.CLEARED_CAUSE),)
        kind = replace(kind_named("dropped_update", EvidenceRank.STATED, stepping), causes=causes)
    return [
        Finding(
            stage=Stage.OPTIMIZER,
            headline=stepping,
            module=None,
            site="optimizer · when it steps",
            phase="optimizer",
            step=step,
            rank=rank,
            kinds=(kind,),
            basis=Basis.RECORDED,
            evidence=(stepping, *data.evidence[:1]) if data is not None else (stepping,),
            causes=causes,
            next_note=reason(Stages.CLEAR_ALIKE if updated == (True, False) else Stages.STEP_ONCE),
        )
    ]


def moment_findings(context: Context) -> list[Finding]:
    """One finding where the moments of the second step do not follow from those of the first in the target,
    and in the reference do."""
    if len(context.steps) < 2 or context.microbatches[0] != context.microbatches[1]:
        return []
    if any(later - first != 1 for first, later in zip(*context.steps[:2], strict=True)):
        return []  # the moments before are not recorded
    (step, other), rank = context.steps[1], context.ranks[0]
    target = context.updates(context.target, step, rank)
    reference = context.updates(context.reference, other, rank)
    apart = {}
    for fqn, name in context.matched.items():
        own, there = target.get(fqn), reference.get(name)
        if own is None or there is None or own.moments is None or there.moments is None:
            continue
        if there.moments < SUM_EXPLAINED and own.moments > max(ROUNDED_TIMES * there.moments, ROUNDED_LEAST):
            apart[fqn] = own.moments
    if not apart:
        return []
    worst = max(apart.values())
    rounded = worst < SUM_EXPLAINED
    if rounded and context.dtypes_of_weights is not None:
        return []
    residual = reason(Stages.MOMENT_RESIDUAL, share=worst, step=step, before=step - 1)
    name = "dtype_or_rounding" if rounded else "stale_value"
    causes = None if rounded else ()  # what a state is kept from, the advice asks
    kind = kind_named(name, EvidenceRank.FITTED, residual, causes=causes)
    return [
        Finding(
            stage=Stage.OPTIMIZER,
            headline=reason(Stages.STATE_ROUNDED if rounded else Stages.STATE_CHANGED),
            module=None,
            site="optimizer · state",
            phase="optimizer",
            step=step,
            rank=rank,
            kinds=(kind,),
            basis=Basis.FITTED,
            evidence=(residual, reason(Stages.NUM_PARAMETERS, num=len(apart), total=len(target))),
            counter_evidence=(reason(Stages.REFERENCE_MOMENTS),),
            causes=kind.causes,
            next_note=reason(Stages.CHECK_STATE),
        )
    ]


def schedulers_apart(context: Context) -> tuple[SchedulerSteps | None, Reason | None]:
    """Where the schedulers stand, and, unless that explains the rates, whether they are of another step."""
    counted = _scheduler_steps(context)
    are_apart = counted is not None and not counted.are_alike
    return counted, None if are_apart else _schedule_moved(context)


def causes_of_apart(counted: SchedulerSteps | None, moved: Reason | None) -> tuple[Reason, ...] | None:
    """What makes schedulers stand apart, or compute the rates of another step; None where neither is seen."""
    if counted is not None and (moved is not None or not counted.are_alike):
        return counted.causes
    if moved is None:
        return None
    is_ahead = moved.code is Stages.RATE_EARLIER
    return (reason(Stages.SCHEDULER_AHEAD if is_ahead else Stages.SCHEDULER_BEHIND),)


def _schedule_moved(context: Context) -> Reason | None:
    """A reason where the target's learning rates are the reference's one step earlier or later."""
    rank = context.ranks[0]
    target, reference = (_rates(source.scalars(rank)) for source in (context.target, context.reference))
    return _moved(target, reference, *context.steps[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSteps:
    """Where the learning-rate schedulers of both sides stand, as the programs have stepped them."""

    evidence: Reason
    causes: tuple[Reason, ...]

    @property
    def headline(self) -> Reason | None:
        """What explains the rates of every step."""
        return self.evidence if self.evidence.code is Stages.SCHEDULER_PACE else None

    @property
    def are_alike(self) -> bool:
        """They stand at the same step, so that no call of ``step()`` makes other rates."""
        return self.evidence.code is Stages.SCHEDULERS_ALIKE


def _scheduler_steps(context: Context) -> SchedulerSteps | None:
    """Of the first pair of schedulers that differ; None where a side does not know its own, or has another
    number of them. Their pace comes before their start: it makes another start too."""
    positions = list(zip(*(_positions(context, side) for side in (0, 1)), strict=False))
    if not positions or len({len(side) for pair in positions for side in pair}) > 1:
        return None
    if len(positions) > 1 and all(b - a == 1 for a, b in zip(*context.steps[:2], strict=True)):
        advances = (np.subtract(later, first).tolist() for first, later in zip(*positions, strict=True))
        for target, reference in zip(*advances, strict=True):
            if target != reference:
                pace = reason(Stages.SCHEDULER_PACE, target=target, reference=reference)
                return SchedulerSteps(evidence=pace, causes=_causes_of_pace(context, target, reference))
    step = context.steps[0][0]
    for target, reference in zip(*positions[0], strict=True):
        if target != reference:
            stand = reason(Stages.SCHEDULER_BEFORE, step=step, target=target, reference=reference)
            moved = Stages.SCHEDULER_AHEAD if target > reference else Stages.SCHEDULER_BEHIND
            cause = moved if abs(target - reference) == 1 else Stages.SCHEDULER_CAUSE
            return SchedulerSteps(evidence=stand, causes=(reason(cause),))
    return SchedulerSteps(
        evidence=reason(Stages.SCHEDULERS_ALIKE), causes=(reason(Stages.SCHEDULE_SETTINGS),)
    )


def _positions(context: Context, side: int) -> list[Sequence[int]]:
    """Where the schedulers of one side stand at the first updates, up to one that does not say."""
    source = (context.target, context.reference)[side]
    held = {line["step"]: line.get("scheduler_steps") or () for line in source.scalars(context.ranks[0])}
    known = (held.get(pair[side], ()) for pair in context.steps[:2])
    return list(takewhile(bool, known))


def _causes_of_pace(context: Context, target: int, reference: int) -> tuple[Reason, ...]:
    """For each of what the scheduler that steps more often is stepped, as far as the numbers fit."""
    side = 0 if target > reference else 1
    fewer, more = sorted((target, reference))
    source = (context.target, context.reference)[side]
    fits = {
        Stages.SCHEDULER_PER_MICROBATCH: context.microbatches[side],
        Stages.SCHEDULER_PER_PROCESS: source.manifest.get("world_size"),
    }
    return tuple(
        reason(code, num=num)
        for code, num in fits.items()
        if num is not None and num > 1 and more == num * fewer
    )


def _rates(lines: list[ScalarLine]) -> dict[int, tuple[float, ...]]:
    """Of each group, as float32 holds them: some frameworks keep them so."""
    return {
        line["step"]: tuple(float(np.float32(rate)) for rate in line["learning_rate"])
        for line in lines
        if line.get("learning_rate")
    }


def _same(target: tuple[float, ...], reference: tuple[float, ...]) -> bool:
    """Group by group, or as a set where one side has its parameters in other groups."""
    return target == reference if len(target) == len(reference) else set(target) == set(reference)


def _shown(target: tuple[float, ...], reference: tuple[float, ...]) -> dict[str, str]:
    """Both sides, with the digits and repeated rates that tell them apart; float32 has nine digits."""
    sides = {"target": target, "reference": reference}
    for digits, once in ((6, True), (9, True), (9, False)):
        shown = {
            side: ", ".join(f"{rate:.{digits}g}" for rate in (dict.fromkeys(rates) if once else rates))
            for side, rates in sides.items()
        }
        if shown["target"] != shown["reference"]:
            break
    return shown


def _is_of_no_neighbor(
    rates: tuple[float, ...], reference: Mapping[int, tuple[float, ...]], step: int
) -> bool:
    """Whether the reference's rates of the step before and after are known, and neither is the target's: a
    scheduler that is stepped elsewhere, once too often or not at all takes one of them, so that the schedule
    itself is another. Group by group: rates of one group may be constant."""
    beside = [reference.get(step - 1), reference.get(step + 1)]
    return all(one is not None and not _same(rates, one) for one in beside)


def _moved(
    target: Mapping[int, tuple[float, ...]],
    reference: Mapping[int, tuple[float, ...]],
    first: int,
    other: int,
) -> Reason | None:
    for late in (1, -1):
        pairs = [
            (target[s], reference[s - first + other + late])
            for s in target
            if s - first + other + late in reference
        ]
        is_shown = len({p[0] for p in pairs}) > 1 or (
            len(pairs) == 1 and _is_no_factor(target, reference, first, other)
        )
        if is_shown and all(a == b for a, b in pairs):
            return reason(Stages.RATE_EARLIER if late > 0 else Stages.RATE_LATER)
    return None


def _is_no_factor(
    target: Mapping[int, tuple[float, ...]],
    reference: Mapping[int, tuple[float, ...]],
    first: int,
    other: int,
) -> bool:
    """Whether the rates differ in every step, and by no one factor: of two steps, a schedule that is one step
    ahead has one pair of equal rates, which a warmup to twice the rate has as well."""
    pairs = [(target[s], reference[s - first + other]) for s in target if s - first + other in reference]
    if any(_same(a, b) or len(a) != len(b) or not all(b) for a, b in pairs):
        return False
    factors = [own / there for a, b in pairs for own, there in zip(a, b, strict=True)]
    rounded = 4 * DTYPES["float32"].eps  # two quotients, of rates that float32 holds
    return max(factors) - min(factors) > rounded * max(factors)
