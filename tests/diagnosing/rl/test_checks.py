"""Single conclusions of RL records, each with a twin that is not one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.diagnosing.rl.records import ROWS, WIDTH, batch, pair, with_losses
from trueup.diagnosing.rl import advantage_checks, batch_checks, loss_checks, model_checks
from trueup.diagnosing.rl.formulas import Aggregation, PolicyLoss
from trueup.diagnosing.rl.tables import SequencePair, SequenceTable
from trueup.diagnosing.stages.protocol import StageStatus
from trueup.errors import TraceError
from trueup.store.rollouts import BATCH, read_rollouts, write_batch, write_loss
from trueup.types.codes import RLCode


def one(checks, quantity):
    return next(found for found in checks if found.quantity == quantity)


def test_rows_are_found_again_whatever_their_order_and_padding() -> None:
    plain = SequenceTable.of([batch().batch])
    order = np.random.default_rng(0).permutation(ROWS)
    wide = {name: array[order] for name, array in plain.arrays.items()}
    wide["responses"] = np.pad(wide["responses"], ((0, 0), (0, 4)), constant_values=-1)
    wide["prompts"] = np.pad(wide["prompts"], ((0, 0), (3, 0)), constant_values=-1)
    found = SequencePair.of(SequenceTable(arrays=wide, dtypes={}), plain)
    assert found.is_whole
    target, reference = found.both("old_log_probs")
    assert np.array_equal(target, reference)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda s: np.roll(s, -3, axis=1), RLCode.REWARD_PLACE),
        (lambda s: s[::-1], RLCode.REWARD_ROWS),
        (lambda s: 3 * s, RLCode.REWARD_LINE),
        (lambda s: s**2, RLCode.APART),
        (lambda s: s, RLCode.EQUAL),
    ],
)
def test_rewards(change, code) -> None:
    plain = batch()
    changed = batch(scores=change(plain.batch.arrays["scores"]))
    assert one(batch_checks.rewards(pair(changed, plain)), "scores").conclusion.code is code


def test_a_setting_that_changes_nothing_is_no_fault() -> None:
    other = batch(settings={"gamma": 0.5})  # grpo has no gamma
    assert one(advantage_checks.advantages(pair(other, batch())), "advantages").passed
    divided = batch(settings={"by_std": False})
    found = one(advantage_checks.advantages(pair(divided, batch())), "advantages")
    assert found.conclusion.code is RLCode.WITH_STD  # said to be without, and they are not


def test_a_setting_that_both_runs_keep_to_differs() -> None:
    plain = batch()
    mask = plain.batch.arrays["response_mask"]
    values = np.random.default_rng(4).normal(size=(ROWS, WIDTH))
    now = plain.batch.arrays["old_log_probs"] + 0.01 * values
    given = {"old": now - 0.01 * values, "advantages": plain.batch.arrays["advantages"]}
    loss = PolicyLoss(log_probs=now, low=0.2, high=0.2, dual=None, **given).computed()
    sides = []
    for mode in ("token-mean", "token-sum"):
        total = Aggregation(mode=mode, mask=mask).total(loss)
        settings = {"loss_agg_mode": mode, "clip_low": 0.2, "clip_high": 0.2}
        sides.append(with_losses(plain, now, settings=settings, numbers={"policy_loss": total}))
    found = one(loss_checks.losses(pair(*sides)), "policy_loss")
    assert found.status is StageStatus.FAILED
    assert (found.conclusion.code, found.conclusion.place("name")) == (RLCode.SETTING, "loss_agg_mode")
    assert one(loss_checks.losses(pair(sides[0], sides[0])), "policy_loss").passed


def test_old_log_probs_of_another_policy() -> None:
    plain = batch()
    now = plain.batch.arrays["old_log_probs"]
    stale, right = with_losses(plain, now + 0.3), with_losses(plain, now)
    found = one(model_checks.policy(pair(stale, right)), "old_log_probs")
    assert found.conclusion.code is RLCode.STALE
    both = one(model_checks.policy(pair(stale, stale)), "old_log_probs")  # off-policy in both runs
    assert both.passed


def test_an_update_is_held_to_what_it_changes() -> None:
    plain = batch()
    now = plain.batch.arrays["old_log_probs"]
    reference = with_losses(plain, now, now + 1.0)
    rounding, wrong = with_losses(plain, now, now + 1.0 + 1e-4), with_losses(plain, now, now + 1.5)
    assert one(loss_checks.updates(pair(rounding, reference)), "weights").passed
    found = one(loss_checks.updates(pair(wrong, reference)), "weights")
    assert (found.status, found.conclusion.code) == (StageStatus.FAILED, RLCode.UPDATE)


def test_a_loss_that_is_given_other_numbers() -> None:
    plain = batch()
    now = plain.batch.arrays["old_log_probs"]
    right = with_losses(plain, now)
    other = {**right.losses[0].arrays, "advantages": right.losses[0].arrays["advantages"] * 2}
    wrong = replace(right, losses=(replace(right.losses[0], arrays=other),))
    found = one(loss_checks.given(pair(wrong, right)), "inputs")
    assert (found.conclusion.code, found.conclusion.place("quantity")) == (RLCode.GIVEN_OTHER, "advantages")
    assert one(loss_checks.given(pair(right, right)), "inputs").passed


def test_records_are_read_as_they_were_written(tmp_path) -> None:
    held = batch().batch
    write_batch(tmp_path, 3, held.arrays, held.settings, {"old_log_probs": "bfloat16"})
    write_loss(tmp_path, 3, held.arrays, {"clip_low": None}, {"loss": 0.5}, role="critic", number=2)
    step = read_rollouts(tmp_path)[3]
    assert step.batch.settings == held.settings
    assert SequenceTable.of([step.batch]).unit("old_log_probs") == 2.0**-8
    assert (step.losses[0].role, step.losses[0].number, step.losses[0].numbers) == (
        "critic",
        2,
        {"loss": 0.5},
    )
    write_batch(tmp_path, 3, held.arrays, held.settings, part=1)
    assert len(read_rollouts(tmp_path)[3].batch.arrays["responses"]) == 2 * ROWS
    (tmp_path / "rl/step_000003" / BATCH).write_bytes(b"PK no archive")
    with pytest.raises(TraceError, match="record of an RL step"):
        read_rollouts(tmp_path)
