"""RL steps made from numbers at will: a batch that agrees with itself, and a policy loss."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trueup.diagnosing.rl.formulas import Advantages
from trueup.diagnosing.rl.steps import RLStepPair
from trueup.store.rollouts import RLRecord, RLStep

ROWS, WIDTH = 8, 16
SETTINGS = {"estimator": "grpo", "by_std": True, "epsilon": 1e-6}


def batch(*, step: int = 1, **changed) -> RLStep:
    """Float32 numbers; log-probs of root mean square 1."""
    rng = np.random.default_rng(3)
    responses = np.arange(ROWS * WIDTH).reshape(ROWS, WIDTH)
    group = np.arange(ROWS) // 4
    scores = np.zeros((ROWS, WIDTH), np.float32)
    scores[:, -1] = rng.random(ROWS).astype(np.float32)
    log_probs = rng.choice([-1.0, 1.0], (ROWS, WIDTH)).astype(np.float32)
    mask = np.ones((ROWS, WIDTH), np.float32)
    arrays = {
        "prompts": np.tile([5, 6, 7], (ROWS, 1)) + group[:, None],
        "responses": responses,
        "group": group,
        "response_mask": mask,
        "scores": scores,
        "rollout_log_probs": log_probs,
        "old_log_probs": log_probs,
        **{name: value for name, value in changed.items() if name != "settings"},
    }
    given = Advantages(estimator="grpo", rewards=scores.astype(float), mask=mask, group=group)
    arrays.setdefault("advantages", given.computed())
    record = RLRecord(
        arrays=arrays, settings={**SETTINGS, **changed.get("settings", {})}, numbers={}, dtypes={}
    )
    return RLStep(step=step, batch=record, losses=())


def with_losses(held: RLStep, *now: np.ndarray, settings=None, numbers=None) -> RLStep:
    """One call of the actor's loss a mini-batch, with the log-probs that it gives."""
    assert held.batch is not None
    calls = tuple(
        replace(
            held.batch,
            arrays={**held.batch.arrays, "log_probs": one},
            settings=settings or {},
            numbers=numbers or {},
            role="actor",
            number=at,
        )
        for at, one in enumerate(now)
    )
    return replace(held, losses=calls)


def pair(target: RLStep, reference: RLStep, **more) -> RLStepPair:
    return RLStepPair(step=1, target=target, reference=reference, before=more.pop("before", ()), **more)
