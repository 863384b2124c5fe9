"""The runs at learning rate 0 and over thousands of steps as lines of a sign-off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trueup.accepting.item import Item, ProcedurePart, State, item_from_criterion
from trueup.curves.columns import GRAD_NORM, LOSS
from trueup.curves.comparison import CurveComparison, Options, compare_curves
from trueup.curves.conditions import ASSUMABLE
from trueup.curves.judgement import FINDINGS, CurveJudgement
from trueup.curves.reading import read_curve
from trueup.curves.standard import below
from trueup.curves.statistics.frozen import FrozenRun
from trueup.curves.thresholds import (
    DEFAULT_HOURS,
    DEFAULT_STEPS,
    FEWEST_REPEATS,
    FEWEST_STEPS,
    FIRST_ABS,
    FIRST_REL,
    MEAN_ABS,
    MEAN_REL,
    NORM_REL,
    ROUGH,
)
from trueup.errors import ConfigError
from trueup.types.codes import AcceptCode as Code
from trueup.types.codes import CriterionCode as Criteria
from trueup.types.codes import CurvesCode
from trueup.types.reason import Reason, reason
from trueup.types.status import Outcome

_ASKED: tuple[tuple[str, Reason, Reason, bool], ...] = (
    (
        "steps",
        reason(Criteria.ENOUGH_STEPS, num=FEWEST_STEPS, default=DEFAULT_STEPS, hours=DEFAULT_HOURS),
        reason(Criteria.STANDARD, rule="test standard 1"),
        True,
    ),
    ("repeats", reason(Criteria.AT_LEAST, num=FEWEST_REPEATS), reason(Code.REPEATS_RULE), True),
    (
        "smooth",
        reason(Criteria.AT_MOST, rel=ROUGH),
        reason(Criteria.OF_TRUEUP, rule="test standard 3"),
        False,
    ),
    ("first_loss", below(FIRST_ABS, FIRST_REL), reason(Criteria.STANDARD, rule="loss 1"), True),
    ("mean_loss", below(MEAN_ABS, MEAN_REL), reason(Criteria.STANDARD, rule="loss 2"), True),
    (
        "global_norm",
        reason(Criteria.AT_MOST, rel=NORM_REL),
        reason(Criteria.STANDARD, rule="monitoring indicator"),
        False,
    ),
)
"""what the standard asks of a long run: key, threshold, origin, whether it decides"""


def compared(logs: Sequence[str], option: str, options: Options) -> CurveComparison | None:
    """A target's log against its reference's and its repeats'; None without logs.

    Raises:
        ConfigError: the target's log alone, or one log twice.
        TraceError: a log cannot be read.
        NothingCompared: they have nothing in common.
    """
    if not logs:
        return None
    if len(logs) < 2:
        raise ConfigError(
            f"{option} {logs[0]}: say what to compare with: {option} TARGET_LOG REFERENCE_LOG ..."
        )
    places = [str(Path(log).resolve()) for log in logs]
    twice = [log for log, place in zip(logs, places, strict=True) if places.count(place) > 1]
    if twice:
        raise ConfigError(f"{option}: {twice[0]} is given twice; every log is another run's")
    target, *references = (read_curve(log) for log in logs)
    return compare_curves(target, references, options)


def long_run_items(found: CurveComparison | None) -> list[Item]:
    """The standard's criteria, those that the logs do not answer included, and what is seen beyond them."""
    known = {} if found is None else {c.key: c for c in found.evidence.criteria if c.key not in ASSUMABLE}
    items = []
    for key, threshold, origin, binding in _ASKED:
        item = Item(
            key=key,
            part=ProcedurePart.LONG_RUN,
            title=reason(Criteria.TITLE, key=key),
            state=State.NOT_SHOWN,
            binding=binding,
            measured=reason(_why_not_in(found, key)),
            threshold=threshold,
            origin=origin,
            how=reason(Code.GIVE_LOGS),
        )
        if key in known:
            item = item_from_criterion(known[key], ProcedurePart.LONG_RUN)
        if key == "repeats" and item.state is State.WARNING:
            item = _unknown_spread(item)
        items.append(item)
    return [*items, _beyond(found)]


def _why_not_in(found: CurveComparison | None, key: str) -> Code:
    """Why a criterion has no line: the mean of losses is asked of runs that train."""
    if found is None:
        return Code.NO_LOGS
    trains = found.evidence.frozen is None
    return Code.NOT_IN_LOGS if trains or key != "mean_loss" else Code.RATE_ZERO


def _unknown_spread(item: Item) -> Item:
    """The guide confirms the benchmark's own error before it judges any other by it."""
    how = reason(Code.WITH_NOTE, *item.evidence, reason(Code.GIVE_LOGS))
    return replace(item, state=State.NOT_SHOWN, binding=True, evidence=(), how=how)


def _beyond(found: CurveComparison | None) -> Item:
    item = Item(
        key="judgement",
        part=ProcedurePart.LONG_RUN,
        title=reason(Code.TITLE, key="judgement"),
        state=State.NOT_SHOWN,
        binding=True,
        measured=reason(Code.NO_LOGS),
        threshold=reason(Code.WITHIN_SPREAD),
        origin=reason(Code.GUIDE, rule="stage 3"),
        how=reason(Code.GIVE_LOGS),
    )
    if found is None:
        return item
    judgement = found.judgement
    return replace(
        item,
        state=_state(judgement),
        measured=_without_proofs(judgement.headline),
        evidence=(*judgement.reasons, *judgement.remarks),
        how=None,
    )


def _state(judgement: CurveJudgement) -> State:
    """A finding is for a person to look at: it neither fails nor passes."""
    if judgement.outcome is Outcome.DIFFER:
        return State.FAILED
    return State.WARNING if judgement.case in FINDINGS else State.PASSED


def _without_proofs(headline: Reason) -> Reason:
    """What the curves show, whether or not all that makes them comparable is proved."""
    return headline.parts[0] if headline.code is CurvesCode.NOT_PROVED else headline


def leaves_a_small_gap(found: CurveComparison | None) -> bool:
    """Whether a late gap below 1 % is left, which the guide hands to downstream tasks."""
    late = None if found is None else found.evidence.late
    return late is not None and late.p_value < 0.01 and 0 < abs(late.relative_gap) < MEAN_REL


def no_update_items(found: CurveComparison | None) -> list[Item]:
    """Losses and norms of every step while no weight is updated."""
    still = None if found is None else found.evidence.frozen
    rule = "stage 3: weights not updated"
    measured = reason(_why_not_frozen(found))
    loss = Item(
        key="no_update_loss",
        part=ProcedurePart.NO_UPDATE,
        title=reason(Code.TITLE, key="no_update_loss"),
        state=State.NOT_SHOWN,
        binding=False,
        threshold=reason(Code.FROZEN_STEPS, below(FIRST_ABS, FIRST_REL), num=FEWEST_STEPS),
        origin=reason(Code.FIRST_LOSS_RULE, rule=rule),
        measured=measured,
        how=reason(Code.GIVE_FROZEN),
    )
    norm = Item(
        key="no_update_norm",
        part=ProcedurePart.NO_UPDATE,
        title=reason(Code.TITLE, key="no_update_norm"),
        state=State.NOT_SHOWN,
        binding=False,
        threshold=reason(Code.ON_MEAN, reason(Criteria.AT_MOST, rel=NORM_REL)),
        origin=reason(Code.NORM_RULE, rule=rule),
        measured=measured,
        how=reason(Code.GIVE_FROZEN),
    )
    if still is None or found is None:
        return [loss, norm]
    broken = _broken(found)
    return [
        _still_loss(loss, still, broken.get(LOSS, ())),
        _still_norm(norm, still, broken.get(GRAD_NORM, ())),
    ]


def _why_not_frozen(found: CurveComparison | None) -> Code:
    if found is None:
        return Code.NO_LOGS
    rates = found.evidence.rates
    if rates is None:
        return Code.RATE_NOT_LOGGED
    return Code.NOT_IN_LOGS if rates.all_zero else Code.RATE_NOT_ZERO


def _broken(found: CurveComparison) -> dict[str, tuple[Reason, ...]]:
    """The column that is NaN or infinite in the target and not in the reference, and how that is said."""
    broke_as = found.evidence.target_health.broke_as
    if found.judgement.case != "not_finite":
        return {}
    return {LOSS if broke_as is None else broke_as[0]: (found.judgement.headline,)}


def _still_loss(item: Item, still: FrozenRun, broken: tuple[Reason, ...]) -> Item:
    if not still.num_steps and not broken:
        return replace(item, measured=reason(Code.NO_FINITE))
    state = State.FAILED if still.num_beyond or broken else State.PASSED
    if state is State.PASSED and still.num_steps < FEWEST_STEPS:
        state = State.WARNING
    evidence = [*broken]
    if still.num_steps:
        evidence.append(reason(Code.LARGEST, num=still.num_steps, step=still.max_loss_step))
    if still.outlying_steps:
        evidence.append(reason(Code.OUTLYING, steps=[str(step) for step in still.outlying_steps]))
    losses = reason(
        Code.FROZEN_LOSS,
        mean=still.mean_loss_diff,
        largest=still.max_loss_diff,
        num=still.num_beyond,
        total=still.num_steps,
    )
    return replace(
        item,
        state=state,
        binding=state is State.FAILED,
        measured=losses if still.num_steps else reason(Code.NO_FINITE),
        evidence=tuple(evidence),
        how=None,
    )


def _still_norm(item: Item, still: FrozenRun, broken: tuple[Reason, ...]) -> Item:
    relative = still.mean_norm_rel_diff
    if broken:
        return replace(item, state=State.FAILED, binding=True, measured=broken[0], how=None)
    if relative is None:
        return replace(item, measured=reason(Code.NO_NORM))
    return replace(
        item,
        state=State.PASSED if relative <= NORM_REL else State.WARNING,
        measured=reason(
            Code.FROZEN_NORM, mean=still.mean_norm_diff, rel=relative, largest=still.max_norm_diff
        ),
        how=None,
    )
