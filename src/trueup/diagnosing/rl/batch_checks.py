"""Checks of a batch as the trainer has it: prompts, rewards, masks, advantages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from trueup.diagnosing.rl.fits import Case, Value, by_formula, differs, fitted, in_doubt
from trueup.diagnosing.rl.formulas import Advantages, exact, kl, number
from trueup.diagnosing.rl.steps import Check, StepPair
from trueup.diagnosing.rl.tables import Apart, Pair, Table, rms
from trueup.diagnosing.rl.thresholds import MOVED
from trueup.store.rollouts import Setting
from trueup.types.arrays import Floats
from trueup.types.codes import RLCode
from trueup.types.finding import Stage
from trueup.types.reason import Reason, reason

KL_KINDS = ("k1", "k2", "k3", "abs")


def prompts(pair: StepPair) -> Iterator[Check]:
    """The same prompts, in whatever order."""
    if pair.batch is None:
        return
    quantity = pair.quantity(Stage.PROMPTS, "prompts", "trainer")
    target, reference = (Counter(side.prompts) for side in pair.batch.whole)
    if target == reference:
        yield quantity.passed(RLCode.EQUAL)
        return
    missing, extra = reference.keys() - target.keys(), target.keys() - reference.keys()
    if missing:
        cut = sum(any(one.endswith(key) or one.startswith(key) for key in extra) for one in missing)
        code = RLCode.TRUNCATED if cut == len(missing) else RLCode.PROMPTS
        said = reason(code, num=len(missing), total=len(reference))
    elif extra:
        said = reason(RLCode.MORE_PROMPTS, num=len(extra), total=len(target))
    else:
        apart = sum(num != target[key] for key, num in reference.items())
        said = reason(RLCode.PROMPT_COUNTS, num=apart, total=len(reference))
    yield quantity.failed(said)


def rewards(pair: StepPair) -> Iterator[Check]:
    """What the reward function gave each sequence, and on which token."""
    if pair.batch is None:
        return
    quantity = pair.quantity(Stage.REWARDS, "scores", "reward")
    both = pair.batch.both("scores")
    misplaced = _misplaced(pair.batch)
    if both is None:
        if misplaced is not None:
            yield quantity.failed(misplaced)
        else:
            yield quantity.undecided(reason(RLCode.NO_SHARED, quantity="scores"))
        return
    target, reference = (one.sum(axis=1) for one in both)
    unit = max(side.unit("scores") for side in (pair.batch.target, pair.batch.reference))
    sums, tokens = Apart.of(target, reference, unit), pair.batch.apart("scores")
    if tokens is None or tokens.agrees:
        yield quantity.passed(RLCode.EQUAL if tokens is None or not tokens.num_different else RLCode.WITHIN)
    elif sums.agrees:
        yield quantity.failed(misplaced or _place(pair.batch, both))
    elif (said := _of_rows(target, reference)) is not None:
        yield quantity.failed(said)
    elif sums.rms <= tokens.allowed:
        yield quantity.undecided(in_doubt("scores", tokens))
    else:
        yield quantity.failed(differs("scores", sums))


def _last(table: Table) -> Floats:
    last: Floats = np.maximum(table.valid.sum(axis=1) - 1, 0).astype(np.float64)
    return last


def _misplaced(batch: Pair) -> Reason | None:
    """Rewards that the reference puts on the last token of a response, and the target elsewhere."""
    shares = []
    for side in batch.whole:
        scores = side.get("scores")
        if scores is None or scores.ndim < 2:
            return None
        row, at = np.nonzero(scores)
        shares.append(float((at == _last(side)[row]).mean()) if len(row) else 1.0)
    if shares[1] < 1 or shares[0] == 1:
        return None
    return reason(RLCode.REWARD_PLACE, share=1 - shares[0])


def _place(batch: Pair, both: tuple[Floats, Floats]) -> Reason:
    return reason(RLCode.REWARD_PLACE, share=float((both[0] != both[1]).any(axis=1).mean()))


def _of_rows(target: Floats, reference: Floats) -> Reason | None:
    """Rewards of other sequences, or of another scale."""
    if np.array_equal(np.sort(target), np.sort(reference)):
        return reason(RLCode.REWARD_ROWS, num=int((target != reference).sum()), total=len(target))
    if reference.std() > 0 and len(reference) > 2:
        factor, offset = np.polyfit(reference, target, 1)
        if rms(target - (factor * reference + offset)) < MOVED * rms(target - reference):
            return reason(RLCode.REWARD_LINE, factor=float(factor), offset=float(offset))
    return None


def masks(pair: StepPair) -> Iterator[Check]:
    """Which tokens count: the same on both sides; without shared sequences, all of the response where the
    reference has that."""
    if pair.batch is None or any("response_mask" not in side for side in pair.batch.whole):
        return
    quantity = pair.quantity(Stage.ADVANTAGES, "response_mask", "trainer")
    both = pair.batch.both("response_mask")
    if both is None:
        whole = [bool((side.mask == side.valid).all()) for side in pair.batch.whole]
        both = (pair.batch.whole[0].mask, pair.batch.whole[0].valid.astype(float)) if whole[1] else None
    if both is None:
        yield quantity.undecided(reason(RLCode.NO_SHARED, quantity="response_mask"))
    elif np.array_equal(*both):
        yield quantity.passed(RLCode.EQUAL)
    else:
        yield quantity.failed(mask_said(*both))


def mask_said(target: Floats, reference: Floats) -> Reason:
    """How a mask differs."""
    num = int((target != reference).sum())
    for by in (1, -1):
        moved = np.zeros_like(reference)
        moved[:, max(by, 0) : reference.shape[1] + min(by, 0)] = reference[
            :, max(-by, 0) : reference.shape[1] + min(-by, 0)
        ]
        inside = moved * (reference > 0)
        if np.array_equal(target, moved) or np.array_equal(target, inside):
            return reason(RLCode.MASK_SHIFTED, by=by, num=num)
    return reason(RLCode.MASK, num=num, total=int(reference.sum()))


def kl_in_reward(pair: StepPair) -> Iterator[Check]:
    """Rewards are scores less the KL to the reference policy."""
    sides = [(table, settings) for table, settings in _sides(pair) if "rewards" in table]
    if len(sides) < 2:
        return
    cases = [_reward_cases(table, settings) for table, settings in sides]
    other = fitted(_reward_cases(sides[0][0], sides[1][1]))
    quantity = pair.quantity(Stage.KL_TERM, "rewards", "trainer")
    names = ("use_kl_in_reward", "kl_penalty", "kl_coef_in_reward")
    yield by_formula(
        quantity,
        (fitted(cases[0]), fitted(cases[1])),
        settings_apart(*pair.settings, names) if other is not None and not other.holds else (),
        None if pair.batch is None else pair.batch.apart("rewards"),
        inputs_agree=pair.agrees("scores", "old_log_probs", "ref_log_probs", "response_mask"),
    )


def _reward_cases(table: Table, settings: Mapping[str, Setting]) -> list[Case]:
    scores, held = table.get("scores"), table.get("rewards")
    old, ref = table.get("old_log_probs"), table.get("ref_log_probs")
    if scores is None or held is None:
        return []
    plain = Value(value=scores, magnitude=np.abs(scores))
    if not settings.get("use_kl_in_reward"):
        return [Case(recorded=held, expected=plain, variants=(), unit=table.unit("rewards"))]
    if old is None or ref is None:
        return []
    beta, mask = number(settings, "kl_coef_in_reward", 0.0), table.mask
    rounded = table.rounding("old_log_probs", "ref_log_probs")

    def less(kind: str, towards: tuple[Floats, Floats]) -> Value | None:
        term, narrow = kl(*towards, kind), kl(*towards, kind, rounded)
        if term is None or narrow is None:
            return None
        return Value(
            value=scores - beta * term * mask,
            magnitude=np.abs(scores) + beta * (1 + np.abs(old - ref)) * mask,
            narrow=scores - beta * narrow * mask,
            summands=np.abs(scores) + beta * np.abs(term) * mask,
        )

    kind = str(settings.get("kl_penalty") or "kl")
    expected = less(kind, (old, ref))
    if expected is None:
        return []
    variants = [(reason(RLCode.WITHOUT_KL), plain)]
    for other in KL_KINDS:
        value = less(other, (old, ref))
        if value is not None:
            variants.append((reason(RLCode.KL_KIND, kind=other, wanted=kind), value))
    swapped = less(kind, (ref, old))
    if swapped is not None:
        variants.append((reason(RLCode.KL_SWAPPED), swapped))
    return [Case(recorded=held, expected=expected, variants=variants, unit=table.unit("rewards"))]


# -- advantages ------------------------------------------

_ADVANTAGE_SETTINGS = ("estimator", "gamma", "lam", "by_std", "std_over", "epsilon")


def advantages(pair: StepPair) -> Iterator[Check]:
    """What the estimator gives of rewards, groups and values."""
    sides = list(_sides(pair))
    if pair.batch is None or any("advantages" not in table for table, _ in sides):
        return
    own = [fitted(advantage_cases(table, settings)) for table, settings in sides]
    other = fitted(advantage_cases(sides[0][0], sides[1][1]))
    apart = pair.batch.apart("advantages") if pair.batch.is_whole else None
    yield by_formula(
        pair.quantity(Stage.ADVANTAGES, "advantages", "trainer"),
        (own[0], own[1]),
        settings_apart(*pair.settings, _ADVANTAGE_SETTINGS) if other is not None and not other.holds else (),
        apart,
        inputs_agree=pair.agrees("scores", "rewards", "values", "response_mask"),
    )


def advantage_cases(table: Table, settings: Mapping[str, Setting]) -> list[Case]:
    """The advantages of one batch, and what known variants give."""
    held, given = table.get("advantages"), _given(table, settings)
    expected = None if given is None else _value(given)
    if held is None or given is None or expected is None:
        return []
    inside = table.mask > 0
    variants = [
        (said, value.at(inside))
        for said, changed in _advantage_variants(table, given)
        if (value := _value(changed)) is not None
    ]
    return [
        Case(
            recorded=held[inside],
            expected=expected.at(inside),
            variants=variants,
            unit=table.unit("advantages"),
        )
    ]


def _given(table: Table, settings: Mapping[str, Setting]) -> Advantages | None:
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


def _value(given: Advantages) -> Value | None:
    found = given.computed()
    if found is None:
        return None
    scores = np.abs(given.rewards).sum(axis=1)
    if given.estimator in ("grpo", "rloo"):
        size = np.zeros(len(scores))
        for one in np.unique(given.group):
            rows = given.group == one
            held = given.rewards[rows].sum(axis=1)
            std = held.std(ddof=given.ddof) if rows.sum() > 1 else 1.0
            divides = given.by_std and given.estimator == "grpo"
            size[rows] = scores[rows].max() / ((std + given.epsilon) if divides else 1.0)
        return Value(value=found, magnitude=np.broadcast_to(size[:, None], found.shape) + np.abs(found))
    raw, single = replace(given, whitens=False).computed(), replace(given, rounded=exact).computed()
    values = np.zeros_like(found) if given.values is None else given.values
    inside = given.mask > 0
    spread = float(raw[inside].std()) if raw is not None and inside.any() and given.whitens else 1.0
    largest = scores.max(initial=0.0) + np.abs(values).max(initial=0.0) * given.mask.shape[1] ** 0.5
    size = np.abs(found) + largest / max(spread, given.epsilon)
    return Value(value=found if single is None else single, magnitude=size, narrow=found)


def _advantage_variants(table: Table, given: Advantages) -> Iterator[tuple[Reason, Advantages]]:
    size = int(np.unique(given.group, return_counts=True)[1].max(initial=1))
    if given.estimator in ("grpo", "rloo"):
        yield reason(RLCode.OVER_BATCH), replace(given, group=np.zeros_like(given.group))
        neighbours = np.arange(len(given.group)) // max(size, 1)
        yield reason(RLCode.OVER_NEIGHBOURS, size=size), replace(given, group=neighbours)
        yield (
            reason(RLCode.WITHOUT_STD if given.by_std else RLCode.WITH_STD),
            replace(given, by_std=not given.by_std),
        )
        yield reason(RLCode.POPULATION_STD), replace(given, ddof=0)
        code = RLCode.GROUP_STD if given.batch_std else RLCode.BATCH_STD
        yield reason(code), replace(given, batch_std=not given.batch_std)
    else:
        yield reason(RLCode.NOT_WHITENED), replace(given, whitens=False)
        padding = np.ones_like(given.mask)
        yield reason(RLCode.OVER_PADDING), replace(given, whitens_over=padding)
        yield reason(RLCode.OVER_PADDING), replace(given, whitens_over=table.valid.astype(float))
        for gamma, lam in ((1.0, given.lam), (given.gamma, 1.0), (1.0, 1.0), (given.lam, given.gamma)):
            said = reason(
                RLCode.GAMMA_LAM, gamma=gamma, lam=lam, wanted_gamma=given.gamma, wanted_lam=given.lam
            )
            yield said, replace(given, gamma=gamma, lam=lam)
    if given.values is not None:
        for by in (1, -1):
            moved = np.roll(given.values, by, axis=1)
            yield reason(RLCode.VALUES_SHIFTED, by=by), replace(given, values=moved)
    scores = table.get("scores")
    if scores is not None and not np.array_equal(scores, given.rewards):
        yield reason(RLCode.WITHOUT_KL), replace(given, rewards=scores)
    if not np.array_equal(given.mask, table.valid):
        yield reason(RLCode.MASK_IGNORED), replace(given, mask=table.valid.astype(np.float64))


def _sides(pair: StepPair) -> Iterator[tuple[Table, Mapping[str, Setting]]]:
    if pair.batch is not None:
        yield from zip(pair.batch.whole, pair.settings, strict=True)


def settings_apart(
    target: Mapping[str, Setting], reference: Mapping[str, Setting], names: tuple[str, ...]
) -> tuple[Reason, ...]:
    """Those of some settings that differ."""
    return tuple(
        reason(RLCode.SETTING, name=name, target=str(target.get(name)), reference=str(reference.get(name)))
        for name in names
        if target.get(name) != reference.get(name)
    )
