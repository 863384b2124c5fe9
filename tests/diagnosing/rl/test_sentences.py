"""Sentences about two RL runs, held against programs that are written out here: a loop for each way to get a
number wrong, without the rules' own formulas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.diagnosing.made_steps import codes_of
from tests.diagnosing.rl.records import batch, pair, with_losses
from trueup.diagnosing.rl import advantage_checks, batch_checks, loss_checks, model_checks
from trueup.diagnosing.rl.steps import Quantity, QuantityCheck
from trueup.diagnosing.rl.tables import Apart
from trueup.diagnosing.stages.protocol import StageStatus
from trueup.store.rollouts import RLStep
from trueup.types.codes import RLCode
from trueup.types.finding import Stage
from trueup.wording import text

ROWS, WIDTH, PER_GROUP = 8, 16, 4
Array = Any


class Drawn:
    """One batch by chance: responses of several lengths, with tokens in the middle that do not count."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.random = random
        self.lengths = random.integers(8, WIDTH + 1, ROWS)
        self.valid = np.arange(WIDTH) < self.lengths[:, None]
        self.mask = self.valid & (random.random((ROWS, WIDTH)) > 0.2)
        self.mask[:, 0] = True
        self.ids = np.where(self.valid, np.arange(ROWS * WIDTH).reshape(ROWS, WIDTH) + 100, -1)
        self.scores = np.zeros((ROWS, WIDTH))
        self.scores[np.arange(ROWS), self.lengths - 1] = random.random(ROWS).astype(np.float32)
        self.group = random.permutation(np.arange(ROWS) // PER_GROUP)
        self.values = np.where(self.valid, random.normal(size=(ROWS, WIDTH)), 0).astype(np.float32)
        self.now = np.where(self.valid, 0.3 * random.normal(size=(ROWS, WIDTH)), 0)
        self.old = self.now - np.where(self.valid, 0.25 * random.normal(size=(ROWS, WIDTH)), 0)
        self.ref = self.now - np.where(self.valid, 0.25 * random.normal(size=(ROWS, WIDTH)), 0)

    def step(self, **changed: Any) -> RLStep:
        held = {
            "response_mask": self.mask.astype(np.float32), "responses": self.ids, "scores": self.scores,
            "group": self.group, "values": self.values, "old_log_probs": self.old, "ref_log_probs": self.ref,
            "prompts": np.tile([5, 6, 7], (ROWS, 1)) + self.group[:, None],
        }  # fmt: skip
        return batch(**{**held, **changed})


def said(check: Callable[..., Any], quantity: str, target: RLStep, reference: RLStep) -> QuantityCheck:
    return next(one for one in check(pair(target, reference)) if one.quantity == quantity)


# -- advantages ------------------------------------------


def grouped(one: Drawn, how: str = "right") -> Array:
    """GRPO by a loop."""
    sums, found = one.scores.sum(axis=1), np.zeros(ROWS)
    for row in range(ROWS):
        rows = [at for at in range(ROWS) if one.group[at] == one.group[row]]
        if how == "over batch":
            rows = list(range(ROWS))
        elif how == "over neighbours":
            rows = [at for at in range(ROWS) if at // PER_GROUP == row // PER_GROUP]
        divisor = sums if how == "std of batch" else sums[rows]
        std = divisor.std(ddof=0 if how == "population" else 1)
        found[row] = sums[row] - sums[rows].mean()
        if how != "no std":
            found[row] /= std + 1e-6
    return found[:, None] * one.mask


GROUPED = [
    ("over batch", RLCode.OVER_BATCH),
    ("over neighbours", RLCode.OVER_NEIGHBOURS),
    ("no std", RLCode.WITHOUT_STD),
    ("population", RLCode.POPULATION_STD),
    ("std of batch", RLCode.BATCH_STD),
]


@pytest.mark.parametrize("seed", [1])
def test_advantages_of_groups(seed: int) -> None:
    one = Drawn(seed)
    right = one.step(advantages=grouped(one))
    check = advantage_checks.advantages
    assert said(check, "advantages", right, right).conclusion.code is RLCode.FORMULA_HOLDS
    for how, code in GROUPED:
        wrong = grouped(one, how)
        found = said(check, "advantages", one.step(advantages=wrong), right).conclusion
        assert found.code is code, how
        if code is RLCode.OVER_NEIGHBOURS:
            assert found.number("size") == PER_GROUP
        mixed = np.where(np.arange(ROWS)[:, None] < 4, wrong, grouped(one))  # half of the rows alone
        near = said(check, "advantages", one.step(advantages=mixed), right).conclusion
        assert near.code in (RLCode.FORMULA_FAILS, RLCode.OTHER_MOMENTS), how
        # both runs alike: the difference is none
        both = said(check, "advantages", one.step(advantages=wrong), one.step(advantages=wrong))
        assert both.conclusion.code is RLCode.BOTH_FAIL


def by_token(one: Drawn, how: str = "right", rewards: Array | None = None) -> Array:
    """GAE by a loop, whitened."""
    rewards = one.scores if rewards is None else rewards
    values = one.values.astype(float)
    if how in ("previous", "next"):
        moved = np.zeros_like(values)
        for at in range(WIDTH):
            source = at - 1 if how == "previous" else at + 1
            if 0 <= source < WIDTH:
                moved[:, at] = values[:, source]
        values = moved
    found = np.zeros((ROWS, WIDTH))
    for row in range(ROWS):
        following = last = 0.0
        for at in reversed(range(WIDTH)):
            if one.mask[row, at]:
                last = rewards[row, at] + 0.98 * following - values[row, at] + 0.98 * 0.9 * last
                following = values[row, at]
            found[row, at] = last
    over = {"over all": np.ones_like(one.mask), "over padding": one.valid}.get(how, one.mask)
    if how == "not whitened":
        return found
    kept = found[over]
    return (found - kept.mean()) / np.sqrt(kept.var(ddof=1) + 1e-8)


def test_advantages_of_tokens() -> None:
    settings = {"estimator": "gae", "gamma": 0.98, "lam": 0.9}
    for seed in (3,):
        one = Drawn(seed)

        def side(held: Array, one: Drawn = one, **more: Any) -> RLStep:
            return one.step(advantages=held, settings=settings, **more)

        check, right = advantage_checks.advantages, side(by_token(one))
        assert said(check, "advantages", right, right).conclusion.code is RLCode.FORMULA_HOLDS
        for how, code, by in (
            ("over all", RLCode.OVER_PADDING, None),
            ("over padding", RLCode.OVER_PADDING, None),
            ("not whitened", RLCode.NOT_WHITENED, None),
            ("previous", RLCode.VALUES_SHIFTED, 1),
            ("next", RLCode.VALUES_SHIFTED, -1),
        ):
            found = said(check, "advantages", side(by_token(one, how)), right).conclusion
            assert (found.code, found.number("by")) == (code, by), how
            if by is not None:
                assert how in text(found)
        off = side(by_token(one, "previous") + 1e-3 * one.now)
        assert said(check, "advantages", off, right).conclusion.code is RLCode.FORMULA_FAILS
        less = one.scores - 0.1 * (one.old - one.ref) * one.mask
        kept = {"rewards": less}
        held = side(by_token(one, rewards=less), **kept)
        found = said(check, "advantages", side(by_token(one), **kept), held).conclusion
        assert (found.code, found.place("quantity")) == (RLCode.WITHOUT_KL, "advantages")
        assert text(found).lower().startswith("advantages are made from the scores")


# -- KL in the reward ------------------------------------------

ESTIMATES: dict[str, Callable[[Array, Array], Array]] = {
    "k1": lambda p, q: p - q,
    "abs": lambda p, q: abs(p - q),
    "k2": lambda p, q: (p - q) ** 2 / 2,
    "k3": lambda p, q: np.exp(q - p) - (q - p) - 1,
}


def test_the_kl_in_rewards_and_in_losses() -> None:
    one = Drawn(5)
    tokens = one.mask.sum()
    for wanted in ESTIMATES:
        settings = {"use_kl_in_reward": True, "kl_penalty": wanted, "kl_coef_in_reward": 0.1}

        def rewarded(term: Array, settings: Any = settings) -> RLStep:
            return one.step(rewards=one.scores - 0.1 * term * one.mask, settings=settings)

        def lost(term: Array, wanted: str = wanted) -> RLStep:
            told = {"loss_agg_mode": "token-mean", "kl_loss_type": wanted}
            return with_losses(
                one.step(), one.now, settings=told, numbers={"kl_loss": (term * one.mask).sum() / tokens}
            )

        for made, check, quantity, policy in (
            (rewarded, batch_checks.kl_in_reward, "rewards", one.old),
            (lost, loss_checks.losses, "kl_loss", one.now),
        ):
            right = made(ESTIMATES[wanted](policy, one.ref))
            assert said(check, quantity, right, right).conclusion.code is RLCode.FORMULA_HOLDS
            for kind, estimate in ESTIMATES.items():
                if kind == wanted:
                    continue
                found = said(check, quantity, made(estimate(policy, one.ref)), right).conclusion
                assert (found.code, found.place("kind")) == (RLCode.KL_KIND, kind), (wanted, kind)
                assert found.place("wanted") == wanted
            swapped = said(check, quantity, made(ESTIMATES[wanted](one.ref, policy)), right).conclusion
            assert swapped.code is (RLCode.FORMULA_HOLDS if wanted in ("abs", "k2") else RLCode.KL_SWAPPED)
            if wanted == "k1":
                assert "opposite sign" in text(swapped)
            near = made(ESTIMATES[wanted](policy, one.ref) * 1.003)
            assert said(check, quantity, near, right).conclusion.code not in (
                RLCode.KL_KIND,
                RLCode.KL_SWAPPED,
            )


def test_rewards_without_their_kl() -> None:
    one = Drawn(6)
    settings = {"use_kl_in_reward": True, "kl_penalty": "k1", "kl_coef_in_reward": 0.1}
    right = one.step(rewards=one.scores - 0.1 * (one.old - one.ref) * one.mask, settings=settings)
    found = said(batch_checks.kl_in_reward, "rewards", one.step(rewards=one.scores, settings=settings), right)
    assert (found.conclusion.code, found.conclusion.place("quantity")) == (RLCode.WITHOUT_KL, None)
    assert "KL" in text(found.conclusion)


# -- losses ------------------------------------------

SETTINGS = {"loss_agg_mode": "token-mean", "clip_low": 0.1, "clip_high": 0.3, "clip_dual": 2.0}


def policy(one: Drawn, gains: Array, how: str = "right") -> Array:
    """Of each token, by a loop."""
    found = np.zeros((ROWS, WIDTH))
    for at in np.ndindex(ROWS, WIDTH):
        ratio, gain = np.exp(one.now[at] - one.old[at]), gains[at]
        high = 0.1 if how == "symmetric" else 0.3
        clipped = min(max(ratio, 0.9), 1 + high)
        loss = -gain * ratio if how.startswith("not clipped") else max(-gain * ratio, -gain * clipped)
        if gain < 0 and how not in ("no dual", "not clipped"):
            loss = min(loss, -gain * 2.0)
        found[at] = loss
    return found


def aggregated(values: Array, mask: Array, mode: str = "token-mean") -> float:
    sums, counts = (values * mask).sum(axis=1), mask.sum(axis=1)
    return {
        "token-mean": sums.sum() / counts.sum(),
        "token-sum": sums.sum(),
        "seq-mean-token-mean": (sums / counts).mean(),
        "seq-mean-token-sum": sums.mean(),
    }[mode]


def far(seed: int) -> tuple[Drawn, Array]:
    """Ratios on both sides of every clip, and gains of both signs."""
    one = Drawn(seed)
    one.old[0, 0], one.old[1, 0] = one.now[0, 0] - np.log(5.0), one.now[1, 0] + np.log(5.0)
    gains = one.random.normal(size=(ROWS, 1)) * one.mask
    gains[0], gains[1] = -abs(gains[0]), abs(gains[1])
    return one, gains


@pytest.mark.parametrize("seed", [7])
def test_policy_losses(seed: int) -> None:
    one, gains = far(seed)

    def side(number: float, **told: Any) -> RLStep:
        held = one.step(advantages=gains)
        return with_losses(held, one.now, settings={**SETTINGS, **told}, numbers={"policy_loss": number})

    def found(number: float, **told: Any) -> Any:
        right = side(
            aggregated(policy(one, gains), one.mask, told.get("loss_agg_mode", "token-mean")), **told
        )
        return said(loss_checks.losses, "policy_loss", side(number, **told), right).conclusion

    assert found(aggregated(policy(one, gains), one.mask)).code is RLCode.FORMULA_HOLDS
    for how, code in (
        ("not clipped", RLCode.NOT_CLIPPED),
        ("not clipped but by dual", RLCode.NOT_CLIPPED),
        ("symmetric", RLCode.SYMMETRIC_CLIP),
        ("no dual", RLCode.NO_DUAL_CLIP),
    ):
        number = aggregated(policy(one, gains, how), one.mask)
        one_found = found(number)
        assert one_found.code is code, how
        assert how != "symmetric" or one_found.number("used") == 0.1
        assert found(number + 1e-3).code is RLCode.FORMULA_FAILS
    right, modes = (
        policy(one, gains),
        ["token-mean", "token-sum", "seq-mean-token-mean", "seq-mean-token-sum"],
    )
    for wanted in modes:
        for mode in modes:
            told = found(aggregated(right, one.mask, mode), loss_agg_mode=wanted)
            if mode == wanted:
                assert told.code is RLCode.FORMULA_HOLDS
            else:
                assert (told.code, told.place("mode"), told.place("wanted")) == (
                    RLCode.AGGREGATED,
                    mode,
                    wanted,
                )
    assert found(aggregated(right, one.valid)).code is RLCode.MASK_IGNORED
    for by, word in ((1, "previous"), (-1, "next")):
        moved = np.zeros_like(one.mask)
        for at in range(WIDTH):
            if 0 <= at - by < WIDTH:
                moved[:, at] = one.mask[:, at - by]
        told = found(aggregated(right, moved))
        assert (told.code, told.number("by")) == (RLCode.MASK_MOVED, by)
        assert word in text(told)
    # divided by what this call has, and not by what the whole mini-batch has
    for mode, count, unit in (
        ("token-mean", one.mask.sum(), "tokens"),
        ("seq-mean-token-sum", ROWS, "sequences"),
    ):
        name = "num_tokens" if unit == "tokens" else "num_sequences"
        whole = aggregated(right, one.mask, mode)
        told_by = {"loss_agg_mode": mode, name: 3.0 * count}
        told = said(
            loss_checks.losses, "policy_loss", side(whole, **told_by), side(whole / 3, **told_by)
        ).conclusion
        assert (told.code, told.number("told"), told.number("actual")) == (
            RLCode.LOCAL_COUNT,
            count,
            3 * count,
        )
        assert f"{count:.0f} {unit}" in text(told)


def test_masks_that_two_calls_move_otherwise() -> None:
    """One direction is named where all calls move the mask that way."""
    one, gains = far(18)

    def side(*by: int) -> RLStep:
        calls = []
        for number, places in enumerate(by):
            moved = np.roll(one.mask, places, axis=1)
            held = with_losses(
                one.step(advantages=gains), one.now, settings=SETTINGS,
                numbers={"policy_loss": aggregated(policy(one, gains), moved)},
            )  # fmt: skip
            calls.append(replace(held.losses[0], number=number))
        return replace(held, losses=tuple(calls))

    for by, code in (((1, 1), RLCode.MASK_MOVED), ((1, -1), RLCode.FORMULA_FAILS)):
        found = said(loss_checks.losses, "policy_loss", side(*by), side(0, 0)).conclusion
        assert found.code is code


def test_counts_that_calls_are_told() -> None:
    """Two microbatches: both are told how many tokens there are in all, or one of them is told its own."""
    one = Drawn(9)
    half = one.mask[:4].sum(), one.mask[4:].sum()

    def side(*told: float | None) -> RLStep:
        whole = with_losses(one.step(advantages=one.now), one.now)
        calls = []
        for at, count in enumerate(told):
            rows = slice(4 * at, 4 * at + 4)
            arrays = {name: array[rows] for name, array in whole.losses[0].arrays.items()}
            settings = {} if count is None else {"num_tokens": float(count)}
            calls.append(replace(whole.losses[0], arrays=arrays, settings=settings))
        return replace(whole, losses=tuple(calls))

    every = sum(half)
    right = side(every, every)
    for told, wrong in (
        ((every, every), None),
        ((every, half[1]), half[1]),
        ((every, None), None),
        (half, max(half)),
    ):
        found = said(loss_checks.given, "inputs", side(*told), right)
        assert (found.conclusion.code is RLCode.LOCAL_COUNT) == (wrong is not None)
        if wrong is not None:
            assert (found.conclusion.number("told"), found.conclusion.number("actual")) == (wrong, every)
        else:
            assert found.conclusion.code is RLCode.GIVEN_HELD


def test_what_losses_are_given() -> None:
    one = Drawn(10)
    plain = with_losses(one.step(advantages=one.now), one.now)
    call = plain.losses[0]
    wrong = replace(plain, losses=(replace(call, arrays={**call.arrays, "advantages": 2 * one.now}),))
    codes = [
        said(loss_checks.given, "inputs", *sides).conclusion.code
        for sides in ((plain, plain), (wrong, wrong), (wrong, plain))
    ]
    assert codes == [RLCode.GIVEN_HELD, RLCode.GIVEN_ALIKE, RLCode.GIVEN_OTHER]


def test_terms_of_the_total_loss() -> None:
    settings = {"entropy_coef": 0.01, "kl_coef": 0.002, "use_kl_loss": True}
    one, parts = Drawn(11), {"policy_loss": 0.3, "entropy_loss": 1.7, "kl_loss": 0.9}
    own = {"policy_loss": 1.0, "entropy_loss": -0.01, "kl_loss": 0.002}

    def side(**factors: float) -> RLStep:
        held = {**own, **factors}
        total = sum(held[name] * parts[name] for name in parts)
        return with_losses(one.step(), one.now, settings=settings, numbers={**parts, "loss": total})

    for name in parts:
        for factor, code in (
            (-1, RLCode.TERM_SIGN),
            (0, RLCode.TERM_MISSING),
            (1, RLCode.FORMULA_HOLDS),
            (3, RLCode.TERM_FACTOR),
        ):
            found = said(loss_checks.losses, "loss", side(**{name: factor * own[name]}), side()).conclusion
            assert (found.code, found.place("term")) == (code, None if factor == 1 else name)
            if factor == 3:
                wanted = abs(own[name])
                assert (found.number("used"), found.number("wanted")) == (pytest.approx(3 * wanted), wanted)


def test_a_value_loss_that_is_not_halved() -> None:
    one = Drawn(12)
    goal, now = one.values + one.now, one.values + 0.3 * one.old

    def side(factor: float) -> RLStep:
        number = factor * ((now - goal) ** 2 * one.mask).sum() / one.mask.sum()
        held = with_losses(
            one.step(returns=goal),
            now,
            settings={"loss_agg_mode": "token-mean"},
            numbers={"value_loss": number},
        )
        call = held.losses[0]
        return replace(
            held, losses=(replace(call, role="critic", arrays={**call.arrays, "predictions": now}),)
        )

    for factor, code in ((0.5, RLCode.FORMULA_HOLDS), (1.0, RLCode.NOT_HALVED), (0.97, RLCode.FORMULA_FAILS)):
        assert said(loss_checks.losses, "value_loss", side(factor), side(0.5)).conclusion.code is code


# -- what models give ------------------------------------------


def test_numbers_that_agree_within_rounding_or_nearly() -> None:
    """The difference in unit roundoffs decides; the sentence has the numbers."""
    one, seen = Drawn(13), set[Any]()
    eps = 2.0**-24
    size = np.sqrt((one.values[one.valid].astype(float) ** 2).mean())
    for times in (0.0, 3.0, 6.0, 10.0, 60.0, 1000.0):
        signs = np.where(one.random.random(one.values.shape) < 0.5, -1, 1)
        moved = np.where(one.valid, one.values + signs * times * eps * size, 0.0)
        found = said(
            model_checks.values, "values", one.step(values=moved), one.step(values=one.values.astype(float))
        )
        apart = np.sqrt((((moved - one.values)[one.valid]) ** 2).mean())
        seen.add(found.conclusion.code)
        assert (found.conclusion.code is RLCode.EQUAL) == (times == 0)
        assert (found.conclusion.code is RLCode.WITHIN) == (0 < times < 8)
        assert (found.conclusion.code is RLCode.IN_DOUBT) == (8 < times < 128)
        assert (found.conclusion.code is RLCode.APART) == (times > 128)
        if found.conclusion.code is RLCode.IN_DOUBT:
            assert found.conclusion.number("rms") == pytest.approx(apart)
            assert (
                found.conclusion.number("rms")
                > found.conclusion.number("allowed")
                == pytest.approx(8 * eps * size, rel=0.2)
            )
            assert found.conclusion.number("tokens") == one.valid.sum()
            assert text(found.conclusion).startswith("Values differ by")
    assert {RLCode.EQUAL, RLCode.WITHIN, RLCode.IN_DOUBT, RLCode.APART} <= seen


def test_rounding_that_training_has_carried_on() -> None:
    """What updates have changed by 1, of which a hundredth is allowed to differ."""
    quantity, values = Quantity(step=1, stage=Stage.VALUES, name="values", role="critic"), np.ones(64)
    for off, changed, code in (
        (0.0, 1.0, RLCode.EQUAL),
        (4 * 2.0**-24, 1.0, RLCode.WITHIN),
        (4 * 2.0**-24, 0.0, RLCode.WITHIN),
        (0.005, 1.0, RLCode.WITHIN_GROWN),
        (0.005, 0.1, None),
    ):
        apart = Apart.of(values + off, values, 2.0**-24, changed)
        assert apart.agrees == (code is not None)
        if code is not None:
            assert quantity.agreeing(apart).conclusion.code is code


def test_no_sequence_of_both() -> None:
    one = Drawn(14)
    other = one.step(responses=np.where(one.valid, one.ids + 1000, -1))
    for check, quantity in ((model_checks.values, "values"), (batch_checks.rewards, "scores")):
        assert said(check, quantity, other, one.step()).conclusion.code is RLCode.NO_SHARED
        assert said(check, quantity, one.step(), one.step()).conclusion.code is RLCode.EQUAL
    without = other.batch
    assert without is not None
    bare = replace(
        other, batch=replace(without, arrays={n: a for n, a in without.arrays.items() if n != "scores"})
    )
    assert list(batch_checks.rewards(pair(bare, one.step()))) == []  # nothing was recorded
    whole = one.step(response_mask=one.valid.astype(np.float32))
    mask = said(
        batch_checks.masks,
        "response_mask",
        replace(
            other,
            batch=replace(without, arrays={**without.arrays, "response_mask": one.valid.astype(np.float32)}),
        ),
        whole,
    )
    assert mask.conclusion.code is RLCode.ALL_COUNT


def test_rollouts_beside_their_trainer() -> None:
    """Log-probs of both engines; noise: how far they are apart in the reference."""
    one = Drawn(15)

    def side(rollout: Array, old: Array = one.old) -> RLStep:
        return one.step(rollout_log_probs=np.where(one.valid, rollout, 0.0), old_log_probs=old)

    noise = 0.01 * one.now
    reference = side(one.old + noise)
    infinite = (one.old + noise).copy()
    infinite[0, 0] = -np.inf
    for rollout, old, code, status in (
        (one.old + noise, one.old, RLCode.EQUAL, StageStatus.PASSED),
        (one.old - noise, one.old, RLCode.WITHIN_ENGINES, StageStatus.PASSED),
        (one.old + one.ref, one.old, RLCode.ROLLOUT_ONLY, StageStatus.FAILED),
        (infinite, one.old, RLCode.NOT_FINITE, StageStatus.FAILED),
        (one.ref + noise, one.ref, RLCode.FOLLOWS, StageStatus.CONSEQUENCE),
    ):
        found = said(model_checks.rollout, "rollout_log_probs", side(rollout, old), reference)
        assert (found.conclusion.code, found.status) == (code, status)
        if code is RLCode.ROLLOUT_ONLY:
            apart = np.sqrt(((rollout - one.old - noise)[one.valid] ** 2).mean())
            assert found.conclusion.number("rms") == pytest.approx(apart)
    # of other tokens the engines are held against each other
    ids = np.where(one.valid, one.ids + 1000, -1)
    for rollout, code in (
        (one.old - noise, RLCode.WITHIN_ENGINES),
        (one.old + one.ref, RLCode.ENGINES),
        (infinite, RLCode.NOT_FINITE),
    ):
        other = one.step(rollout_log_probs=np.where(one.valid, rollout, 0.0), responses=ids)
        found = said(model_checks.rollout, "rollout_log_probs", other, reference)
        assert found.conclusion.code is code
        assert (found.status is StageStatus.PASSED) == (code is RLCode.WITHIN_ENGINES)


def test_mini_batches_of_other_sequences() -> None:
    one = Drawn(16)

    def side(order: list[int], shift: float = 0.0) -> RLStep:
        whole = with_losses(one.step(), one.now, one.now)
        calls = []
        for number in range(2):
            rows = order[4 * number : 4 * number + 4]
            arrays = {name: array[rows] for name, array in whole.losses[number].arrays.items()}
            arrays["log_probs"] = arrays["log_probs"] + shift * number
            calls.append(replace(whole.losses[number], arrays=arrays))
        return replace(whole, losses=tuple(calls))

    plain = list(range(8))
    for order, shift, code in (
        (plain, 0.0, RLCode.EQUAL),
        ([3, 2, 1, 0, 7, 6, 5, 4], 0.0, RLCode.EQUAL),
        ([0, 1, 2, 4, 3, 5, 6, 7], 0.0, RLCode.OTHER_ROWS),
        (plain, 0.5, RLCode.UPDATE),
    ):
        found = said(loss_checks.updates, "weights", side(order, shift), side(plain))
        assert found.conclusion.code is code
        assert "weights after the update: bit" not in text(found.conclusion).lower()


def test_what_follows_from_what_differs_before_it() -> None:
    """Returns of advantages that differ: said where those differ too, and only there."""
    one = Drawn(17)
    settings = {"estimator": "another"}
    right = one.step(advantages=one.now, returns=one.now, settings=settings)
    for gains, returns in ((one.old, one.old), (one.now, one.old)):
        both = pair(one.step(advantages=gains, returns=returns, settings=settings), right)
        both.found += advantage_checks.advantages(both)
        found = next(advantage_checks.returns(both))
        assert (found.conclusion.code is RLCode.FOLLOWS) == (gains is one.old)
        assert RLCode.APART in codes_of([both.found[0].conclusion, found.conclusion])
    one_number = next(
        iter([text(replace(found.conclusion, code=RLCode.FOLLOWS, places=(("quantity", "policy_loss"),)))])
    )
    assert one_number.startswith("The policy loss differs")
