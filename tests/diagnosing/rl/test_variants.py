"""Each known variant of a formula is named where a run's own numbers are its, and not where they are a little
off: then only that the formula fails is said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.diagnosing.rl.records import ROWS, WIDTH, batch, pair, with_losses
from trueup.diagnosing.rl import advantage_checks, batch_checks, loss_checks, model_checks
from trueup.diagnosing.rl.fits import Case, fitted, scalar
from trueup.diagnosing.rl.formulas import Advantages, Aggregation, PolicyLoss, kl, value_loss
from trueup.diagnosing.rl.tables import SequenceTable
from trueup.diagnosing.stages.protocol import StageStatus
from trueup.store.rollouts import RLStep
from trueup.types.codes import RLCode
from trueup.types.reason import Reason, reason

RNG = np.random.default_rng(11)
LENGTHS = RNG.integers(8, WIDTH + 1, ROWS)
MASK = (np.arange(WIDTH) < LENGTHS[:, None]).astype(np.float32)
RESPONSES = np.where(MASK > 0, np.arange(ROWS * WIDTH).reshape(ROWS, WIDTH) + 100, -1)
SCORES = np.zeros((ROWS, WIDTH), np.float32)
SCORES[np.arange(ROWS), LENGTHS - 1] = RNG.random(ROWS)
GROUP = np.arange(ROWS) // 4
VALUES = RNG.normal(size=(ROWS, WIDTH)).astype(np.float32)
GRPO = Advantages(estimator="grpo", rewards=SCORES.astype(float), mask=MASK, group=GROUP)
GAE = replace(GRPO, estimator="gae", values=np.where(MASK > 0, VALUES, 0).astype(float), gamma=0.98, lam=0.9)
GAE_SETTINGS = {"estimator": "gae", "gamma": 0.98, "lam": 0.9}


def made(**arrays: Any) -> RLStep:
    held = {"response_mask": MASK, "responses": RESPONSES, "scores": SCORES, "values": VALUES, **arrays}
    return batch(**held)


def grouped(advantages: Any) -> RLStep:
    return made(advantages=advantages)


def by_token(advantages: Any = None, returns: Any = None) -> RLStep:
    held = GAE.computed() if advantages is None else advantages
    return made(advantages=held, returns=GAE.returns() if returns is None else returns, settings=GAE_SETTINGS)


def said(check: Callable, quantity: str, target: RLStep, reference: RLStep) -> Reason:
    found = next(one for one in check(pair(target, reference)) if one.quantity == quantity)
    assert (found.status is StageStatus.FAILED) == (found.conclusion.code is not RLCode.FORMULA_HOLDS)
    return found.conclusion


def with_others() -> Any:
    """Groups whose mean and deviation are those of more sequences than the batch has."""
    sums, found = SCORES.sum(axis=1), np.zeros(ROWS)
    for one, more in ((0, [0.1, 0.9]), (1, [0.7])):
        rows = one == GROUP
        every = np.append(sums[rows], more)
        found[rows] = (sums[rows] - every.mean()) / (every.std(ddof=1) + 1e-6)
    return found[:, None] * MASK


OF_GROUPS = [
    (RLCode.OVER_PART, {"size": 2, "group": 4}, replace(GRPO, group=np.arange(ROWS) // 2).computed()),
    (RLCode.BY_LENGTH, {}, replace(GRPO, by_length=True).computed()),
    (RLCode.WHITENED_AGAIN, {}, replace(GRPO, whitens_groups=True).computed()),
    (RLCode.EPSILON, {"used": 1e-3, "wanted": 1e-6}, replace(GRPO, epsilon=1e-3).computed()),
    (RLCode.ADVANTAGES_SCALED, {"used": 0.25}, 0.25 * GRPO.computed()),
    (RLCode.ADVANTAGES_CLIPPED, {"used": 0.75}, np.clip(GRPO.computed(), -0.75, 0.75)),
    (RLCode.OTHER_MOMENTS, {}, with_others()),
]


@pytest.mark.parametrize(("code", "facts", "held"), OF_GROUPS, ids=[str(one[0]) for one in OF_GROUPS])
def test_advantages_of_groups(code: RLCode, facts: dict[str, float], held: Any) -> None:
    found = said(advantage_checks.advantages, "advantages", grouped(held), grouped(GRPO.computed()))
    assert found.code is code
    assert {name: found.number(name) for name in facts} == pytest.approx(facts)
    off = held * (1 + 1e-3 * np.arange(ROWS)[:, None] ** 2)
    near = said(advantage_checks.advantages, "advantages", grouped(off), grouped(GRPO.computed()))
    assert near.code is RLCode.FORMULA_FAILS


def test_moments_are_not_told_of_two_rewards_a_group() -> None:
    """A line goes through any two points."""
    sums = (np.arange(ROWS) % 2).astype(float)
    scores = np.zeros((ROWS, WIDTH), np.float32)
    scores[np.arange(ROWS), LENGTHS - 1] = sums
    plain = replace(GRPO, rewards=scores.astype(float))
    reference = made(scores=scores, advantages=plain.computed())
    target = made(scores=scores, advantages=(sums * 1.37 - 0.2)[:, None] * MASK)
    assert said(advantage_checks.advantages, "advantages", target, reference).code is RLCode.FORMULA_FAILS


PADDED = replace(GAE, values=VALUES.astype(float), skips=False)
OF_TOKENS = [
    (RLCode.GAMMA_LAM, {"gamma": 0.98, "lam": 0.95}, replace(GAE, lam=0.95)),
    (RLCode.BOOTSTRAPPED, {}, replace(GAE, bootstraps=True)),
    (RLCode.PADDING_COUNTS, {}, PADDED),
]


@pytest.mark.parametrize("quantity", ["advantages", "returns"])
@pytest.mark.parametrize(("code", "facts", "form"), OF_TOKENS, ids=[str(one[0]) for one in OF_TOKENS])
def test_advantages_and_returns_of_tokens(code, facts, form, quantity) -> None:
    held = form.computed() if quantity == "advantages" else form.returns()
    check = getattr(advantage_checks, quantity)
    found = said(check, quantity, by_token(**{quantity: held}), by_token())
    assert (found.code, found.place("quantity")) == (code, quantity)
    assert {name: found.number(name) for name in facts} == facts
    near = said(check, quantity, by_token(**{quantity: held + 1e-3 * VALUES}), by_token())
    assert near.code is RLCode.FORMULA_FAILS
    assert said(check, quantity, by_token(), by_token()).code is RLCode.FORMULA_HOLDS


def test_returns_of_other_advantages() -> None:
    whitened = by_token(returns=GAE.computed() + GAE.values)
    assert said(advantage_checks.returns, "returns", whitened, by_token()).code is RLCode.RETURNS_WHITENED
    copied = by_token(returns=GAE.computed())
    found = said(advantage_checks.returns, "returns", copied, by_token())
    assert (found.code, found.place("of")) == (RLCode.COPIED, "advantages")
    between = by_token(returns=0.9 * GAE.computed() + GAE.values)
    assert said(advantage_checks.returns, "returns", between, by_token()).code is RLCode.FORMULA_FAILS


def test_returns_follow_from_advantages_that_failed() -> None:
    other = replace(GAE, gamma=1.0)
    both = pair(by_token(other.computed(), other.returns()), by_token())
    both.found += advantage_checks.advantages(both)
    assert next(advantage_checks.returns(both)).status is StageStatus.CONSEQUENCE


# -- losses ------------------------------------------

NOW = RNG.normal(size=(ROWS, WIDTH)) * 0.3 * MASK
OLD = NOW - RNG.normal(size=(ROWS, WIDTH)) * 0.25 * MASK
OLD[0, 0] = NOW[0, 0] - np.log(20.0)  # beyond the dual clip
GAINS = GRPO.computed() * np.where(np.arange(ROWS) == 0, -np.sign(GRPO.computed()[0, 0]), 1)[:, None]
LOSS = PolicyLoss(log_probs=NOW, old=OLD, advantages=GAINS, low=0.2, high=0.28, dual=3.0)
SETTINGS = {"loss_agg_mode": "token-mean", "clip_low": 0.2, "clip_high": 0.28, "clip_dual": 3.0}
REFERENCE, ROLLED = OLD + 0.1 * RNG.normal(size=OLD.shape), OLD + 0.05 * RNG.normal(size=OLD.shape)


def lost(total: float | None, name: str = "policy_loss", **arrays: Any) -> RLStep:
    plain = made(
        advantages=GAINS, old_log_probs=OLD, ref_log_probs=REFERENCE, rollout_log_probs=ROLLED, **arrays
    )
    return with_losses(plain, NOW, settings={**SETTINGS, "kl_loss_type": "k3"}, numbers={name: total})


def total(form: PolicyLoss) -> float:
    found = Aggregation(mode="token-mean", mask=MASK).total(form.computed())
    assert found is not None
    return found


MEAN = ((NOW - OLD) * MASK).sum(axis=1, keepdims=True) / MASK.sum(axis=1, keepdims=True)
OF_LOSSES = [
    (RLCode.ONE_SIDED_CLIP, {"side": "below"}, replace(LOSS, low=None)),
    (RLCode.ONE_SIDED_CLIP, {"side": "above"}, replace(LOSS, high=None)),
    (RLCode.CLIP_RANGE, {"name": "clip_high", "used": 0.22}, replace(LOSS, high=0.22)),
    (RLCode.CLIP_RANGE, {"name": "clip_low", "used": 0.1}, replace(LOSS, low=0.1)),
    (RLCode.SMALLER_LOSS, {}, replace(LOSS, larger=False)),
    (RLCode.SMALLER_LOSS, {}, replace(LOSS, larger=False, dual=None)),
    (RLCode.CLIPPED_ONLY, {}, replace(LOSS, only_clipped=True)),
    (RLCode.DUAL_OF_ALL, {"bound": 3.0}, replace(LOSS, dual_of_all=True)),
    (RLCode.SIGN, {}, replace(LOSS, advantages=-GAINS)),
    (RLCode.RATIO_INVERTED, {}, replace(LOSS, log_probs=OLD, old=NOW)),
    (RLCode.RATIO_TO_OTHER, {"to": "ref_log_probs"}, replace(LOSS, old=REFERENCE)),
    (RLCode.RATIO_TO_OTHER, {"to": "rollout_log_probs"}, replace(LOSS, old=ROLLED)),
    (RLCode.SEQUENCE_RATIO, {}, replace(LOSS, log_probs=OLD + MEAN)),
]


@pytest.mark.parametrize(
    ("code", "facts", "form"), OF_LOSSES, ids=[f"{one[0]}-{at}" for at, one in enumerate(OF_LOSSES)]
)
def test_policy_losses(code: RLCode, facts: dict[str, Any], form: PolicyLoss) -> None:
    right = lost(total(LOSS))
    found = said(loss_checks.losses, "policy_loss", lost(total(form)), right)
    assert found.code is code
    assert {name: found.facts.get(name) for name in facts} == facts
    near = said(loss_checks.losses, "policy_loss", lost(total(form) + 1e-3), right)
    assert near.code is RLCode.FORMULA_FAILS
    assert said(loss_checks.losses, "policy_loss", right, right).code is RLCode.FORMULA_HOLDS


def test_a_clip_range_that_is_not_determined_is_not_told() -> None:
    """No ratio lies between 0.4 and 0.5 above 1: which of both is used cannot be told."""
    ratios = np.where(np.log(1.4) < NOW - OLD, np.log(1.6), NOW - OLD)
    form = replace(LOSS, log_probs=OLD + np.where(ratios > np.log(1.4), ratios, np.minimum(ratios, 0.0)))
    sides = []
    for high in (0.4, 0.28):
        held = made(advantages=GAINS, old_log_probs=OLD)
        number = total(replace(form, high=high))
        sides.append(with_losses(held, form.log_probs, settings=SETTINGS, numbers={"policy_loss": number}))
    found = said(loss_checks.losses, "policy_loss", *sides)
    assert (found.code, found.number("used")) == (RLCode.CLIP_RANGE, 0.4)  # 0.5 gives another number
    cases = [
        Case(
            recorded=np.array([1.0]),
            expected=scalar(2.0, 1.0),
            variants=[
                (reason(RLCode.CLIP_RANGE, name="clip_high", used=used, wanted=0.2), scalar(1.0, 1.0))
                for used in every
            ],
            unit=0.0,
        )
        for every in ((0.28, 0.3), (0.28, 0.3, 0.4))
    ]
    fit = fitted(cases)
    assert fit is not None
    assert fit.variant is not None
    assert fit.variant.number("used") is None
    assert fit.variant.number("wanted") == 0.2


def test_constants_of_two_calls_are_one() -> None:
    """A coefficient that each call has another of is none."""

    def case(used: float) -> Case:
        told = reason(RLCode.TERM_FACTOR, term="kl_loss", used=used, wanted=1.0)
        variants = [(told, scalar(1.0, 1.0))]
        return Case(recorded=np.array([1.0]), expected=scalar(2.0, 1.0), variants=variants, unit=0.0)

    same, other = fitted([case(0.5), case(0.5)]), fitted([case(0.5), case(0.6)])
    assert same is not None
    assert other is not None
    assert same.variant is not None
    assert other.variant is None


@pytest.mark.parametrize("to", ["old_log_probs", "rollout_log_probs"])
def test_the_kl_to_another_policy(to: str) -> None:
    by, other = Aggregation(mode="token-mean", mask=MASK), {"old_log_probs": OLD, "rollout_log_probs": ROLLED}
    right = lost(by.total(kl(NOW, REFERENCE, "k3")), "kl_loss")
    wrong = by.total(kl(NOW, other[to], "k3"))
    found = said(loss_checks.losses, "kl_loss", lost(wrong, "kl_loss"), right)
    assert (found.code, found.place("to")) == (RLCode.KL_TO_OTHER, to)
    near = said(loss_checks.losses, "kl_loss", lost(wrong * 1.001, "kl_loss"), right)
    assert near.code is RLCode.FORMULA_FAILS


@pytest.mark.parametrize(
    ("code", "chosen"), [(RLCode.SMALLER_LOSS, np.minimum), (RLCode.CLIPPED_ONLY, lambda one, other: other)]
)
def test_value_losses(code, chosen) -> None:
    goal, now = GAE.returns(), GAE.values + 0.3 * NOW

    def side(**more: Any) -> RLStep:
        number = Aggregation(mode="token-mean", mask=MASK).total(
            value_loss(now, GAE.values, goal, 0.05, **more)
        )
        held = with_losses(
            made(returns=goal),
            now,
            settings={"loss_agg_mode": "token-mean", "value_clip": 0.05},
            numbers={"value_loss": number + extra},
        )
        call = held.losses[0]
        return replace(
            held, losses=(replace(call, role="critic", arrays={**call.arrays, "predictions": now}),)
        )

    extra = 0.0
    right, wrong = side(), side(chosen=chosen)
    extra = 1e-3
    assert said(loss_checks.losses, "value_loss", wrong, right).code is code
    assert said(loss_checks.losses, "value_loss", side(chosen=chosen), right).code is RLCode.FORMULA_FAILS


# -- what precedes them ------------------------------------------


def test_the_kl_in_the_reward() -> None:
    settings = {"use_kl_in_reward": True, "kl_penalty": "kl", "kl_coef_in_reward": 0.1}
    term = (OLD - REFERENCE) * MASK
    last = np.zeros_like(term)
    last[np.arange(ROWS), LENGTHS - 1] = term.sum(axis=1)

    def side(rewards: Any) -> RLStep:
        return made(rewards=rewards, old_log_probs=OLD, ref_log_probs=REFERENCE, settings=settings)

    right = side(SCORES - 0.1 * term)
    for taken, code, used in ((0.1 * last, RLCode.KL_ON_LAST, None), (0.2 * term, RLCode.TERM_FACTOR, 0.2)):
        found = said(batch_checks.kl_in_reward, "rewards", side(SCORES - taken), right)
        assert (found.code, found.number("used")) == (code, used)
        near = side(SCORES - taken * (1 + 1e-3 * np.arange(ROWS)[:, None]))
        assert said(batch_checks.kl_in_reward, "rewards", near, right).code is RLCode.FORMULA_FAILS


def test_a_reward_on_every_token() -> None:
    every = made(scores=SCORES.sum(axis=1, keepdims=True) * MASK)
    found = said(batch_checks.rewards, "scores", every, made())
    assert found.code is RLCode.REWARD_REPEATED
    near = made(scores=SCORES.sum(axis=1, keepdims=True) * MASK * (1 + 1e-3 * np.arange(WIDTH)))
    assert said(batch_checks.rewards, "scores", near, made()).code is not RLCode.REWARD_REPEATED


def masked(mask: Any) -> Reason:
    target = made(response_mask=mask.astype(np.float32))
    return next(batch_checks.masks(pair(target, made()))).conclusion


def test_masks_that_leave_out_an_end_or_an_id() -> None:
    ends = np.arange(WIDTH) < LENGTHS[:, None] - 1
    assert masked(ends).code is RLCode.MASK_END
    assert masked((np.arange(WIDTH) > 0) * MASK).code is RLCode.MASK_START
    turn, later = (np.tile((np.arange(WIDTH) > by) & (np.arange(WIDTH) < by + 5), (ROWS, 1)) for by in (1, 2))
    assert batch_checks.mask_difference(later.astype(float), turn.astype(float)).code is RLCode.MASK_SHIFTED
    one = ends.copy()
    one[0] = MASK[0] > 0
    assert masked(one).code is RLCode.MASK


def test_a_mask_without_a_token_id() -> None:
    ids = np.where((RESPONSES > 0) & (RESPONSES % 5 == 0), 7, RESPONSES)
    without = (MASK > 0) & (ids != 7)
    found = batch_checks.mask_difference(without.astype(float), MASK.astype(float), ids)
    assert (found.code, found.number("id")) == (RLCode.MASK_ID, 7)
    kept = without.copy()
    row, at = np.argwhere(ids == 7)[0]
    kept[row, at] = True  # one of them counts: it is not the id
    assert batch_checks.mask_difference(kept.astype(float), MASK.astype(float), ids).code is RLCode.MASK


def test_a_loss_that_is_given_a_copy() -> None:
    right = lost(0.0)
    call = right.losses[0]
    copied = replace(right, losses=(replace(call, arrays={**call.arrays, "old_log_probs": NOW}),))
    found = next(loss_checks.given(pair(copied, right))).conclusion
    assert (found.code, found.parts[0].code, found.parts[0].place("of")) == (
        RLCode.GIVEN_OTHER,
        RLCode.COPIED,
        "log_probs",
    )
    near = replace(right, losses=(replace(call, arrays={**call.arrays, "old_log_probs": NOW + 1e-3}),))
    assert next(loss_checks.given(pair(near, right))).conclusion.parts[0].code is RLCode.APART


def test_entropies_are_held_to_the_same_log_probs() -> None:
    right = lost(0.0)

    def side(entropy: Any, now: Any = NOW) -> RLStep:
        call = right.losses[0]
        arrays = {**call.arrays, "entropy": entropy, "log_probs": now}
        return replace(right, losses=(replace(call, arrays=arrays),))

    held = np.abs(NOW)
    checks = [
        next(loss_checks.entropies(pair(side(entropy, now), side(held))))
        for entropy, now in ((held, NOW), (held + 1e-7, NOW), (held + 0.1, NOW), (held + 0.1, NOW + 0.1))
    ]
    statuses = [StageStatus.PASSED, StageStatus.PASSED, StageStatus.FAILED, StageStatus.CONSEQUENCE]
    assert [one.status for one in checks] == statuses


def test_entropies_near_zero_round_as_what_they_are_made_from() -> None:
    right = lost(0.0)
    call = right.losses[0]
    sides = [
        replace(right, losses=(replace(call, arrays={**call.arrays, "entropy": np.full_like(NOW, value)}),))
        for value in (1e-4, 1e-4 + 4e-7)  # of logits of 10: rounding is relative to them
    ]
    assert next(loss_checks.entropies(pair(*sides))).passed


def test_answers_that_repeat() -> None:
    """Less likely than the batches of a long run let it be; short answers repeat by themselves."""
    rare = SequenceTable.of([made(rollout_log_probs=np.full((ROWS, WIDTH), -1.5)).batch]).taken(
        np.zeros(4, np.int64)
    )
    found = model_checks.repeats(rare, {})
    assert found is not None
    assert (found.code, found.number("num")) == (RLCode.REPEATED, 3)
    usual = replace(rare, arrays={**rare.arrays, "rollout_log_probs": np.full((4, WIDTH), -0.05)})
    assert model_checks.repeats(usual, {}) is None
    assert model_checks.repeats(rare, {"temperature": 0.0}) is None  # greedy
    assert model_checks.repeats(rare, {"top_k": 5}) is None  # of probabilities that are not recorded
    target, reference = (
        rare.taken(np.zeros(4, np.int64)),
        made(rollout_log_probs=np.full((ROWS, WIDTH), -1.5)),
    )
    held = replace(reference, batch=replace(reference.batch, arrays=target.arrays))
    checks = list(model_checks.rollout(pair(held, reference)))
    assert (checks[0].status, checks[0].conclusion.code) == (StageStatus.FAILED, RLCode.REPEATED)
    assert next(model_checks.rollout(pair(held, held))).passed  # both of them do


def test_a_reference_policy_that_is_updated() -> None:
    right = made(old_log_probs=OLD, ref_log_probs=REFERENCE)
    other = made(old_log_probs=OLD, ref_log_probs=REFERENCE + VALUES)
    first = pair(right, right)
    before = tuple(model_checks.reference_policy(first))
    later = replace(first, step=2, target=other, before=before, found=[])
    found = next(model_checks.reference_policy(later)).conclusion
    assert (found.code, found.number("step")) == (RLCode.REFERENCE_CHANGED, 1)
    assert next(model_checks.reference_policy(replace(later, before=()))).conclusion.code is RLCode.APART
