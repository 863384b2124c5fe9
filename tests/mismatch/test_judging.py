"""What is concluded: a true case and a near miss of every fault, and pairs that must stay quiet."""

from __future__ import annotations

import numpy as np
import pytest

from tests.mismatch.batches import sampled, write
from trueup.errors import ConfigError
from trueup.mismatch.analysis import analyse
from trueup.types.codes import MismatchCode as M
from trueup.types.status import Outcome


def judged(tmp_path, arrays, *, more=None, **options):
    return analyse([write(tmp_path / "tokens.npz", arrays, **(more or {}))], **options).judgement


def codes(judgement):
    return [one.code for one in judgement.reasons]


def rolled(arrays, by):
    return arrays | {"training_log_probs": np.roll(arrays["training_log_probs"], by, axis=1)}


# -- bits ------------------------------------------


def test_bit_identical_log_probs_agree(tmp_path):
    arrays = sampled()
    arrays["training_log_probs"] = arrays["rollout_log_probs"]
    for exact in (False, True):
        found = judged(tmp_path, arrays, exact=exact)
        assert (found.outcome, codes(found)) == (Outcome.AGREE, [M.IDENTICAL])


def test_one_bit_is_refused_when_bits_are_asked_for(tmp_path):
    arrays = sampled()
    arrays["training_log_probs"] = arrays["rollout_log_probs"].copy()
    arrays["training_log_probs"][0, 0] = np.nextafter(arrays["rollout_log_probs"][0, 0], np.float32(0))
    found = judged(tmp_path, arrays, exact=True)
    assert found.outcome is Outcome.DIFFER
    assert found.reasons[0].code is M.NOT_IDENTICAL
    assert found.reasons[0].facts["different"] == 1


def test_equal_log_probs_of_layers_that_differ_are_no_certificate(tmp_path):
    arrays = sampled()
    arrays["training_log_probs"] = arrays["rollout_log_probs"]
    arrays |= layers(arrays, [0.0, 1e-3])
    assert judged(tmp_path, arrays).outcome is Outcome.AGREE
    found = judged(tmp_path, arrays, exact=True)
    assert (found.outcome, found.reasons[0].place("name")) == (Outcome.DIFFER, "layers.1")


# -- rounding alone is never red ------------------------------------------


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("noise", [1e-6, 0.01, 0.05, 0.3])
def test_rounding_alone_is_undecided_at_worst(noise, seed, tmp_path):
    found = judged(tmp_path, sampled(noise=noise, seed=seed))
    assert (found.outcome, codes(found)) == (Outcome.UNDECIDED, [M.UNEXPLAINED])


def test_log_probs_rounded_to_bfloat16_are_not_red(tmp_path):
    arrays = sampled(rows=400, noise=1e-4, vocabulary=200)
    bits = arrays["rollout_log_probs"].view(np.uint32)
    arrays["rollout_log_probs"] = ((bits + 0x8000) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    found = judged(tmp_path, arrays)
    assert codes(found) == [M.UNEXPLAINED]
    (rounded,) = (one for one in found.remarks if one.code is M.ROUNDED)
    assert (rounded.place("side"), rounded.place("dtype")) == ("rollout", "bfloat16")
    assert rounded.number("rms_diff") == pytest.approx(found.reasons[0].number("rms_diff"), rel=0.05)


def test_one_temperature_on_both_sides_is_not_red(tmp_path):
    arrays = sampled(temperature=0.7, training_temperature=0.7)
    assert codes(judged(tmp_path, arrays)) == [M.UNEXPLAINED]


# -- what rounding cannot do ------------------------------------------


@pytest.mark.parametrize("by", [1, -1])
def test_shifted_log_probs(by, tmp_path):
    found = judged(tmp_path, rolled(sampled(), by))
    assert (found.outcome, codes(found)) == (Outcome.DIFFER, [M.SHIFTED])
    assert found.reasons[0].number("by") == by


def test_shifted_by_two_is_not_called_shifted_by_one(tmp_path):
    assert M.SHIFTED not in codes(judged(tmp_path, rolled(sampled(), 2)))


def test_rows_in_another_order(tmp_path):
    arrays = sampled()
    arrays["training_log_probs"] = arrays["training_log_probs"][::-1]
    found = judged(tmp_path, arrays)
    assert (found.outcome, codes(found)) == (Outcome.DIFFER, [M.REORDERED])
    assert found.reasons[0].facts["is_row"] == 31


def test_few_exchanged_rows_are_not_another_order_of_all(tmp_path):
    arrays = sampled()
    arrays["training_log_probs"][[0, 1]] = arrays["training_log_probs"][[1, 0]]
    found = judged(tmp_path, arrays)
    assert M.REORDERED not in codes(found)
    assert [one.code for one in found.remarks] == [M.FEW_SEQUENCES]
    assert set(found.remarks[0].place("sequences")) == {"0", "1"}


def test_a_rollout_renormalised_after_top_k(tmp_path):
    found = judged(tmp_path, sampled(keep=10))
    assert (found.outcome, codes(found)) == (Outcome.DIFFER, [M.NOT_SAMPLED])
    assert found.reasons[0].number("mean_ratio") < 1


def test_raw_log_probs_of_a_rollout_sampled_at_a_temperature(tmp_path):
    """The trainer applies the temperature, the rollout's log-probs are those before it."""
    arrays = sampled(temperature=0.7, training_temperature=0.7)
    arrays["rollout_log_probs"] = raw(0.7)
    assert M.NOT_SAMPLED in codes(judged(tmp_path, arrays))


def raw(temperature):
    """Log-probs without the temperature, of tokens that were drawn with it."""
    from tests.mismatch.batches import log_softmax

    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (32, 40, 50))
    served = logits + rng.normal(0, 0.01, logits.shape)
    rng.normal(0, 0.01, logits.shape)
    tokens = (log_softmax(served / temperature) + rng.gumbel(size=logits.shape)).argmax(-1)
    return np.take_along_axis(log_softmax(served), tokens[..., None], -1)[..., 0].astype(np.float32)


@pytest.mark.parametrize("temperature", [0.7, 0.9, 1.3])
def test_a_temperature_on_one_side(temperature, tmp_path):
    found = judged(tmp_path, sampled(temperature=temperature))
    assert found.outcome is Outcome.DIFFER
    assert M.SPREAD in codes(found)


def test_a_log_prob_that_is_not_finite(tmp_path):
    arrays = sampled()
    arrays["rollout_log_probs"][3, 7] = -np.inf
    found = judged(tmp_path, arrays)
    assert (found.outcome, found.reasons[0].code) == (Outcome.DIFFER, M.NOT_FINITE)
    facts = found.reasons[0].facts
    assert (facts["sides"], facts["sequence"], facts["position"]) == (("rollout",), 3, 7)


def test_nan_on_both_sides_is_not_bit_identical(tmp_path):
    arrays = sampled()
    arrays["rollout_log_probs"][0, 0] = np.nan
    arrays["training_log_probs"] = arrays["rollout_log_probs"]
    assert judged(tmp_path, arrays).outcome is Outcome.DIFFER


# -- bounds and noise ------------------------------------------


def test_bounds_decide_where_nothing_else_does(tmp_path):
    arrays = sampled()
    within = judged(tmp_path, arrays, bounds={"k3": 1e-3, "ess_token": 0.99})
    assert (within.outcome, codes(within)) == (Outcome.AGREE, [M.WITHIN_BOUNDS])
    for bounds in ({"k3": 1e-6}, {"ess_token": 0.9999999}):
        beyond = judged(tmp_path, arrays, bounds=bounds)
        assert (beyond.outcome, codes(beyond)) == (Outcome.DIFFER, [M.BEYOND_BOUND])


def test_bounds_never_hide_a_fault(tmp_path):
    found = judged(tmp_path, rolled(sampled(), 1), bounds={"k3": 1e9})
    assert (found.outcome, found.reasons[0].code) == (Outcome.DIFFER, M.SHIFTED)


@pytest.mark.parametrize(
    ("times", "outcome", "code"),
    [
        (1.5, Outcome.AGREE, M.WITHIN_NOISE),
        (3.0, Outcome.UNDECIDED, M.NOISE_IN_DOUBT),
        (8.0, Outcome.DIFFER, M.BEYOND_NOISE),
    ],
)
def test_measured_noise_explains_a_difference_of_its_size(times, outcome, code, tmp_path):
    arrays = sampled()
    difference = (arrays["rollout_log_probs"] - arrays["training_log_probs"])[:, ::-1]
    arrays["noise_log_probs"] = arrays["training_log_probs"] + difference / times
    arrays["mask"][:] = 1
    found = judged(tmp_path, arrays)
    assert (found.outcome, codes(found)) == (outcome, [code])


def test_a_variant_with_the_same_bits_measures_nothing(tmp_path):
    arrays = sampled()
    arrays["noise_log_probs"] = arrays["training_log_probs"]
    found = judged(tmp_path, arrays)
    assert found.outcome is Outcome.UNDECIDED
    assert M.NO_NOISE in [one.code for one in found.remarks]


# -- layers ------------------------------------------


def layers(arrays, errors, *, coarse=True, noise=None):
    """Layer outputs of both sides, with such relative errors; the rollout's rounded to bfloat16."""
    rng = np.random.default_rng(5)
    found = {}
    for at, error in enumerate(errors):
        training = rng.normal(size=(*arrays["mask"].shape, 16)).astype(np.float32)
        rollout = (training * (1 + error * rng.normal(size=training.shape))).astype(np.float32)
        if coarse and error:
            rollout = ((rollout.view(np.uint32) + 0x8000) & 0xFFFF0000).astype(np.uint32).view(np.float32)
        found |= {f"training/layers.{at}": training, f"rollout/layers.{at}": rollout}
        if noise is not None:
            varied = training * (1 + noise * rng.normal(size=training.shape))
            found[f"noise/layers.{at}"] = varied.astype(np.float32)
    return found


def test_rounding_of_every_layer_explains_the_log_probs(tmp_path):
    arrays = sampled()
    found = judged(tmp_path, arrays | layers(arrays, [0.004, 0.007, 0.012]))
    assert (found.outcome, codes(found)) == (Outcome.AGREE, [M.ROUNDING])
    assert found.reasons[0].place("dtype") == "bfloat16"


def test_the_first_layer_beyond_rounding_is_named(tmp_path):
    arrays = sampled(noise=0.1)
    found = judged(tmp_path, arrays | layers(arrays, [0.004, 0.2, 0.2]))
    assert (found.outcome, codes(found)) == (Outcome.DIFFER, [M.LAYER])
    assert found.reasons[0].place("name") == "layers.1"
    assert found.advice[0].code is M.COMPARE_LAYER


def test_an_error_that_is_handed_on_is_not_made_again(tmp_path):
    arrays = sampled(noise=0.05)
    found = judged(tmp_path, arrays | layers(arrays, [0.01, 0.03, 0.07]))
    assert codes(found) == [M.ROUNDING]


def test_a_layer_between_rounding_and_fault_is_in_doubt(tmp_path):
    arrays = sampled()
    found = judged(tmp_path, arrays | layers(arrays, [0.004, 0.03]))
    assert (found.outcome, codes(found)) == (Outcome.UNDECIDED, [M.LAYER_IN_DOUBT])
    assert found.reasons[0].place("name") == "layers.1"
    assert [one.code for one in found.advice] == [M.GIVE_NOISE, M.COMPARE_LAYER]


def test_float32_layers_have_float32_room(tmp_path):
    arrays = sampled(noise=1e-6)
    assert codes(judged(tmp_path, arrays | layers(arrays, [1e-7], coarse=False))) == [M.ROUNDING]
    assert codes(judged(tmp_path, arrays | layers(arrays, [1e-4], coarse=False))) == [M.LAYER]


def test_measured_noise_replaces_the_bound_of_a_dtype(tmp_path):
    arrays = sampled(noise=0.001)
    found = judged(tmp_path, arrays | layers(arrays, [1e-3], coarse=False, noise=1e-3))
    assert codes(found) == [M.ROUNDING]
    found = judged(tmp_path, arrays | layers(arrays, [1e-3], coarse=False, noise=1e-5))
    assert codes(found) == [M.LAYER_NOISE]


def test_equal_layers_and_other_log_probs_are_a_fault_after_them(tmp_path):
    arrays = sampled(temperature=0.9)
    found = judged(tmp_path, arrays | layers(arrays, [1e-7, 1e-7], coarse=False))
    assert found.outcome is Outcome.DIFFER
    assert M.HEAD in codes(found)


# -- steps ------------------------------------------


def test_bits_until_a_step_and_growth_after_it(tmp_path):
    paths = []
    for step, noise in enumerate((0.0, 0.01, 0.01)):
        arrays = sampled(noise=noise, seed=step)
        if not noise:
            arrays["training_log_probs"] = arrays["rollout_log_probs"]
        paths.append(write(tmp_path / f"{step}.npz", arrays, step=step))
    found = analyse(paths)
    assert [one.code for one in found.judgement.remarks] == [M.EQUAL_UNTIL]
    assert found.judgement.remarks[0].number("step") == 1
    assert [part.first for part in found.steps] == [0, 1, 2]
    assert analyse(paths, last=0).judgement.outcome is Outcome.AGREE
    with pytest.raises(ConfigError, match="0 to 2"):
        analyse(paths, first=7)


def test_drift_over_steps(tmp_path):
    paths = [
        write(tmp_path / f"{step}.npz", sampled(noise=0.01 * (1 + step), seed=step), step=step)
        for step in range(4)
    ]
    assert [one.code for one in analyse(paths).judgement.remarks] == [M.GROWS_STEPS]


def test_growth_along_the_response(tmp_path):
    arrays = sampled(rows=100)
    growing = np.linspace(0.1, 4, 40, dtype=np.float32)
    difference = arrays["training_log_probs"] - arrays["rollout_log_probs"]
    arrays["training_log_probs"] = arrays["rollout_log_probs"] + growing * difference
    assert [one.code for one in judged(tmp_path, arrays).remarks] == [M.GROWS_POSITION]


# -- files ------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (lambda a: a.pop("training_log_probs"), "old_log_probs"),
        (lambda a: a.update(tokens=a["tokens"][:, :-1]), "shape"),
        (lambda a: a.update(mask=a["mask"] * 0), "no token"),
        (lambda a: a.update(step=np.arange(3)), "step"),
        (lambda a: a.update(rollout_log_probs=a["rollout_log_probs"].astype(complex)), "real"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(spoil, word, tmp_path):
    arrays = sampled()
    spoil(arrays)
    with pytest.raises(ConfigError, match=word):
        judged(tmp_path, arrays)


def test_a_file_of_another_kind(tmp_path):
    (tmp_path / "tokens.npz").write_text("no archive")
    with pytest.raises(ConfigError, match="numpy archive"):
        analyse([tmp_path / "tokens.npz"])
    with pytest.raises(ConfigError, match="no token file"):
        analyse([tmp_path.parent])
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(ConfigError, match="savez"):
        analyse([tmp_path / "one.npy"])


@pytest.mark.parametrize("width", [8, 16])
def test_a_layer_of_another_shape(tmp_path, width):
    arrays = sampled()
    arrays |= layers(arrays, [0.004, 0.007])
    arrays["rollout/layers.1"] = arrays["rollout/layers.1"][..., :width]
    found = judged(tmp_path, arrays)
    shapes = [one.place("name") for one in found.reasons if one.code is M.LAYER_SHAPE]
    assert shapes == (["layers.1"] if width == 8 else [])
