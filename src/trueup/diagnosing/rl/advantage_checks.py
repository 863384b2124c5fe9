"""Advantages and returns: what the estimator gives of a run's own rewards, groups and values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from trueup.diagnosing.rl.batch_checks import moved_by, settings_apart, sides_of
from trueup.diagnosing.rl.fits import Case, FormulaValue, by_formula, fitted
from trueup.diagnosing.rl.formulas import Advantages, exact, number, short
from trueup.diagnosing.rl.steps import QuantityCheck, RLStepPair
from trueup.diagnosing.rl.tables import SequenceTable
from trueup.diagnosing.rl.thresholds import LEVEL
from trueup.diagnosing.stages.protocol import StageStatus
from trueup.store.rollouts import Setting
from trueup.types.arrays import Array, Floats
from trueup.types.codes import RLCode
from trueup.types.finding import Stage
from trueup.types.reason import Reason, reason

_SETTINGS = ("estimator", "gamma", "lam", "by_std", "std_over", "epsilon")
_INPUTS = ("scores", "rewards", "values", "response_mask")
DISCOUNTS = (0.0, 0.5, 0.9, 0.95, 0.96, 0.97, 0.98, 0.99, 0.995, 0.999, 1.0)
EPSILONS = (0.0, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3)
"""settings in use"""
_LINE = 2
"""a line goes through any two points: of three distinct rewards on it says something"""
Settings = Mapping[str, Setting]
Cases = Callable[[SequenceTable, Settings], list[Case]]


def advantages(pair: RLStepPair) -> Iterator[QuantityCheck]:
    """What the estimator gives of rewards, groups and values."""
    yield from _held_to(pair, "advantages", advantage_cases)


def returns(pair: RLStepPair) -> Iterator[QuantityCheck]:
    """What the critic is trained to give."""
    for check in _held_to(pair, "returns", return_cases):
        follows = check.status is StageStatus.FAILED and not pair.agrees("advantages")
        yield pair.quantity(check.stage, check.quantity, check.role).follows() if follows else check


def _held_to(pair: RLStepPair, name: str, cases: Cases) -> Iterator[QuantityCheck]:
    sides = list(sides_of(pair))
    if pair.batch is None or any(name not in table for table, _ in sides):
        return
    own = [fitted(cases(table, settings)) for table, settings in sides]
    other = fitted(cases(sides[0][0], sides[1][1]))
    yield by_formula(
        pair.quantity(Stage.ADVANTAGES, name, "trainer"),
        (own[0], own[1]),
        settings_apart(*pair.settings, _SETTINGS) if other is not None and not other.holds else (),
        pair.batch.apart(name) if pair.batch.is_whole else None,
        inputs_agree=pair.agrees(*_INPUTS),
    )


def advantage_cases(table: SequenceTable, settings: Settings) -> list[Case]:
    """The advantages of one batch, and what known variants give."""
    held, given = table.get("advantages"), given_of(table, settings)
    expected = None if given is None else _value(given)
    if held is None or given is None or expected is None:
        return []
    inside, known = table.mask > 0, expected

    def variants() -> Iterator[tuple[Reason, FormulaValue]]:
        for variant, changed in _forms(table, given):
            value = _value(changed)
            if value is not None:
                yield variant, value.at(inside)
        size = float((known.value * known.value)[inside].sum())
        factor = short(float((held * known.value)[inside].sum()) / size) if size else 1.0
        scaled = replace(known, value=factor * known.value, narrow=None)
        yield reason(RLCode.ADVANTAGES_SCALED, used=factor), scaled.at(inside)
        most = float(np.abs(held[inside]).max(initial=0.0))
        clipped = replace(known, value=np.clip(known.value, -most, most), narrow=None)
        yield reason(RLCode.ADVANTAGES_CLIPPED, used=most), clipped.at(inside)
        moments = _other_moments(held, given, known)
        if moments is not None:
            yield moments[0], moments[1].at(inside)

    return [
        Case(
            recorded=held[inside],
            expected=expected.at(inside),
            variants=variants(),
            unit=table.unit("advantages"),
        )
    ]


def return_cases(table: SequenceTable, settings: Settings) -> list[Case]:
    """The returns of one batch, and what known variants give."""
    held, given = table.get("returns"), given_of(table, settings)
    expected = None if given is None else _return(given)
    if held is None or given is None or expected is None:
        return []
    inside = table.mask > 0

    def variants() -> Iterator[tuple[Reason, FormulaValue]]:
        whitened = _value(given)
        if given.estimator == "gae" and whitened is not None and given.values is not None:
            size = whitened.magnitude + np.abs(given.values)
            summed = FormulaValue(value=whitened.value + given.values, magnitude=size)
            yield reason(RLCode.RETURNS_WHITENED), summed.at(inside)
        for name in ("advantages", "rewards"):
            other = table.get(name)
            if other is not None:
                variant = reason(RLCode.COPIED, quantity="returns", of=name)
                yield variant, FormulaValue(value=other, magnitude=np.abs(other)).at(inside)
        for variant, changed in _forms(table, given, "returns"):
            value = _return(changed)
            if value is not None:
                yield variant, value.at(inside)

    return [
        Case(
            recorded=held[inside],
            expected=expected.at(inside),
            variants=variants(),
            unit=table.unit("returns"),
        )
    ]


def given_of(table: SequenceTable, settings: Settings) -> Advantages | None:
    """What a batch's advantages are made from; None where it was not recorded."""
    rewards = table.get("rewards")
    rewards = table.get("scores") if rewards is None else rewards
    if rewards is None or "group" not in table:
        return None
    return Advantages(
        estimator=str(settings.get("estimator")),
        rewards=rewards,
        mask=table.mask,
        group=table.arrays["group"],
        values=table.get("values"),
        gamma=number(settings, "gamma", 1.0),
        lam=number(settings, "lam", 1.0),
        by_std=bool(settings.get("by_std", True)),
        epsilon=number(settings, "epsilon", 1e-6),
        batch_std=settings.get("std_over") == "batch",
        rounded=table.rounding("values"),
    )


def _value(given: Advantages) -> FormulaValue | None:
    found = given.computed()
    if found is None:
        return None
    scores = np.abs(given.rewards).sum(axis=1)
    if given.estimator == "reinforce_plus_plus_baseline" and not given.whitens:
        size = np.zeros(len(scores)) + scores.max(initial=0.0)
        return FormulaValue(value=found, magnitude=np.broadcast_to(size[:, None], found.shape))
    if given.estimator in ("grpo", "rloo"):
        size = np.zeros(len(scores))
        for one in np.unique(given.group):
            rows = given.group == one
            held = given.rewards[rows].sum(axis=1)
            std = held.std(ddof=given.ddof) if rows.sum() > 1 else 1.0
            divides = given.by_std and given.estimator == "grpo"
            size[rows] = scores[rows].max() / ((std + given.epsilon) if divides else 1.0)
        return FormulaValue(
            value=found, magnitude=np.broadcast_to(size[:, None], found.shape) + np.abs(found)
        )
    raw, single = replace(given, whitens=False).computed(), replace(given, rounded=exact).computed()
    inside = given.mask > 0
    spread = float(raw[inside].std()) if raw is not None and inside.any() and given.whitens else 1.0
    size = np.abs(found) + _largest(given) / max(spread, given.epsilon)
    return FormulaValue(value=found if single is None else single, magnitude=size, narrow=found)


def _largest(given: Advantages) -> Floats:
    """What sums over a response may be made of."""
    values = np.zeros_like(given.rewards) if given.values is None else given.values
    summed = np.abs(given.rewards).sum(axis=1).max(initial=0.0)
    largest: Floats = summed + np.abs(values).max(initial=0.0) * given.mask.shape[1] ** 0.5
    return largest


def _return(given: Advantages) -> FormulaValue | None:
    found, single = given.returns(), replace(given, rounded=exact).returns()
    if found is None or single is None:
        return None
    if given.estimator in ("grpo", "rloo"):
        return _value(given)
    return FormulaValue(value=single, magnitude=np.abs(found) + _largest(given), narrow=found)


# -- variants ------------------------------------------


def _forms(
    table: SequenceTable, given: Advantages, quantity: str = "advantages"
) -> Iterator[tuple[Reason, Advantages]]:
    if given.estimator in ("grpo", "rloo"):
        yield from _of_groups(given)
    elif given.estimator == "reinforce_plus_plus_baseline":
        yield reason(RLCode.WITHOUT_BASELINE), replace(given, centers=False)
        yield reason(RLCode.NOT_WHITENED), replace(given, whitens=False)
        yield reason(RLCode.OVER_BATCH), replace(given, group=np.zeros_like(given.group))
    else:
        yield from _of_tokens(table, given, quantity)
    if given.values is not None:
        for by in (1, -1):
            for values in (np.roll(given.values, by, axis=1), moved_by(given.values, by)):
                variant = reason(RLCode.VALUES_SHIFTED, by=by, quantity=quantity)
                yield variant, replace(given, values=values)
    scores = table.get("scores")
    if scores is not None and not np.array_equal(scores, given.rewards):
        yield reason(RLCode.WITHOUT_KL, quantity=quantity), replace(given, rewards=scores)
    if not np.array_equal(given.mask, table.valid):
        yield reason(RLCode.MASK_IGNORED), replace(given, mask=table.valid.astype(np.float64))


def _of_groups(given: Advantages) -> Iterator[tuple[Reason, Advantages]]:
    size = int(np.unique(given.group, return_counts=True)[1].max(initial=1))
    yield reason(RLCode.OVER_BATCH), replace(given, group=np.zeros_like(given.group))
    neighbours = np.arange(len(given.group)) // max(size, 1)
    yield reason(RLCode.OVER_NEIGHBOURS, size=size), replace(given, group=neighbours)
    for part in range(2, size):
        if size % part == 0:
            variant = reason(RLCode.OVER_PART, size=part, group=size)
            yield variant, replace(given, group=_parts(given.group, part))
    yield (
        reason(RLCode.WITHOUT_STD if given.by_std else RLCode.WITH_STD),
        replace(given, by_std=not given.by_std),
    )
    for estimator, by_std in (("grpo", True), ("grpo", False), ("rloo", False)):
        if given.estimator != estimator:
            used = estimator if by_std or estimator != "grpo" else "grpo without division by std"
            variant = reason(RLCode.OTHER_ESTIMATOR, used=used, wanted=given.estimator)
            yield variant, replace(given, estimator=estimator, by_std=by_std)
    yield reason(RLCode.POPULATION_STD), replace(given, ddof=0)
    code = RLCode.GROUP_STD if given.batch_std else RLCode.BATCH_STD
    yield reason(code), replace(given, batch_std=not given.batch_std)
    yield reason(RLCode.BY_LENGTH), replace(given, by_length=True)
    yield reason(RLCode.WHITENED_AGAIN), replace(given, whitens_groups=True)
    for epsilon in EPSILONS:
        if epsilon != given.epsilon:
            variant = reason(RLCode.EPSILON, used=epsilon, wanted=given.epsilon)
            yield variant, replace(given, epsilon=epsilon)


def _parts(group: Array, size: int) -> Array:
    """Each group cut into parts of so many rows, in the order in which they stand."""
    found = np.zeros(len(group), np.int64)
    for at, one in enumerate(np.unique(group)):
        rows = np.flatnonzero(group == one)
        found[rows] = at * len(group) + np.arange(len(rows)) // size
    return found


def _of_tokens(table: SequenceTable, given: Advantages, quantity: str) -> Iterator[tuple[Reason, Advantages]]:
    if quantity == "advantages":
        yield reason(RLCode.NOT_WHITENED), replace(given, whitens=False)
        yield reason(RLCode.OVER_PADDING), replace(given, whitens_over=np.ones_like(given.mask))
        yield reason(RLCode.OVER_PADDING), replace(given, whitens_over=table.valid.astype(float))
    others = [(gamma, given.lam) for gamma in DISCOUNTS] + [(given.gamma, lam) for lam in DISCOUNTS]
    for gamma, lam in [*others, (1.0, 1.0), (given.lam, given.gamma)]:
        if (gamma, lam) != (given.gamma, given.lam):
            wanted = {"wanted_gamma": given.gamma, "wanted_lam": given.lam}
            variant = reason(RLCode.GAMMA_LAM, gamma=gamma, lam=lam, **wanted, quantity=quantity)
            yield variant, replace(given, gamma=gamma, lam=lam)
    yield reason(RLCode.BOOTSTRAPPED, quantity=quantity), replace(given, bootstraps=True)
    whole = table.arrays.get("values")
    if whole is not None and whole.shape == given.mask.shape:
        variant = reason(RLCode.PADDING_COUNTS, quantity=quantity)
        yield variant, replace(given, values=whole.astype(np.float64), skips=False)


def _other_moments(
    held: Floats, given: Advantages, expected: FormulaValue
) -> tuple[Reason, FormulaValue] | None:
    """Advantages that are a line of their group's rewards, with another mean or deviation than the group's:
    as of a group with other sequences in it. None where two rewards a group leave any line open."""
    if given.estimator not in ("grpo", "rloo"):
        return None
    scores, counted = given.rewards.sum(axis=1), given.mask > 0
    own = held[np.arange(len(held)), counted.argmax(axis=1)]
    value, moments = own.copy(), []
    for one in np.unique(given.group):
        rows = given.group == one
        if len(np.unique(scores[rows])) <= _LINE:
            continue
        slope, offset = np.polyfit(scores[rows], own[rows], 1)
        if not slope > 0:
            return None
        value[rows] = slope * scores[rows] + offset
        moments.append((-offset / slope, scores[rows].mean(), 1 / slope, scores[rows].std(ddof=given.ddof)))
    if not moments:
        return None
    mean, own_mean, std, own_std = max(moments, key=lambda one: abs(one[0] - one[1]) / one[3])
    if given.estimator == "rloo" and abs(mean - own_mean) <= LEVEL * own_std:
        return None  # the group's own mean, and another slope
    divides = given.by_std and given.estimator == "grpo"
    deviations = {"std": std, "own_std": own_std} if divides else {"std": None, "own_std": None}
    variant = reason(RLCode.OTHER_MOMENTS, mean=mean, own_mean=own_mean, **deviations)
    return variant, replace(expected, value=value[:, None] * given.mask, narrow=None)
