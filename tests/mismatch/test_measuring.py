"""Measures against their definitions, and against verl's own metrics of the same arrays."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.mismatch.batches import sampled, write
from tests.mismatch.make_verl_metrics import CASES, FILE, case
from trueup.mismatch.measuring import measure, verl_metrics
from trueup.mismatch.reading import read

OF_VERL = json.loads(FILE.read_text())["metrics"]


def tokens_of(tmp_path, arrays, **more):
    return read(write(tmp_path / "tokens.npz", arrays, **more)).tokens


@pytest.mark.parametrize("name", CASES)
def test_verl_computes_the_same(name, tmp_path):
    """Every number that verl 0.9.1 gives, to the rounding of its float32."""
    ours = verl_metrics(tokens_of(tmp_path, case(name)))
    theirs = {key: value for key, value in OF_VERL[name].items() if not key.endswith("_valid")}
    assert set(ours) == set(theirs)
    for key, value in theirs.items():
        assert ours[key] == pytest.approx(value, rel=1e-4, abs=5e-6), key


def test_measures_of_one_batch_follow_their_definitions(tmp_path):
    arrays = sampled(noise=0.2)
    mask = arrays["mask"].astype(bool)
    rollout, training = (arrays[f"{side}_log_probs"].astype(float) for side in ("rollout", "training"))
    r = (training - rollout)[mask]
    sums = ((training - rollout) * mask).sum(1)
    found = measure(tokens_of(tmp_path, arrays))
    assert found.num_tokens == mask.sum()
    assert found.max_abs_diff == np.abs(r).max()
    assert found.k1 == pytest.approx(-r.mean())
    assert found.k3 == pytest.approx((np.exp(r) - r - 1).mean())
    assert found.chi2_sequence == pytest.approx((np.exp(sums) ** 2).mean() - 1)
    assert found.ess_token == pytest.approx(np.exp(r).sum() ** 2 / (np.exp(r) ** 2).sum() / len(r))
    assert found.share_high == np.mean(np.exp(r) > 2)
    expected = np.corrcoef(np.exp(training[mask]), np.exp(rollout[mask]))[0, 1]
    assert found.pearson == pytest.approx(expected)


def test_what_is_masked_does_not_count(tmp_path):
    arrays = sampled()
    spoilt = {name: array.copy() for name, array in arrays.items()}
    spoilt["training_log_probs"][arrays["mask"] == 0] = np.nan
    assert measure(tokens_of(tmp_path, spoilt)) == measure(tokens_of(tmp_path, arrays))


def test_flat_arrays_with_lengths_are_the_same_tokens(tmp_path):
    arrays = sampled()
    mask = arrays["mask"].astype(bool)
    flat = {name: array[mask] for name, array in arrays.items() if name != "mask"}
    one = measure(tokens_of(tmp_path, flat, lengths=mask.sum(1)))
    assert one == measure(tokens_of(tmp_path, arrays))


def test_log_probs_that_are_not_finite_are_counted_and_left_out(tmp_path):
    arrays = sampled()
    arrays["rollout_log_probs"][0, 0] = -np.inf
    found = measure(tokens_of(tmp_path, arrays))
    assert found.num_not_finite == 1
    assert np.isfinite(found.k3)
