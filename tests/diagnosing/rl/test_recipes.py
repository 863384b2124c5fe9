"""Other recipes than GRPO and PPO: estimators, ratios of sequences, importance weights, rewards by length.

Each sentence is said where it is true, and not of its near miss.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.diagnosing.rl.records import with_losses
from tests.diagnosing.rl.test_variants import (
    GAINS,
    GRPO,
    LENGTHS,
    LOSS,
    MASK,
    NOW,
    OLD,
    RNG,
    SCORES,
    SETTINGS,
    made,
    said,
)
from trueup.diagnosing.rl import advantage_checks, batch_checks, loss_checks
from trueup.diagnosing.rl.formulas import Advantages, Aggregation, PolicyLoss
from trueup.store.rollouts import RLStep
from trueup.types.codes import RLCode

RLOO = replace(GRPO, estimator="rloo")
BASELINE = replace(GRPO, estimator="reinforce_plus_plus_baseline")


def estimated(form: Advantages, held: Any) -> RLStep:
    return made(advantages=held, settings={"estimator": form.estimator})


@pytest.mark.parametrize(
    ("own", "code", "used", "form"),
    [
        (RLOO, RLCode.OTHER_ESTIMATOR, "grpo", GRPO),
        (RLOO, RLCode.OTHER_ESTIMATOR, "grpo without division by std", replace(GRPO, by_std=False)),
        (GRPO, RLCode.OTHER_ESTIMATOR, "rloo", RLOO),
        (BASELINE, RLCode.WITHOUT_BASELINE, None, replace(BASELINE, centers=False)),
        (BASELINE, RLCode.NOT_WHITENED, None, replace(BASELINE, whitens=False)),
    ],
)
def test_advantages_of_another_estimator(own: Advantages, code: RLCode, used: str, form: Advantages) -> None:
    right = estimated(own, own.computed())
    found = said(advantage_checks.advantages, "advantages", estimated(own, form.computed()), right)
    assert (found.code, found.place("used")) == (code, used)
    off = form.computed() * (1 + 1e-3 * np.arange(len(MASK))[:, None] ** 2)
    near = said(advantage_checks.advantages, "advantages", estimated(own, off), right)
    assert near.code is RLCode.FORMULA_FAILS
    assert said(advantage_checks.advantages, "advantages", right, right).code is RLCode.FORMULA_HOLDS


# -- losses ------------------------------------------

GSPO = replace(LOSS, of_sequences=MASK, dual=None, low=0.02, high=0.03)
WEIGHTS = np.minimum(np.exp(0.05 * RNG.normal(size=NOW.shape)), 1.04) * MASK


def lost(form: PolicyLoss, extra: float = 0.0, **changed: Any) -> RLStep:
    settings = {**SETTINGS, "loss_mode": "gspo", "clip_low": 0.02, "clip_high": 0.03, **changed}
    more = {"rollout_weights": WEIGHTS} if changed.get("weighted") else {}
    total = Aggregation(mode="token-mean", mask=MASK).total(form.computed())
    assert total is not None
    held = made(advantages=GAINS, old_log_probs=OLD, **more)
    return with_losses(held, NOW, settings=settings, numbers={"policy_loss": total + extra})


@pytest.mark.parametrize(
    ("code", "form"),
    [
        (RLCode.TOKEN_RATIO, replace(GSPO, of_sequences=None)),
        (RLCode.RATIO_SUMMED, replace(GSPO, by_length=False)),
        (RLCode.CLIP_RANGE, replace(GSPO, high=0.05)),
    ],
)
def test_ratios_of_sequences(code: RLCode, form: PolicyLoss) -> None:
    right = lost(GSPO)
    assert said(loss_checks.losses, "policy_loss", lost(form), right).code is code
    assert said(loss_checks.losses, "policy_loss", lost(form, 1e-3), right).code is RLCode.FORMULA_FAILS
    assert said(loss_checks.losses, "policy_loss", right, right).code is RLCode.FORMULA_HOLDS


def test_a_loss_without_its_weights() -> None:
    more = {"loss_mode": "vanilla", "clip_low": 0.2, "clip_high": 0.28, "weighted": True}
    right = lost(replace(LOSS, weights=WEIGHTS), **more)
    found = said(loss_checks.losses, "policy_loss", lost(LOSS, **more), right)
    assert found.code is RLCode.WEIGHTS_IGNORED
    near = said(loss_checks.losses, "policy_loss", lost(LOSS, 1e-3, **more), right)
    assert near.code is RLCode.FORMULA_FAILS


def test_another_dual_bound() -> None:
    more = {"loss_mode": "vanilla", "clip_low": 0.2, "clip_high": 0.28}
    found = said(loss_checks.losses, "policy_loss", lost(replace(LOSS, dual=2.0), **more), lost(LOSS, **more))
    assert (found.code, found.place("name"), found.number("used")) == (RLCode.CLIP_RANGE, "clip_dual", 2.0)


def test_a_horizon_of_the_call() -> None:
    def side(horizon: float) -> RLStep:
        by = Aggregation(mode="seq-mean-token-sum-norm", mask=MASK, horizon=horizon)
        settings = {**SETTINGS, "loss_agg_mode": "seq-mean-token-sum-norm", "horizon": 40.0}
        held = made(advantages=GAINS, old_log_probs=OLD)
        return with_losses(held, NOW, settings=settings, numbers={"policy_loss": by.total(LOSS.computed())})

    longest = float(LENGTHS.max())
    found = said(loss_checks.losses, "policy_loss", side(longest), side(40.0))
    assert found.code is RLCode.HORIZON
    assert (
        said(loss_checks.losses, "policy_loss", side(longest + 0.5), side(40.0)).code is RLCode.FORMULA_FAILS
    )


# -- importance weights ------------------------------------------

ROLLED = OLD - 0.05 * RNG.normal(size=OLD.shape) * MASK
APART, CAP = (OLD - ROLLED), 1.04


def weighted(weights: Any) -> RLStep:
    return made(old_log_probs=OLD, rollout_log_probs=ROLLED, rollout_weights=weights * MASK)


@pytest.mark.parametrize(
    ("code", "weights"),
    [
        (RLCode.WEIGHTS_NOT_CAPPED, np.exp(APART)),
        (RLCode.WEIGHTS_INVERTED, np.minimum(np.exp(-APART), CAP)),
        (RLCode.WEIGHTS_OF_SEQUENCES, np.minimum(np.exp(APART.sum(axis=1, keepdims=True)), CAP) * MASK),
        (RLCode.FORMULA_FAILS, 1.001 * np.minimum(np.exp(APART), CAP)),
    ],
)
def test_importance_weights(code: RLCode, weights: Any) -> None:
    right = weighted(np.minimum(np.exp(APART), CAP))
    found = said(loss_checks.weights, "rollout_weights", weighted(weights), right)
    assert found.code is code
    if code is RLCode.WEIGHTS_NOT_CAPPED:
        assert found.number("wanted") == CAP < found.number("used")
    assert said(loss_checks.weights, "rollout_weights", right, right).code is RLCode.FORMULA_HOLDS


def test_weights_of_another_kind_are_compared() -> None:
    other = weighted(np.full(MASK.shape, 0.5))
    found = said(loss_checks.weights, "rollout_weights", weighted(np.full(MASK.shape, 0.7)), other)
    assert found.code is RLCode.APART


# -- rewards ------------------------------------------


def scored(sums: Any) -> RLStep:
    scores = np.zeros_like(SCORES)
    scores[np.arange(len(sums)), LENGTHS - 1] = sums
    return made(scores=scores)


def test_rewards_that_are_clipped() -> None:
    sums = np.linspace(0.0, 1.4, len(LENGTHS)).astype(np.float32)
    found = said(batch_checks.rewards, "scores", scored(np.minimum(sums, 1.0)), scored(sums))
    assert (found.code, found.number("high")) == (RLCode.REWARD_BOUNDED, 1.0)
    one = np.minimum(sums, np.sort(sums)[-2] + 0.01)  # one reward alone is another
    assert said(batch_checks.rewards, "scores", scored(one), scored(sums)).code is not RLCode.REWARD_BOUNDED


def test_rewards_of_long_responses() -> None:
    sums, order = np.linspace(0.0, 1.4, len(LENGTHS)).astype(np.float32) ** 2, np.argsort(LENGTHS)
    less = sums.copy()
    less[LENGTHS[order[-3]] <= LENGTHS] -= np.float32(0.3)
    found = said(batch_checks.rewards, "scores", scored(less), scored(sums))
    assert (found.code, found.number("tokens")) == (RLCode.REWARD_OF_LONG, LENGTHS[order[-3]])
    some = sums.copy()
    some[order[[0, -1, -2]]] -= np.float32(0.3)
    assert said(batch_checks.rewards, "scores", scored(some), scored(sums)).code is not RLCode.REWARD_OF_LONG
