"""Preparation and the first two steps in a sign-off: losses by the standard, all else by diagnosis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from trueup.accepting.item import Item, Part, State, item_from_criterion
from trueup.curves.conditions import DATA, WEIGHTS
from trueup.curves.standard import Criterion, below, difference
from trueup.curves.thresholds import FIRST_ABS, FIRST_REL
from trueup.diagnosing.diagnosis import Diagnosis
from trueup.diagnosing.stages import StageOutcome, StageStatus
from trueup.types.codes import AcceptCode as Code
from trueup.types.codes import CriterionCode
from trueup.types.finding import Stage
from trueup.types.reason import Reason, reason

_STATES = {
    StageStatus.PASSED: State.PASSED,
    StageStatus.FAILED: State.FAILED,
    StageStatus.CONSEQUENCE: State.FAILED,
    StageStatus.UNDECIDED: State.NOT_SHOWN,
    StageStatus.SKIPPED: State.NOT_SHOWN,
}
_STEPS = (Stage.FORWARD, Stage.BACKWARD, Stage.REDUCTION, Stage.OPTIMIZER, Stage.LOSS)
"""stages of a diagnosis, the loss being that of step 2"""
_OF_STAGE = {WEIGHTS: Stage.WEIGHTS, DATA: Stage.DATA}


def preparation_items(proved: Sequence[Criterion], diagnosis: Diagnosis | None) -> list[Item]:
    """The preconditions of the standard. Weights and batches the diagnosis also compares, value by value and
    across layouts and frameworks, which says more than their digests do."""
    return [_prepared(item_from_criterion(one, Part.PREPARATION), diagnosis) for one in proved]


def _prepared(item: Item, diagnosis: Diagnosis | None) -> Item:
    if item.state is State.NOT_SHOWN:
        item = replace(item, how=reason(Code.OR_ASSUME, reason(Code.GIVE_TRACES), key=item.key))
    outcome = _outcome(diagnosis, _OF_STAGE.get(item.key))
    if outcome is None or outcome.status is StageStatus.UNDECIDED:
        return item
    state = _STATES[outcome.status]
    if state is item.state and state is State.PASSED:
        return replace(item, evidence=(*item.evidence, outcome.said))
    return replace(
        item,
        state=state,
        binding=True,
        measured=outcome.said,
        evidence=outcome.evidence[:4],
        how=None,
    )


def _outcome(diagnosis: Diagnosis | None, stage: Stage | None) -> StageOutcome | None:
    found = () if diagnosis is None or stage is None else diagnosis.stages
    return next((one for one in found if one.stage is stage), None)


def step_items(diagnosis: Diagnosis | None) -> list[Item]:
    """Losses of the first two captured steps, then what the diagnosis says of each stage."""
    losses = [_loss(number, diagnosis) for number in (1, 2)]
    stages = [_stage(stage, diagnosis) for stage in _STEPS]
    return [losses[0], *stages[:-1], losses[1], stages[-1]]


def _loss(number: int, diagnosis: Diagnosis | None) -> Item:
    key = f"loss_of_step_{number}"
    standard = reason(CriterionCode.STANDARD, rule="loss 1")
    item = Item(
        key=key,
        part=Part.FIRST_STEPS,
        title=reason(Code.TITLE, key=key),
        state=State.NOT_SHOWN,
        binding=False,
        measured=reason(Code.NOT_CAPTURED),
        threshold=below(FIRST_ABS, FIRST_REL),
        origin=standard if number == 1 else reason(Code.FIRST_LOSS_RULE, rule="stage 2"),
        how=reason(Code.GIVE_TRACES),
    )
    losses = () if diagnosis is None else diagnosis.losses
    pair = losses[number - 1] if len(losses) >= number else None
    if pair is None:
        return item
    target, reference = pair.target, pair.reference
    apart = abs(target - reference)
    relative = apart / abs(reference) if reference else math.inf if apart else 0.0
    met = apart < FIRST_ABS or relative < FIRST_REL
    return replace(
        item,
        state=State.PASSED if met else State.FAILED,
        binding=True,
        measured=difference(apart, relative),
        evidence=(reason(Code.LOSSES, step=pair.step, target=target, reference=reference),),
        how=None,
    )


def _stage(stage: Stage, diagnosis: Diagnosis | None) -> Item:
    outcome = _outcome(diagnosis, stage)
    key = stage.value if stage is not Stage.LOSS else "next_loss"
    item = Item(
        key=key,
        part=Part.FIRST_STEPS,
        title=reason(Code.TITLE, key=key),
        state=State.NOT_SHOWN,
        binding=False,
        measured=reason(Code.NO_TRACES),
        threshold=reason(Code.WITHIN_NOISE),
        origin=reason(Code.OF_STAGE, stage=stage.value),
        how=reason(Code.GIVE_TRACES),
    )
    if outcome is None:
        return item
    state = _STATES[outcome.status]
    findings = [reason(Code.FINDING, f.headline, confidence=str(f.confidence)) for f in outcome.findings]
    return replace(
        item,
        state=state,
        binding=outcome.status is StageStatus.FAILED and outcome.confirmed,
        measured=outcome.said,
        evidence=tuple(dict.fromkeys([*findings, *outcome.evidence]))[:6],
        how=_how(outcome) if state is State.NOT_SHOWN else None,
    )


def _how(outcome: StageOutcome) -> Reason:
    return reason(Code.CAPTURE_TWO if outcome.stage is Stage.LOSS else Code.REPLAY)
