"""Cases whose measured quantity is a number at will, for every entry of ``diagnosing/rl/thresholds.py``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.deciding import decides
from tests.diagnosing.rl.records import ROWS, WIDTH, batch, pair
from trueup.diagnosing.rl import advantage_checks, batch_checks, model_checks
from trueup.diagnosing.rl.fits import Case, fitted, scalar
from trueup.diagnosing.rl.tables import Apart, SequenceTable
from trueup.diagnosing.rl.thresholds import DRIFT, ENGINES, MODEL, STRETCHED
from trueup.types.codes import RLCode

EPS = 2.0**-24


def of(checks, quantity):
    return next(one for one in checks if one.quantity == quantity)


@decides("rl.formula")
def _formula(roundings):
    """Of a sum of 0, whose terms are of size 1."""
    case = Case(recorded=np.array([roundings * EPS]), expected=scalar(0.0, 1.0), variants=(), unit=EPS)
    return fitted([case]).holds


@decides("rl.result")
def _result(roundings):
    """Of bfloat16, where float32 adds nothing."""
    unit = 2.0**-8
    case = Case(recorded=np.array([1 + roundings * unit]), expected=scalar(1.0, 0.0), variants=(), unit=unit)
    return fitted([case]).holds


@decides("rl.model")
def _model(roundings):
    return Apart.of(np.full(64, 1 + roundings * EPS), np.ones(64), EPS).agrees


@decides("rl.doubt")
def _doubt(times):
    return Apart.of(np.full(64, 1 + times * MODEL * EPS), np.ones(64), EPS).is_beyond


@decides("rl.drift")
def _drift(share):
    return Apart.of(np.full(64, 1 + share), np.ones(64), EPS, 1.0).agrees


@decides("rl.drifted")
def _drifted(times):
    return Apart.of(np.full(64, 1 + times * DRIFT), np.ones(64), EPS, 1.0).is_beyond


@decides("rl.enough")
def _enough(tokens):
    return Apart.of(np.full(tokens, 3.0), np.ones(tokens), EPS).is_beyond


@decides("rl.engines")
def _engines(times):
    """Of other sequences: rollout and trainer, in the reference 0.01 apart."""
    own, other = batch(), batch(responses=np.arange(ROWS * WIDTH).reshape(ROWS, WIDTH) + 500)
    for side, apart in ((own, times * 0.01), (other, 0.01)):
        side.batch.arrays["rollout_log_probs"] = side.batch.arrays["old_log_probs"].astype(float) + apart
    found = of(model_checks.rollout(pair(own, other)), "rollout_log_probs")
    assert ENGINES > 1
    return found.conclusion.code is RLCode.ENGINES and not found.passed


@decides("rl.repeated")
def _repeated(surprise):
    """Two equal answers to one prompt, of a probability as asked: of one expected pair in k the bound is
    k e^(1-k)."""
    low, high = -700.0, 0.0
    for _ in range(200):  # log of the expected number of pairs
        middle = (low + high) / 2
        found = -middle - 1 + np.exp(middle)
        low, high = (middle, high) if found > surprise else (low, middle)
    table = SequenceTable.of([batch().batch]).taken(np.array([0, 0]))
    held = np.full((2, WIDTH), high / WIDTH)
    said = model_checks.repeats(replace(table, arrays={**table.arrays, "rollout_log_probs": held}), {})
    return said is not None


@decides("rl.moved", margin=0.05)
def _moved(share):
    """Rewards of twice the scale, and as far from a line as asked."""
    plain = batch()
    scores = plain.batch.arrays["scores"].astype(float)
    sums = scores[:, -1]
    line = np.stack([sums, np.ones(ROWS)], 1)
    noise = np.random.default_rng(1).normal(size=ROWS)
    noise -= line @ np.linalg.lstsq(line, noise, rcond=None)[0]
    size = 1.0
    for _ in range(50):  # the share is of the whole difference, noise and all
        whole = np.sqrt(((sums + size * noise) ** 2).mean())
        size = share * whole / np.sqrt((noise**2).mean())
    changed = scores.copy()
    changed[:, -1] = 2 * sums + size * noise
    return of(batch_checks.rewards(pair(batch(scores=changed), plain)), "scores").conclusion.code


@decides("rl.stretched", margin=0.005)
def _stretched(alike):
    """Log-probs of twice the spread, correlated as asked."""
    rng = np.random.default_rng(2)
    one, other = rng.normal(size=(2, ROWS * WIDTH))
    one = (one - one.mean()) / one.std()
    other -= other.mean() + one * (one @ other) / (one @ one)
    other /= other.std()
    mixed = 2 * (alike * one + np.sqrt(1 - alike**2) * other)
    plain, changed = (
        batch(old_log_probs=values.reshape(ROWS, WIDTH), rollout_log_probs=one.reshape(ROWS, WIDTH))
        for values in (one + 1e-3, mixed)
    )
    assert STRETCHED < 1
    return of(model_checks.policy(pair(changed, plain)), "old_log_probs").conclusion.code


@decides("rl.level", margin=0.5)
def _level(share):
    """A baseline off by a share of the group's deviation, of a run that leaves one out."""
    plain = batch(settings={"estimator": "rloo"})
    given = advantage_checks.given_of(SequenceTable.of([plain.batch]), plain.batch.settings)
    sums, held = given.rewards.sum(axis=1), np.zeros(ROWS)
    for one in np.unique(given.group):
        rows = given.group == one
        held[rows] = 1.3 * (sums[rows] - sums[rows].mean() - share * sums[rows].std(ddof=1))
    both = pair(
        batch(advantages=held[:, None] * np.ones((ROWS, WIDTH)), settings={"estimator": "rloo"}),
        batch(advantages=given.computed(), settings={"estimator": "rloo"}),
    )
    return of(advantage_checks.advantages(both), "advantages").conclusion.code is RLCode.OTHER_MOMENTS


@decides("rl.long")
def _long(sequences):
    """So many of the longest responses have another reward."""
    lengths = np.arange(ROWS) + 4
    mask = np.arange(WIDTH) < lengths[:, None]
    responses = np.where(mask, np.arange(ROWS * WIDTH).reshape(ROWS, WIDTH), -1)
    scores = np.zeros((ROWS, WIDTH), np.float32)
    scores[np.arange(ROWS), lengths - 1] = np.arange(ROWS, dtype=np.float32) ** 2 / 7
    other = scores.copy()
    other[np.arange(ROWS), lengths - 1] -= (np.arange(ROWS) >= ROWS - sequences) * np.float32(0.37)
    held = {"responses": responses, "response_mask": mask.astype(np.float32)}
    both = pair(batch(scores=other, **held), batch(scores=scores, **held))
    return of(batch_checks.rewards(both), "scores").conclusion.code
