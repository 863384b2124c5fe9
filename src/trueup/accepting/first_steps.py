"""Preparation and the first two steps in a sign-off: losses by the standard, all else by diagnosis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from trueup.accepting.item import GUIDE, STANDARD, VOUCH, Item, Part, State, item_from_criterion
from trueup.curves.conditions import DATA, WEIGHTS
from trueup.curves.standard import FIRST_ABS, FIRST_REL, Criterion, absolute, percent
from trueup.diagnosing.diagnosis import Diagnosis
from trueup.diagnosing.stages import StageOutcome, StageStatus
from trueup.types.finding import Stage
from trueup.wording import headline, text, texts

HOW = "two traces: trueup capture --preset diagnose --deterministic -o RUN -- COMMAND, on both sides"
_STATES = {
    StageStatus.PASSED: State.PASSED,
    StageStatus.FAILED: State.FAILED,
    StageStatus.CONSEQUENCE: State.FAILED,
    StageStatus.UNDECIDED: State.NOT_SHOWN,
    StageStatus.SKIPPED: State.NOT_SHOWN,
}
_STEPS = (
    (Stage.FORWARD, "Forward of step 1, module by module", "comparison of step 1's losses"),
    (Stage.BACKWARD, "Backward of step 1: local norms, then layer by layer", "local norms of step 1"),
    (Stage.REDUCTION, "Gradients accumulated, reduced and clipped", "local norms of step 1"),
    (Stage.OPTIMIZER, "Update by the optimizer", "optimizer computation"),
    (Stage.LOSS, "Forward of step 2", "loss of step 2"),
)
_OF_STAGE = {WEIGHTS: Stage.WEIGHTS, DATA: Stage.DATA}
_THRESHOLD = "within rounding and the measured noise"


def preparation_items(proved: Sequence[Criterion], diagnosis: Diagnosis | None) -> list[Item]:
    """The preconditions of the standard. Weights and batches the diagnosis also compares, value by value and
    across layouts and frameworks, which says more than their digests do."""
    return [_prepared(item_from_criterion(one, Part.PREPARATION), diagnosis) for one in proved]


def _prepared(item: Item, diagnosis: Diagnosis | None) -> Item:
    if item.state is State.NOT_SHOWN:
        item = replace(item, how=f"{HOW}{VOUCH}{item.key}")
    outcome = _outcome(diagnosis, _OF_STAGE.get(item.key))
    if outcome is None or outcome.status is StageStatus.UNDECIDED:
        return item
    state = _STATES[outcome.status]
    if state is item.state and state is State.PASSED:
        return replace(item, evidence=(*item.evidence, text(outcome.said)))
    return replace(
        item,
        state=state,
        binding=True,
        measured=text(outcome.said),
        evidence=tuple(texts(outcome.evidence[:4])),
        how="",
    )


def _outcome(diagnosis: Diagnosis | None, stage: Stage | None) -> StageOutcome | None:
    found = () if diagnosis is None or stage is None else diagnosis.stages
    return next((one for one in found if one.stage is stage), None)


def step_items(diagnosis: Diagnosis | None) -> list[Item]:
    """Losses of the first two captured steps, then what the diagnosis says of each stage."""
    losses = [_loss(number, diagnosis) for number in (1, 2)]
    stages = [_stage(stage, title, rule, diagnosis) for stage, title, rule in _STEPS]
    return [losses[0], *stages[:-1], losses[1], stages[-1]]


def _loss(number: int, diagnosis: Diagnosis | None) -> Item:
    rule = f"{GUIDE}, stage 2; the number is the standard's first loss"
    item = Item(
        key=f"loss_of_step_{number}",
        part=Part.FIRST_STEPS,
        title=f"Loss of step {number}",
        state=State.NOT_SHOWN,
        binding=False,
        measured="not captured on both sides",
        threshold=f"< {absolute(FIRST_ABS)} or < {percent(FIRST_REL)}",
        origin=f"{STANDARD}, loss 1" if number == 1 else rule,
        how=HOW,
    )
    losses = () if diagnosis is None else diagnosis.losses
    pair = losses[number - 1] if len(losses) >= number else None
    if pair is None or pair["target"] is None or pair["reference"] is None:
        return item
    mine, theirs = float(pair["target"]), float(pair["reference"])
    apart = abs(mine - theirs)
    relative = apart / abs(theirs) if theirs else math.inf if apart else 0.0
    met = apart < FIRST_ABS or relative < FIRST_REL
    return replace(
        item,
        state=State.PASSED if met else State.FAILED,
        binding=True,
        measured=f"{absolute(apart)}, {percent(relative)}",
        evidence=(f"captured step {pair['step']}: {mine:.8g} against {theirs:.8g}",),
        how="",
    )


def _stage(stage: Stage, title: str, rule: str, diagnosis: Diagnosis | None) -> Item:
    outcome = _outcome(diagnosis, stage)
    item = Item(
        key=stage.value if stage is not Stage.LOSS else "next_loss",
        part=Part.FIRST_STEPS,
        title=title,
        state=State.NOT_SHOWN,
        binding=False,
        measured="no traces were given",
        threshold=_THRESHOLD,
        origin=f"{GUIDE}, stage 2: {rule}; bounds as trueup compare gives them",
        how=HOW,
    )
    if outcome is None:
        return item
    state = _STATES[outcome.status]
    findings = [f"{headline(f.headline)} (confidence {f.confidence:.0%})" for f in outcome.findings]
    return replace(
        item,
        state=state,
        binding=outcome.status is StageStatus.FAILED and outcome.confirmed,
        measured=text(outcome.said),
        evidence=tuple(dict.fromkeys([*findings, *texts(outcome.evidence)]))[:6],
        how=_how(outcome) if state is State.NOT_SHOWN else "",
    )


def _how(outcome: StageOutcome) -> str:
    if outcome.stage is Stage.LOSS:
        return "capture two steps on both sides"
    return 'trueup capture --preset diagnose on both sides, and --replay "COMMAND"'
