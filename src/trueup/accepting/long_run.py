"""The runs at learning rate 0 and over thousands of steps as lines of a sign-off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trueup.accepting.item import GUIDE, STANDARD, Item, Part, State, item_from_criterion
from trueup.curves.comparison import CurveComparison, Options, compare_curves
from trueup.curves.conditions import ASSUMABLE
from trueup.curves.reading import read_curve
from trueup.curves.standard import (
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
    absolute,
    percent,
)
from trueup.curves.statistics.frozen import Frozen
from trueup.errors import ConfigError
from trueup.types.codes import CurvesCode
from trueup.types.reason import Reason
from trueup.types.status import Outcome
from trueup.wording import text

HOW = "--curves TARGET_LOG REFERENCE_LOG REPEAT ..., with two runs of the reference or more, determinism off"
HOW_NO_UPDATE = (
    "train both at learning rate 0 (trueup capture --learning-rate 0) for 1,000 steps, "
    "then --learning-rate-0 TARGET_LOG REFERENCE_LOG"
)
_WANTED = (
    (
        "steps",
        "Steps observed without a break",
        f"≥ {FEWEST_STEPS:,} (default {DEFAULT_STEPS:,} or {DEFAULT_HOURS} h)",
        f"{STANDARD}, test standard 1",
        True,
    ),
    (
        "repeats",
        "Repeats of the reference, determinism off",
        f"≥ {FEWEST_REPEATS}",
        f"{STANDARD}, test standard 4; {GUIDE}, benchmark error confirmation",
        True,
    ),
    (
        "smooth",
        "Reference curve is smooth (change from step to step)",
        f"≤ {percent(ROUGH)}",
        f"{STANDARD}, test standard 3; the number is trueup's",
        False,
    ),
    (
        "first_loss",
        "First loss",
        f"< {absolute(FIRST_ABS)} or < {percent(FIRST_REL)}",
        f"{STANDARD}, loss 1",
        True,
    ),
    (
        "mean_loss",
        "Mean error of the loss",
        f"< {absolute(MEAN_ABS)} or < {percent(MEAN_REL)}",
        f"{STANDARD}, loss 2",
        True,
    ),
    (
        "global_norm",
        "Global gradient norm, mean relative error",
        f"≤ {percent(NORM_REL)}",
        f"{STANDARD}, monitoring indicator",
        False,
    ),
)
"""what the standard asks of a long run: key, title, threshold, origin, whether it decides"""


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
    twice = [log for log in logs if list(logs).count(log) > 1]
    if twice:
        raise ConfigError(f"{option}: {twice[0]} is given twice; every log is another run's")
    target, *references = (read_curve(log) for log in logs)
    return compare_curves(target, references, options)


def long_run_items(found: CurveComparison | None) -> list[Item]:
    """The standard's criteria, those that the logs do not answer included, and what is seen beyond them."""
    known = {} if found is None else {c.key: c for c in found.evidence.criteria if c.key not in ASSUMABLE}
    items = []
    for key, title, threshold, origin, binding in _WANTED:
        item = Item(
            key=key,
            part=Part.LONG_RUN,
            title=title,
            state=State.NOT_SHOWN,
            binding=binding,
            measured="no logs were given" if found is None else "the logs do not tell",
            threshold=threshold,
            origin=origin,
            how=HOW,
        )
        if key in known:
            item = item_from_criterion(known[key], Part.LONG_RUN)
        if key == "repeats" and item.state is State.WARNING:
            item = _unknown_spread(item)
        items.append(item)
    return [*items, _beyond(found)]


def _unknown_spread(item: Item) -> Item:
    """The guide confirms the benchmark's own error before it judges any other by it."""
    return replace(
        item, state=State.NOT_SHOWN, binding=True, evidence=(), how="; ".join([*item.evidence, HOW])
    )


def _beyond(found: CurveComparison | None) -> Item:
    item = Item(
        key="judgement",
        part=Part.LONG_RUN,
        title="Drift, late gap, spikes, plateau, NaN",
        state=State.NOT_SHOWN,
        binding=True,
        measured="no logs were given",
        threshold="within the reference's own spread, centred on zero",
        origin=f"{GUIDE}, stage 3",
        how=HOW,
    )
    if found is None:
        return item
    judgement = found.judgement
    return replace(
        item,
        state=State.FAILED if judgement.outcome is Outcome.DIFFER else State.PASSED,
        measured=text(_without_proofs(judgement.headline)),
        evidence=tuple(map(text, (*judgement.reasons, *judgement.remarks))),
        how="",
    )


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
    origin = f"{GUIDE}, stage 3: weights not updated"
    loss = Item(
        key="no_update_loss",
        part=Part.NO_UPDATE,
        title="Loss of every step, weights not updated",
        state=State.NOT_SHOWN,
        binding=False,
        threshold=f"every step < {absolute(FIRST_ABS)} or < {percent(FIRST_REL)}, {FEWEST_STEPS:,} steps",
        origin=f"{origin}; the numbers are the standard's first loss",
        measured="no logs were given"
        if found is None
        else "the learning rate in these logs is not 0 throughout",
        how=HOW_NO_UPDATE,
    )
    norm = Item(
        key="no_update_norm",
        part=Part.NO_UPDATE,
        title="Global gradient norm of every step, weights not updated",
        state=State.NOT_SHOWN,
        binding=False,
        threshold=f"≤ {percent(NORM_REL)} on the mean",
        origin=f"{origin}; the number is the standard's monitoring indicator",
        measured=loss.measured,
        how=HOW_NO_UPDATE,
    )
    if still is None:
        return [loss, norm]
    return [_still_loss(loss, still), _still_norm(norm, still)]


def _still_loss(item: Item, still: Frozen) -> Item:
    state = State.FAILED if still.num_beyond else State.PASSED
    if state is State.PASSED and still.num_steps < FEWEST_STEPS:
        state = State.WARNING
    evidence = [f"{still.num_steps:,} steps; largest difference at step {still.max_loss_step}"]
    if still.outlying_steps:
        evidence.append(f"steps that stand out: {', '.join(map(str, still.outlying_steps))}")
    return replace(
        item,
        state=state,
        binding=state is State.FAILED,
        measured=f"mean {absolute(still.mean_loss_diff)}, largest {absolute(still.max_loss_diff)}, "
        f"{still.num_beyond:,} of {still.num_steps:,} steps beyond",
        evidence=tuple(evidence),
        how="",
    )


def _still_norm(item: Item, still: Frozen) -> Item:
    relative = still.mean_norm_rel_diff
    if relative is None:
        return replace(item, measured="no gradient norm was logged on both sides")
    return replace(
        item,
        state=State.PASSED if relative <= NORM_REL else State.WARNING,
        measured=f"mean {absolute(still.mean_norm_diff)}, {percent(relative)}, "
        f"largest {absolute(still.max_norm_diff)}",
        how="",
    )
