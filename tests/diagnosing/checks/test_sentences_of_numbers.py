"""Sentences of ``trueup check-run`` about numbers, held against runs that chance puts together: what each
says is worked out from the arrays of the run, without the rule."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from tests.comparing.traces import Recorder
from tests.diagnosing.checks.test_each_reason import said_by, told
from tests.diagnosing.held_runs import held
from tests.diagnosing.made_steps import Array, codes_of, drawn, facts_of, step
from trueup.diagnosing.checks import finite, grad_norm, master_weights, updates
from trueup.diagnosing.checks import gradients as gradients_check
from trueup.diagnosing.checks import range as range_check
from trueup.diagnosing.checks.outcome import Check, CheckOutcome, CheckVerdict
from trueup.diagnosing.checks.run import CheckedRun
from trueup.numerics.summary import HAS_DIGEST, HAS_STATISTICS
from trueup.store.view import ACCUMULATED, CLIPPED, LOCAL, UPDATED, WEIGHT
from trueup.types.codes import CheckCode as Code
from trueup.types.reason import Reason
from trueup.wording import text

HALF = np.finfo(np.float16)


def checked(check: Check, *steps: Any, **more: Any) -> CheckOutcome:
    return check.check(CheckedRun(held(*steps, **more)))


def codes(outcome: CheckOutcome) -> set[Any]:
    return codes_of(said_by(outcome))


def facts(outcome: CheckOutcome, code: Code) -> dict[str, Any]:
    found = facts_of(said_by(outcome), code)
    assert found is not None, (code, outcome)
    return found


def details(outcome: CheckOutcome) -> dict[str, Reason | None]:
    return {place.site: place.detail for place in outcome.places}


# -- NaN and infinity ------------------------------------------

SPOILT = (np.nan, np.inf, -np.inf)
DECISIVE = {WEIGHT: "weight", LOCAL: "gradient of a weight", UPDATED: "update"}


def spoilt(random: np.random.Generator, often: float) -> Array:
    array = random.standard_normal((4, 4)).astype(np.float32)
    if random.random() < often:
        array[tuple(random.integers(0, 4, 2))] = random.choice(SPOILT)
    return array


def test_what_is_said_of_nan_and_infinity() -> None:
    """Of two calls, and of two weights; any of it may hold a value that is not finite, or be left out."""
    random, seen = np.random.default_rng(1), set[Any]()
    for _ in range(40):
        steps, activations, kept, kinds = [], dict[str, list[Array]](), list[Array](), set[str]()
        slots = [slot for slot in DECISIVE if random.random() < 0.6]
        loss = random.random() < 0.5
        for _ in range(int(random.integers(1, 3))):
            out = Recorder()
            root = out.call("module", "", type_="Net")
            for name in ("torch.one", "torch.two"):
                made = spoilt(random, 0.3)
                out.api(root, name, made)
                activations.setdefault(name, []).append(made)
            weight = out.call("parameter", "w")
            for slot in slots:
                kept.append(spoilt(random, 0.05))
                kinds.add(DECISIVE[slot])
                out.record(weight, *slot, kept[-1])
            if loss:
                kept.append(np.array(random.choice([1.0, np.nan], p=[0.95, 0.05]), np.float32))
                out.record(out.call("loss", "loss"), "loss", "value", kept[-1])
            steps.append(out)
        outcome = checked(finite.CHECK, *steps, facts=told(("w", True)))
        harm = [one for one in kept if not np.isfinite(one).all()]
        apart = [name for name, made in activations.items() if not np.isfinite(made).all()]
        seen |= codes(outcome)
        assert (outcome.verdict is CheckVerdict.FAILED) == bool(harm)
        assert (outcome.verdict is CheckVerdict.UNDECIDED) == bool(apart and not kept)
        assert (Code.NOT_FINITE in codes(outcome)) == (Code.KEEP_INPUTS in codes(outcome))
        assert (Code.FINITE in codes(outcome)) == (outcome.verdict is CheckVerdict.PASSED)
        if outcome.verdict is CheckVerdict.PASSED:
            said = facts(outcome, Code.FINITE)
            assert said["num"] == len(steps) * (2 + len(slots) + loss)
            assert set(said["kinds"]) == (kinds | ({"loss"} if loss else set()) or {"activation"})
            assert (Code.MASKED_AWAY in codes(outcome)) == bool(apart)
            if apart:
                assert facts(outcome, Code.MASKED_AWAY)["num"] == len(apart)
        else:
            first = outcome.places[0].detail
            assert first is not None
            counts = [first.number(f"num_{name}") for name in ("nan", "posinf", "neginf")]
            every = [one for made in activations.values() for one in made] + kept
            assert counts in [
                [np.isnan(one).sum(), (one == np.inf).sum(), (one == -np.inf).sum()] for one in every
            ]
            is_call = "torch." in outcome.places[0].site
            assert first.number("is_made") == facts(outcome, Code.NOT_FINITE)["is_made"] == is_call
    assert {Code.FINITE, Code.NOT_FINITE, Code.NOT_FINITE_VALUES, Code.MASKED_AWAY, Code.KEEP_INPUTS} <= seen


def test_an_infinity_of_a_mask_that_reaches_the_loss() -> None:
    """The label of a masked logit: the loss is infinite, and no call but the mask's made an infinity."""
    out = Recorder()
    masked = np.full((2, 4), -np.inf, np.float32)
    call = out.call("api", "torch.nn.functional.cross_entropy", out.call("module", "", type_="Net"))
    out.record(call, "forward", "input.0", masked)
    out.record(call, "forward", "output.0", np.array(np.inf, np.float32))
    out.record(out.call("loss", "loss"), "loss", "value", np.array(np.inf, np.float32))
    outcome = checked(finite.CHECK, out)
    assert outcome.verdict is CheckVerdict.FAILED
    assert facts(outcome, Code.NOT_FINITE_VALUES)["num_posinf"] == 1


def test_digests_alone_tell_nothing_of_nan() -> None:
    for want, code in ((HAS_DIGEST, Code.NO_STATISTICS), (HAS_STATISTICS, Code.FINITE)):
        out = Recorder(want=want)
        out.record(out.call("parameter", "w"), *WEIGHT, drawn(1))
        assert checked(finite.CHECK, out).sentence.code is code


@pytest.mark.parametrize("skipped", [True, False])
def test_gradients_of_a_skipped_step_are_not_called_finite(skipped: bool) -> None:
    overflow = np.full((8, 8), np.inf if skipped else 1.0, np.float32)
    one = step({"w": {WEIGHT: drawn(0), LOCAL: overflow}})
    outcome = checked(finite.CHECK, one, lines=[{"skipped": skipped}], facts=told(("w", True)))
    assert bool(facts(outcome, Code.FINITE)["skips"]) is skipped
    assert ("aside" in text(outcome.sentence)) is skipped


# -- the range of a dtype ------------------------------------------


def outputs(*made: Array, fed: Array | None = None, **grads: Array) -> Recorder:
    out = Recorder()
    root = out.call("module", "", type_="Net")
    for at, one in enumerate(made):
        call = out.call("api", f"torch.f{at}", root)
        if fed is not None:
            out.record(call, "forward", "input.0", fed)
        out.record(call, "forward", "output.0", one)
    for name, one in grads.items():
        out.record(out.call("parameter", name), *LOCAL, one)
    return out


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_values_near_the_largest(dtype: Any) -> None:
    """A value on either side of half of the largest, from smaller inputs, from larger ones, and a mask."""
    limit = float(np.finfo(dtype).max)
    for share, sign in ((0.49, 1), (0.51, 1), (0.51, -1), (0.9, 1)):
        for feed in (None, 0.1, 0.6):
            made = np.array([sign * share * limit, 1.0], dtype)
            given = None if feed is None else np.array([feed * limit], dtype)
            outcome = checked(range_check.CHECK, outputs(made, fed=given))
            near = share > 0.5 and feed != 0.6
            assert (Code.NEAR_OVERFLOW in codes(outcome)) is near is (Code.IN_RANGE not in codes(outcome))
            if near:
                value = facts(outcome, Code.LARGE_VALUE)
                assert value == {
                    "value": float(abs(made[0])),
                    "limit": limit,
                    "dtype": np.dtype(dtype).name,
                }
    for benign in (np.full(4, -limit, dtype), np.full(4, -np.inf, dtype), np.array([np.nan, 1], dtype)):
        assert Code.NEAR_OVERFLOW not in codes(checked(range_check.CHECK, outputs(benign)))


def test_gradients_below_the_smallest_normal_number() -> None:
    random, seen = np.random.default_rng(2), set[Any]()
    normal = float(HALF.smallest_normal)
    for _ in range(30):
        grads = {}
        for at in range(12):
            size = normal * 10 ** random.uniform(-1.5, 3) if random.random() < 0.1 else 1.0
            one = (random.choice([-1, 1], 8) * size).astype(np.float16)
            one[random.random(8) < 0.3] = 0
            if random.random() < 0.2:
                one[0] = random.choice([np.inf, np.nan])
            grads[f"w{at}"] = one
        finite_parts = [one[np.isfinite(one) & (one != 0)].astype(float) for one in grads.values()]
        sizes = [math.sqrt((one**2).mean()) for one in finite_parts if one.size]
        below = [size for size in sizes if size < normal]
        outcome = checked(range_check.CHECK, outputs(**grads))
        seen |= codes(outcome)
        assert (Code.BELOW_NORMAL in codes(outcome)) == (Code.SCALE_LOSS in codes(outcome)) == bool(below)
        if below:
            counts = facts(outcome, Code.BELOW_NORMAL)
            assert (counts["num"], counts["total"]) == (len(below), len(sizes))
            small = facts(outcome, Code.SMALL_VALUES)
            assert small["rms"] == pytest.approx(below[0], rel=1e-3)
            assert (small["normal"], small["dtype"]) == (normal, "float16")
            assert small["zero"] in [float((one == 0).mean()) for one in grads.values()]
        else:
            said = facts(outcome, Code.IN_RANGE)
            assert (said["num_gradients"], said["num_small"]) == (len(sizes), 0)
    assert {Code.BELOW_NORMAL, Code.SMALL_VALUES, Code.IN_RANGE, Code.SCALE_LOSS} <= seen


def test_gradients_inside_that_are_small_are_not_said_to_be_large() -> None:
    """One in twelve activations' gradients may be: the rest alone lies above."""
    out = outputs()
    for at in range(12):
        size = 1e-6 if at == 3 else 1.0
        call = out.call("api", f"torch.g{at}", 0)
        out.record(call, "backward", "input.0", np.full(4, size, np.float16))
    outcome = checked(range_check.CHECK, out)
    assert facts(outcome, Code.IN_RANGE) == {"num_gradients": 12, "num_small": 1, "is_scaled": False}
    assert "11 of 12 gradients" in text(outcome.sentence)


def test_the_loss_is_scaled_where_it_is_not() -> None:
    tiny = np.full(8, 1e-6, np.float16)
    for scale, word in ((None, "GradScaler"), (8.0, "raise")):
        lines = [{} if scale is None else {"loss_scale": scale}]
        outcome = checked(range_check.CHECK, outputs(w=tiny), lines=lines)
        assert outcome.next is not None
        assert outcome.next.code is Code.SCALE_LOSS
        assert word in text(outcome.next)


# -- gradients of weights ------------------------------------------


def test_which_parameters_have_gradients() -> None:
    """Each of six weights in three layers and an expert: trained or not, with a gradient, zeros or none a
    step."""
    random, seen = np.random.default_rng(3), set[Any]()
    names = ["emb.w", "layers.0.w", "layers.1.w", "layers.2.w", "layers.3.w", "moe.experts.0.w"]
    for _ in range(40):
        trained = {name: random.random() < 0.8 for name in names}
        num_steps = int(random.integers(1, 3))
        grads = [
            {name: random.choice(["some", "zeros", "none"], p=[0.8, 0.12, 0.08]) for name in names}
            for _ in range(num_steps)
        ]
        steps = [
            step(
                {
                    name: {WEIGHT: drawn(1), **({} if how == "none" else {LOCAL: drawn(2) * (how == "some")})}
                    if trained[name]
                    else {WEIGHT: drawn(1)}
                    for name, how in one.items()
                }
            )
            for one in grads
        ]
        outcome = checked(gradients_check.CHECK, *steps, facts=told(*trained.items()))
        hows = {name: {one[name] for one in grads} for name in names if trained[name]}
        seen |= codes(outcome)
        if not any(hows.values()):
            assert outcome.sentence.code is Code.NONE_TRAINABLE
            continue
        if all(how == {"none"} for how in hows.values()):
            assert outcome.sentence.code is Code.NONE_CAPTURED
            continue
        without = [n for n, how in hows.items() if how == {"none"} and "experts" not in n]
        zeros = [n for n, how in hows.items() if how in ({"zeros"}, {"zeros", "none"}) and "experts" not in n]
        said, place = codes(outcome), details(outcome)
        assert (Code.MISSING in said) == bool(without)
        assert (Code.ONLY_ZEROS in said) == bool(zeros)
        for name, detail in place.items():
            assert detail is not None
            lists = {Code.MISSING: without, Code.ONLY_ZEROS: zeros}
            if detail.code is Code.FROZEN_HERE:
                others = [n for n in names if n.startswith("layers.") and n != name]
                assert name.startswith("layers.")
                assert not trained[name]
                assert any(trained[n] for n in others)
            else:
                assert name in lists[detail.code]
        num_frozen = sum(not one for one in trained.values())
        assert (Code.NUM_FROZEN in said) == bool(num_frozen)
        if num_frozen:
            frozen = facts(outcome, Code.NUM_FROZEN)
            assert (frozen["num"], frozen["total"]) == (num_frozen, len(names))
            assert trained[frozen["parameter"]] is False
        if outcome.verdict is CheckVerdict.PASSED:
            every = facts(outcome, Code.EVERY_GRADIENT)
            assert every["num"] == sum("some" in how for how in hows.values())
            assert every["steps"] == sum(any(how != "none" for how in one.values()) for one in grads)
        else:
            some = facts(outcome, Code.SOME_GRADIENTS)
            assert (some["missing"], some["zero"], some["total"]) == (len(without), len(zeros), len(names))
            assert some["parameter"] == outcome.places[0].site
    empty = checked(gradients_check.CHECK, step({"w": {WEIGHT: drawn(1)}}), facts={"parameters": []})
    assert empty.sentence.code is Code.NO_PARAMETERS
    assert {Code.EVERY_GRADIENT, Code.SOME_GRADIENTS, Code.FROZEN_HERE, Code.EXPERTS} <= seen


# -- the norm of gradients ------------------------------------------


def test_the_reported_norm() -> None:
    """Gradients of two weights over two steps, and a reported norm that is theirs times a factor."""
    random = np.random.default_rng(4)
    for at in range(24):
        ranks, microbatches, scale = ((1, 4, None), (3, 1, None), (1, 1, 256.0), (2, 8, None))[at % 4]
        facts_ = {**told(("a", True), ("b", True)), "wrapped_by": ["DistributedDataParallel"]}
        factors = [
            1.0,
            1.0 + 5e-4,
            1.004,
            3.0,
            math.sqrt(ranks),
            microbatches,
            1 / microbatches,
            scale or 5.0,
        ]
        factor = float(random.choice(factors))
        grads = [{name: random.standard_normal((4, 4)).astype(np.float32) for name in "ab"} for _ in range(2)]
        norms = [math.sqrt(sum((one.astype(float) ** 2).sum() for one in g.values())) for g in grads]
        steps = [step({n: {WEIGHT: drawn(1), ACCUMULATED: one} for n, one in g.items()}) for g in grads]
        lines = [
            {"grad_norm": norm / (scale or 1) * (factor if at_step else 1.0), "microbatches": microbatches}
            | ({"loss_scale": scale} if scale else {})
            for at_step, norm in enumerate(norms)
        ]
        outcome = checked(grad_norm.CHECK, *[[one] * ranks for one in steps], lines=lines, facts=facts_)
        own = norms[1] / (scale or 1)
        assert (Code.NORM_AGREES in codes(outcome)) == (abs(factor - 1) < 2e-3)
        assert (Code.NORM_DIFFERS in codes(outcome)) == (abs(factor - 1) > 2e-3)
        if Code.NORM_DIFFERS in codes(outcome):
            said = facts(outcome, Code.NORM_DIFFERS)
            assert said["step"] == 1
            assert [said["reported"], said["recomputed"], said["factor"]] == pytest.approx(
                [own * factor, own, factor], rel=1e-5
            )
            causes = {
                Code.REPLICAS_COUNTED: (math.sqrt(ranks), ranks),
                Code.MICROBATCHES: (microbatches, microbatches),
                Code.ONE_OVER_MICROBATCHES: (1 / microbatches, microbatches),
                Code.NOT_UNSCALED: (scale, None),
            }
            for code, (value, num) in causes.items():
                fits = value not in (None, 1) and abs(factor / value - 1) < 1e-6
                assert (code in codes(outcome)) is fits, (code, factor)
                assert not fits or facts(outcome, code).get("num") == num
        else:
            said = facts(outcome, Code.NORM_AGREES)
            assert said["num"] == 2 * ranks
            assert said["reported"] == pytest.approx(said["recomputed"], rel=2e-3)


def test_a_norm_that_cannot_be_held_against_gradients() -> None:
    grads = {WEIGHT: drawn(1), ACCUMULATED: drawn(2)}
    norm = float(np.linalg.norm(drawn(2)))
    spoilt = {WEIGHT: drawn(1), ACCUMULATED: np.where(drawn(2) > 1, np.nan, drawn(2))}
    outside = {"w": grads, "AdamW.group0.0": {CLIPPED: drawn(2)}}
    zero = {WEIGHT: drawn(1), ACCUMULATED: np.zeros((8, 8), np.float32)}
    for parts, line, code in (
        ({"w": grads}, {"grad_norm": norm}, Code.NORM_AGREES),
        ({"w": grads}, {"grad_norm": float(np.abs(drawn(2)).max())}, Code.NORM_AGREES),  # the infinity norm
        ({"w": grads}, {}, Code.NO_NORM),
        ({"w": {WEIGHT: drawn(1)}}, {"grad_norm": norm}, Code.NORM_NOT_CAPTURED),
        ({"w": grads}, {"grad_norm": math.inf}, Code.NORM_NOT_FINITE),
        ({"w": spoilt}, {"grad_norm": norm}, Code.NORM_NOT_FINITE),
        (outside, {"grad_norm": norm}, Code.NORM_OF_MASTERS),
        (outside, {}, Code.NO_NORM),
        ({"w": zero}, {"grad_norm": norm}, Code.NORM_DIFFERS),
    ):
        outcome = checked(grad_norm.CHECK, step(parts), lines=[line], facts=told(("w", True)))
        assert outcome.sentence.code is code, (code, outcome.sentence)
        assert "inf" not in text(outcome.sentence).replace("infinity", "")


def test_replicas_are_all_ranks_of_the_run_and_not_those_captured() -> None:
    """Of a run of four, two ranks were captured: a norm twice as large counts four replicas."""
    one = step({"w": {WEIGHT: drawn(1), ACCUMULATED: drawn(2)}})
    outcome = checked(
        grad_norm.CHECK,
        [one, one],
        lines=[{"grad_norm": 2 * float(np.linalg.norm(drawn(2)))}],
        facts={**told(("w", True)), "wrapped_by": ["DistributedDataParallel"]},
        world_size=4,
    )
    assert facts(outcome, Code.REPLICAS_COUNTED) == {"num": 4}
    # of a run of eight in two groups, those of one
    told_by = {**told(("w", True)), "groups": {"weights": [0, 1, 2, 3]}}
    lines = [{"grad_norm": 2 * float(np.linalg.norm(drawn(2)))}]
    outcome = checked(grad_norm.CHECK, [one, one], lines=lines, facts=told_by, world_size=8)
    assert facts(outcome, Code.REPLICAS_COUNTED) == {"num": 4}


# -- updates ------------------------------------------

WHY = {
    Code.LOST_IN_ROUNDING: Code.KEEP_MASTERS,
    Code.STALE_PARAMETERS: Code.OPTIMIZER_LAST,
    Code.NOT_HELD: Code.ALL_PARAMETERS,
    Code.SAME_BITS: Code.FIND_RESTORE,
}


def test_what_became_of_updates() -> None:
    """Weights of float32 or float16 over one to three steps: in the optimizer or not, changed or not."""
    random, seen = np.random.default_rng(5), set[Any]()
    for _ in range(40):
        dtype = random.choice(["float32", "float16"])
        names = ["a", "b", "c"]
        held_by = {name: random.random() < 0.9 for name in names}
        moves = {name: random.random() < 0.7 for name in names}
        shown = random.random() < 0.8  # updates are recorded
        rates = [float(random.choice([0.0, 1e-2, 1e-6])) for _ in range(int(random.integers(1, 4)))]
        weights = {name: drawn(at, 4, 4).astype(dtype) for at, name in enumerate(names)}
        steps, changed, due = [], set[str](), {name: [False] * len(rates) for name in names}
        spacings = {name: set[float]() for name in names}
        for at, rate in enumerate(rates):
            after = {}
            for name, weight in weights.items():
                moved = weight + np.where(moves[name] and held_by[name], rate, 0.0).astype(dtype)
                after[name] = moved.astype(dtype)
            parts = {
                name: {
                    WEIGHT: weight,
                    LOCAL: drawn(9, 4, 4),
                    **({UPDATED: after[name]} if held_by[name] and shown else {}),
                }
                for name, weight in weights.items()
            }
            steps.append(step(parts))
            by_update = {n for n in names if held_by[n] and shown and not any(rates[:at])}
            judged = {*names} if at + 1 < len(rates) else by_update
            for name in judged if rate else ():
                spacing = float(np.spacing(np.abs(weights[name]).min()))
                spacings[name].add(spacing)
                due[name][at] = rate >= spacing / 2
                if (after[name] != weights[name]).any():
                    changed.add(name)
            weights = after
        lines = [{"learning_rate": [rate]} for rate in rates]
        outcome = checked(
            updates.CHECK, *steps, lines=lines, facts=told(*((n, True) for n in names), dtype=dtype)
        )
        seen |= codes(outcome)
        stills = [one for one in said_by(outcome) for one in (one, *one.parts) if one.code is Code.RATE_ZERO]
        assert {one.number("step") for one in stills} == {at for at, rate in enumerate(rates) if not rate}
        if outcome.sentence.code is Code.NO_UPDATE:
            assert not changed
            assert not any(any(one) for one in due.values())
            assert Code.CAPTURE_MORE in codes(outcome)
            continue
        expected = {n for n in names if n not in changed and spacings[n]}
        expected = {n for n in expected if any(due[n]) or dtype == "float16"}
        if outcome.sentence.code is Code.ALL_CHANGED:
            said = facts(outcome, Code.ALL_CHANGED)
            assert not {n for n in expected if any(due[n])}
            assert said["num"] == len(changed)
            continue
        said = facts(outcome, Code.UNCHANGED)
        assert (said["num"], said["total"]) == (len(expected), len(expected | changed))
        for name, detail in details(outcome).items():
            assert detail is not None
            assert name in expected
            if detail.code is Code.LOST_IN_ROUNDING:
                assert not any(due[name])
                assert detail.number("spacing") in spacings[name]
                assert detail.number("rate") < detail.number("spacing") / 2
            else:
                assert any(due[name])
                assert (detail.code is Code.NOT_HELD) == (
                    not held_by[name] and shown and any(held_by.values())
                )
        reasons = {detail.code for detail in details(outcome).values() if detail is not None}
        assert outcome.next is not None
        assert outcome.next.code in {WHY[code] for code in reasons}
    wanted = {Code.NO_UPDATE, Code.ALL_CHANGED, Code.UNCHANGED, Code.RATE_ZERO, Code.CAPTURE_MORE}
    assert wanted | {Code.SAME_BITS, Code.NOT_HELD, Code.LOST_IN_ROUNDING} <= seen
    assert {Code.KEEP_MASTERS, Code.ALL_PARAMETERS, Code.FIND_RESTORE} <= seen


def test_why_no_update_is_judged() -> None:
    weight = drawn(1)
    alone, small = (
        step({"w": {WEIGHT: weight}}),
        step({"w": {WEIGHT: weight, LOCAL: weight, UPDATED: weight}}),
    )
    rate = {"learning_rate": [1e-12]}
    for one, line, code in ((alone, {}, Code.NONE_IN_STEPS), (small, rate, Code.NONE_DUE)):
        outcome = checked(updates.CHECK, one, lines=[line], facts=told(("w", True)))
        assert {Code.NO_UPDATE, code, Code.CAPTURE_MORE} == codes(outcome)


def test_a_working_copy_that_waits_is_not_counted_as_changed() -> None:
    """Two of three float16 weights stay: their optimizer keeps a float32 copy, or it does not."""
    for keeps in (True, False):
        parts = {}
        for at, name in enumerate("abc"):
            weight = np.full((8, 8), 1.5, np.float16)
            state = {("optimizer", "state.master"): weight.astype(np.float32)} if keeps else {}
            parts[name] = {WEIGHT: weight, LOCAL: drawn(at), UPDATED: weight + np.float16(at == 0), **state}
        outcome = checked(updates.CHECK, step(parts), lines=[{"learning_rate": [1e-5]}],
            facts=told(*((name, True) for name in "abc"), dtype="float16"),
        )  # fmt: skip
        assert (Code.AWAITING in codes(outcome)) is keeps is (outcome.verdict is CheckVerdict.PASSED)
        if keeps:
            assert facts(outcome, Code.AWAITING) == {"num": 2}
            assert facts(outcome, Code.ALL_CHANGED) == {"num": 1, "total": 3, "first": 0, "last": 0}
        else:
            assert facts(outcome, Code.LOST_IN_ROUNDING)["spacing"] == float(np.spacing(np.float16(1.5)))


def test_the_advice_is_for_what_is_unchanged() -> None:
    """Tensors outside the model are updated, and of the model one that the optimizer holds stays."""
    parts: dict[str, Mapping[Any, Any]] = {
        "w": {WEIGHT: drawn(1), LOCAL: drawn(2), UPDATED: drawn(1)},
        "AdamW.group0.1": {UPDATED: drawn(3, 4)},
    }
    one = checked(updates.CHECK, step(parts), lines=[{"learning_rate": [0.1]}], facts=told(("w", True)))
    assert {Code.SAME_BITS, Code.FIND_RESTORE} <= codes(one)
    parts["w"] = {WEIGHT: drawn(1), LOCAL: drawn(2)}
    parts["AdamW.group0.1"] = {UPDATED: drawn(3)}
    other = step(parts)
    stale = checked(
        updates.CHECK, other, other, lines=[{"learning_rate": [0.1]}] * 2, facts=told(("w", True))
    )
    assert {Code.STALE_PARAMETERS, Code.OPTIMIZER_LAST} <= codes(stale)


# -- master weights ------------------------------------------

MASTER = ("optimizer", "state.master_param")


def mixed(copies: list[dict[str, Array]], masters: list[dict[str, Array]]) -> Iterator[Recorder]:
    for copy, kept in zip(copies, masters, strict=True):
        yield step(
            {n: {WEIGHT: copy[n], LOCAL: copy[n], **({MASTER: kept[n]} if n in kept else {})} for n in copy}
        )


def test_working_copies_and_their_masters() -> None:
    """Each copy is the rounded master of the step before, or has elements of its own; NaN stays NaN."""
    random, seen = np.random.default_rng(6), set[Any]()
    for _ in range(30):
        names, num_steps = ["a", "b", "c"][: int(random.integers(1, 4))], int(random.integers(2, 4))
        masters = [
            {n: random.standard_normal(64).astype(np.float32).reshape(8, 8) for n in names}
            for _ in range(num_steps)
        ]
        copies = [
            {n: one.astype(np.float16) for n, one in made.items()} for made in (masters[0], *masters[:-1])
        ]
        if random.random() < 0.3:
            masters[0][names[0]][0, 0] = copies[1][names[0]][0, 0] = np.nan
        wrong: dict[str, int] = {}
        for name in names:
            if random.random() < 0.3:
                num = int(random.integers(1, 9))
                copies[1][name].ravel()[8 : 8 + num] += np.float16(0.5)
                wrong[name] = num
        outcome = checked(master_weights.CHECK, *mixed(copies, masters),
            facts=told(*((n, True) for n in names), dtype="float16"),
        )  # fmt: skip
        seen |= codes(outcome)
        if not wrong:
            assert facts(outcome, Code.MASTERS_EQUAL) == {"num": len(names), "is_exact": True}
            continue
        said = facts(outcome, Code.NOT_ROUNDED)
        assert (said["num"], said["total"]) == (len(wrong), len(names))
        first = names[min(names.index(name) for name in wrong)]
        assert facts(outcome, Code.VALUES_DIFFER) == {"num": wrong[first], "total": 64}
        assert facts(outcome, Code.OF_MASTER)["master"] == first
        assert Code.COPY_MASTERS in codes(outcome)
    assert {Code.MASTERS_EQUAL, Code.NOT_ROUNDED, Code.VALUES_DIFFER, Code.OF_MASTER} <= seen


def without_values(steps: list[Recorder], **more: Any) -> CheckOutcome:
    for one in steps:
        one.values.clear()
    return checked(master_weights.CHECK, *steps, facts=more)


def test_working_copies_of_which_statistics_were_kept() -> None:
    master = drawn(3).astype(np.float32)
    turned = master.astype(np.float16)[::-1].copy()
    larger = master.astype(np.float16)
    larger[np.unravel_index(master.argmax(), master.shape)] += np.float16(0.25)
    unfit = np.full((8, 8), np.nan, np.float16)
    cases = [
        (master, master.astype(np.float16), Code.MASTERS_EQUAL),
        (master, larger, Code.EXTREME_DIFFERS),
        (master, turned, Code.FAR_FROM_MASTER),
        (unfit.astype(np.float32), unfit, Code.MASTERS_EQUAL),
    ]
    for kept, copy, code in cases:
        steps = list(mixed([{"a": copy}] * 2, [{"a": kept}] * 2))
        outcome = without_values(steps, **told(("a", True), dtype="float16"))
        assert code in codes(outcome), outcome
        if code is Code.MASTERS_EQUAL:
            assert facts(outcome, code) == {"num": 1, "is_exact": False}
        elif code is Code.EXTREME_DIFFERS:
            rounded = float(np.float16(master.max()))
            assert facts(outcome, code) == {
                "which": "largest",
                "copy": float(larger.max()),
                "master": float(master.max()),
                "rounded": rounded,
            }
        else:
            said, apart = facts(outcome, code), np.linalg.norm(turned - master) / np.linalg.norm(master)
            assert said["distance"] == pytest.approx(apart, rel=0.5)
            assert said["distance"] > said["allowed"]


def test_weights_in_half_precision_without_masters() -> None:
    """An update below the share that is named is lost of any weight; of some, one a little above is not."""
    halves = {"a": drawn(1).astype(np.float16), "b": drawn(2).astype(np.float16)}
    table = told(("a", True), ("b", True), dtype="float16")
    table["parameters"].append({"fqn": "c", "shape": [2], "dtype": "bfloat16", "requires_grad": True})
    outcome = checked(master_weights.CHECK, *mixed([halves] * 2, [{}] * 2), facts=table)
    said = facts(outcome, Code.NO_MASTERS)
    assert (said["num"], said["dtype"]) == (2, "float16")
    weights = np.exp(np.random.default_rng(1).uniform(-3, 3, 4000)).astype(np.float16)

    def kept(share: float) -> Any:
        return (weights.astype(float) * (1 + share)).astype(np.float16) != weights

    assert not kept(0.99 * said["below"]).any()
    assert kept(1.05 * said["below"]).any()
    full = checked(master_weights.CHECK, step({"a": {WEIGHT: drawn(1)}}), facts=told(("a", True)))
    assert full.sentence.code is Code.NO_HALF


def test_masters_that_are_made_anew_from_their_copies() -> None:
    """Momentum: each update starts from the master, or from the copy rounded from it."""
    random = np.random.default_rng(7)
    for anew in (True, False):
        master, steps = random.standard_normal(2048).astype(np.float32), []
        for _ in range(3):
            copy, direction = master.astype(np.float16), random.standard_normal(2048).astype(np.float32)
            start = copy.astype(np.float32) if anew else master
            master = start - np.float32(1e-2) * direction
            steps.append(
                step({"a": {WEIGHT: copy, MASTER: master, ("optimizer", "state.momentum_buffer"): direction}})
            )
        table = {"parameters": [{"fqn": "a", "shape": [2048], "dtype": "float16", "requires_grad": True}]}
        outcome = checked(master_weights.CHECK, *steps, facts=table)
        assert (Code.MASTERS_RESTARTED in codes(outcome)) is anew is (Code.KEEP_APART in codes(outcome))
        if anew:
            share = facts(outcome, Code.START_SHARE)
            assert share["share"] == pytest.approx(1, abs=5 * share["error"] + 1e-3)
            assert facts(outcome, Code.MASTERS_RESTARTED)["num"] == 1
