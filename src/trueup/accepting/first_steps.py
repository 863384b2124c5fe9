"""Preparation and the first two steps in a sign-off: losses by the standard, all else by diagnosis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from trueup.accepting.item import Item, ProcedurePart, State, item_from_criterion
from trueup.curves.conditions import DATA, WEIGHTS
from trueup.curves.standard import Criterion, below, difference
from trueup.curves.thresholds import FIRST_ABS, FIRST_REL
from trueup.diagnosing.diagnosis import Diagnosis, StepLoss
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
    return [_prepared(item_from_criterion(one, ProcedurePart.PREPARATION), diagnosis) for one in proved]


def _prepared(item: Item, diagnosis: Diagnosis | None) -> Item:
    if item.state is State.NOT_SHOWN:
        item = replace(item, how=reason(Code.OR_ASSUME, reason(Code.GIVE_TRACES), key=item.key))
    outcome = _outcome(diagnosis, _OF_STAGE.get(item.key))
    if outcome is None or outcome.status is StageStatus.UNDECIDED:
        return item
    state = _STATES[outcome.status]
    if state is item.state and state is State.PASSED:
        return replace(item, evidence=(*item.evidence, outcome.conclusion))
    return replace(
        item,
        state=state,
        binding=True,
        measured=outcome.conclusion,
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
        part=ProcedurePart.FIRST_STEPS,
        title=reason(Code.TITLE, key=key),
        state=State.NOT_SHOWN,
        binding=False,
        measured=reason(Code.NO_TRACES if diagnosis is None else Code.NOT_CAPTURED),
        threshold=below(FIRST_ABS, FIRST_REL),
        origin=standard if number == 1 else reason(Code.FIRST_LOSS_RULE, rule="stage 2"),
        how=reason(Code.GIVE_TRACES if diagnosis is None else Code.CAPTURE_TWO),
    )
    pair = None if diagnosis is None else _pair(diagnosis.losses, number)
    if pair is None:
        return item
    target, reference = pair.target, pair.reference
    apart, relative = _apart(pair)
    met = apart < FIRST_ABS or relative < FIRST_REL
    known = math.isfinite(reference)  # a loss that the reference has not is held against nothing
    return replace(
        item,
        state=State.PASSED if met else State.FAILED if known else State.NOT_SHOWN,
        binding=True,
        measured=difference(apart, relative),
        evidence=(reason(Code.LOSSES, step=pair.step, target=target, reference=reference),),
        how=None if known else reason(Code.GIVE_TRACES),
    )


def _pair(losses: Sequence[StepLoss], number: int) -> StepLoss | None:
    """The losses of the first captured step, or of the one after it; of ranks those furthest apart."""
    first = min((one.step for one in losses), default=0)
    there = [one for one in losses if one.step == first + number - 1]
    return max(there, key=lambda one: _size(_apart(one)), default=None)


def _apart(pair: StepLoss) -> tuple[float, float]:
    """Absolute and relative difference."""
    apart = abs(pair.target - pair.reference)
    return apart, apart / abs(pair.reference) if pair.reference else math.inf if apart else 0.0


def _size(apart: tuple[float, float]) -> float:
    """How far from what the standard allows, NaN the furthest."""
    return min(math.inf if math.isnan(one) else one for one in apart)


def _stage(stage: Stage, diagnosis: Diagnosis | None) -> Item:
    outcome = _outcome(diagnosis, stage)
    key = stage.value if stage is not Stage.LOSS else "next_loss"
    item = Item(
        key=key,
        part=ProcedurePart.FIRST_STEPS,
        title=reason(Code.TITLE, key=key),
        state=State.NOT_SHOWN,
        binding=False,
        measured=reason(Code.NO_TRACES),
        threshold=reason(Code.WITHIN_NOISE),
        origin=reason(Code.OF_STAGE, stage=stage.value),
        how=reason(Code.GIVE_TRACES),
    )
    if outcome is None:
        return item if diagnosis is None else replace(item, measured=reason(Code.NOT_CAPTURED))
    state = _STATES[outcome.status]
    findings = [reason(Code.FINDING, f.headline, confidence=str(f.confidence)) for f in outcome.findings]
    return replace(
        item,
        state=state,
        binding=outcome.status is StageStatus.FAILED and outcome.confirmed,
        measured=outcome.conclusion,
        evidence=tuple(dict.fromkeys([*findings, *outcome.evidence]))[:6],
        how=_how(outcome) if state is State.NOT_SHOWN else None,
    )


def _how(outcome: StageOutcome) -> Reason:
    return reason(Code.CAPTURE_TWO if outcome.stage is Stage.LOSS else Code.REPLAY)
