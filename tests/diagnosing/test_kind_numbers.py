"""Sentences of kinds that state numbers, settings or calls of a run: worked out again from what went in."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from tests.diagnosing.cases import case, normal, pair
from tests.diagnosing.kind_cases import GRADIENT, GRADS, UPDATE, X, inputs
from tests.diagnosing.test_attention_kind import ANGLES, SMALL, TOKENS, around, padded
from tests.diagnosing.usual_causes import check
from trueup.diagnosing.evidence import (
    Evidence,
    NeighbourCall,
    ParameterStep,
    RunFacts,
    Surroundings,
)
from trueup.diagnosing.evidence.facts import LossFacts, OwnGradients
from trueup.diagnosing.kinds import name_kinds, rule_of
from trueup.diagnosing.kinds.criterion import criterion_fault
from trueup.diagnosing.kinds.loss_divisor import divided_otherwise, given_divisor
from trueup.diagnosing.kinds.other_use import other_use
from trueup.diagnosing.kinds.permutations import layouts
from trueup.diagnosing.loss_form import loss_form
from trueup.types.codes.kinds import DivisorCode, OrderCode, SettingReason
from trueup.types.codes.kinds import KindReason as Kind
from trueup.types.finding import KindCode, Stage
from trueup.types.reason import Reason, reason
from trueup.wording import text
from trueup.wording.cause_headlines import cause_headline

pytestmark = pytest.mark.torch
some = settings(max_examples=20, derandomize=True, deadline=None)


def sentences(evidence: Evidence) -> list[Reason]:
    """All that is said; causes are looked at on the way."""
    found = name_kinds(evidence)
    for kind in found:
        check(kind, evidence)
    return [kind.sentence for kind in found]


def said_by(evidence: Evidence, code: Kind) -> Reason | None:
    return next((one for one in sentences(evidence) if one.code is code), None)


def found_by(kind: KindCode, evidence: Evidence, code: Kind) -> Reason | None:
    """The same, of one rule alone."""
    rule = rule_of(kind)
    found = rule.find(evidence)
    if found is None or found.sentence.code is not code:
        return None
    check(rule.kind(found, evidence), evidence)
    return found.sentence


# -- calls ------------------------------------------

BOTH = ("float32", "bfloat16")
CAST = {"input.1": "torch.bfloat16"}
CALLS = {"to": "torch.Tensor.to", "view": "torch.Tensor.view", "softmax": "torch.softmax"}


@some
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(CALLS)), st.sampled_from(["both", "target", "reference"])),
        min_size=1,
        max_size=4,
    ),
    st.booleans(),
    st.booleans(),
)
def test_calls_of_one_run(made: list[tuple[str, str]], told: bool, casts: bool) -> None:
    """``told``: whether both runs keep calls of functions; ``casts``: whether a cast changes the dtype."""
    calls = tuple(
        NeighbourCall(
            name=CALLS[name],
            kind="api",
            ordinal=at,
            target=(CAST if name == "to" else {}) if side != "reference" else None,
            reference=(CAST if name == "to" else {}) if side != "target" else None,
            target_dtypes=(BOTH if casts else ("bfloat16",)) if name == "to" and side != "reference" else (),
            reference_dtypes=(BOTH if casts else ("bfloat16",)) if name == "to" and side != "target" else (),
            arguments_recorded=told,
        )
        for at, (name, side) in enumerate(made)
    )
    noisy = X * (1 + 0.002 * normal(*X.shape, seed=7))
    evidence = case(
        noisy.bfloat16(), X.bfloat16(), surroundings=Surroundings(module="norm", neighbours=calls)
    )
    alone = {(name, side) for name, side in made if side != "both"}
    sides = {Kind.EXTRA_CALL: "target", Kind.MISSING_CALL: "reference"}
    cast = found_by(KindCode.DTYPE_OR_ROUNDING, evidence, Kind.CAST_OTHERWISE)
    layout = found_by(KindCode.TRANSPOSED_OR_PERMUTED, evidence, Kind.OTHER_LAYOUT_CALLS)
    for part in (part for one in (cast, layout) if one is not None for part in one.parts):
        if part.code in sides:
            called = str(part.facts["call"]).partition("(")[0]
            assert (called, sides[part.code]) in alone  # type: ignore[index]
            assert told  # what one run does not keep is not known to be missing
    lone_casts = [side for name, side in made if name == "to" and side != "both"]
    assert (cast is not None) is (told and casts and bool(lone_casts))
    if cast is not None:
        code = Kind.MISSING_CALL if lone_casts[0] == "reference" else Kind.EXTRA_CALL
        assert cast.parts == (reason(code, call="to(bfloat16)"),)
        assert cast.facts["module"] == "norm"
    others = {name for name, _ in alone} - {"to"}
    assert (layout is not None) is (told and others == {"view"})


# -- what the loss sends back ------------------------------------------

ROWS = normal(4, 6, 16, seed=11).double().numpy()


@pytest.mark.parametrize(
    ("factors", "seen"),
    [
        ([0.5, 2.0, 1.0, 1.0], True),
        ([1.00002, 1.0, 1.0, 1.0], True),
        ([-1.0, 1.0, 1.0, 1.0], True),
        ([2.0, 2.0, 2.0, 2.0], False),
        ([1.0, 1.0, 1.0, 1.0], False),
    ],
)
@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_rows_of_what_a_loss_sends_back(factors: list[float], seen: bool, empty: bool, noise: float) -> None:
    reference = ROWS * (np.arange(4) != 3)[:, None, None] if empty else ROWS
    drawn = np.random.default_rng(1).standard_normal(ROWS.shape)
    target = reference * np.array(factors)[:, None, None] * (1 + noise * drawn)
    runs = {
        "target_run": RunFacts(sent_back={0: target}, dtypes=frozenset({"float32"})),
        "reference_run": RunFacts(sent_back={0: reference}, dtypes=frozenset({"float32"})),
    }
    evidence = case(torch.tensor(1.0), torch.tensor(1.2), phase="loss", slot="value", module="", **runs)
    said = said_by(evidence, Kind.SENT_BACK_PER_ROW)
    assert (said is not None) is (seen and not noise)
    if said is not None:
        held = [one for at, one in enumerate(factors) if not (empty and at == 3)]
        assert (said.number("low"), said.number("high")) == (
            pytest.approx(min(held)),
            pytest.approx(max(held)),
        )
        assert said.number("num") == len(held)
        low, high = text(said).rpartition("own, ")[2].partition(" over")[0].split(" to ")
        assert low != high


LEVELS = np.array([0.4, 1.3, 2.6, 0.9])


@pytest.mark.parametrize(
    ("factors", "law"),
    [
        (0.5 * LEVELS, (1.0, 0.5)),
        (LEVELS**-2, (-2.0, 1.0)),
        (3.0 * LEVELS**0.5, (0.5, 3.0)),
        (1 / (1 + LEVELS), None),
        (np.minimum(LEVELS, 1.0), None),
        (0.5 * LEVELS * np.array([1, 1, 1, 1.001]), None),
    ],
    ids=["level", "square", "root", "of one more", "clamped", "one row off"],
)
@pytest.mark.parametrize("twice", [False, True])
def test_rows_weighted_by_a_power_of_what_is_given(factors: Any, law: Any, twice: bool) -> None:
    """Two inputs that fit as well, such as a level and its copy, are not told apart."""
    given = {"input.1": LEVELS} | ({"input.2": LEVELS.copy()} if twice else {"input.2": np.arange(1.0, 5.0)})
    runs = {
        "target_run": RunFacts(sent_back={0: ROWS * factors[:, None, None]}, dtypes=frozenset({"float32"})),
        "reference_run": RunFacts(sent_back={0: ROWS}, dtypes=frozenset({"float32"}), row_inputs={0: given}),
    }
    evidence = case(torch.tensor(1.0), torch.tensor(1.2), phase="loss", slot="value", module="", **runs)
    said = said_by(evidence, Kind.SENT_BACK_PER_ROW)
    assert said is not None
    found = (said.number("power"), said.number("times")) if "name" in said.facts else None
    assert found == (pytest.approx(law) if law is not None and not twice else None)
    assert law is None or twice or said.facts["name"] == "input.1"


def sent(logits: Tensor, labels: Tensor, *, temperature: float, smoothing: float, z_loss: float) -> Any:
    """The gradient of a real loss by its logits, and the form that is fitted to it."""
    logits = logits.clone().requires_grad_()
    loss = F.cross_entropy(logits / temperature, labels, label_smoothing=smoothing)
    loss = loss + z_loss * logits.logsumexp(-1).square().mean()
    loss.backward()
    assert logits.grad is not None
    values = logits.detach().double().numpy(), labels.numpy(), logits.grad.double().numpy()
    form = loss_form(*values, np.ones(len(labels), bool), roundoff=2.0**-24)
    facts = LossFacts(
        value=float(loss.detach()),
        counted=len(labels),
        positions=len(labels),
        rows=4,
        steepest=None,
        form=form,
    )
    return RunFacts(losses={0: facts})


def preferred(moved: float, *, beta: float, smoothing: float) -> tuple[Tensor, RunFacts]:
    """The gradient that a real preference loss sends back to what its scores are made of, and its value."""
    made = torch.full_like(X, moved).requires_grad_()
    margin = beta * (X * made).sum(-1)
    losses = (1 - smoothing) * F.logsigmoid(margin) + smoothing * F.logsigmoid(-margin)
    (loss := -losses.mean()).backward()
    assert made.grad is not None
    return made.grad, RunFacts(loss=float(loss.detach()), dtypes=frozenset({"float32"}))


@pytest.mark.parametrize(
    ("target", "even", "smoothing"),
    [
        ({"beta": 0.1, "smoothing": 0.05}, True, 0.05),
        ({"beta": 0.11, "smoothing": 0.0}, True, -(1 - 1 / 1.1) / 2),
        ({"beta": 0.11, "smoothing": 0.0}, False, None),
    ],
)
def test_a_preference_loss_of_even_scores_hides_its_scale(
    target: dict[str, float], even: bool, smoothing: float | None
) -> None:
    forms = target, {"beta": 0.1, "smoothing": 0.0}
    (sent_back, run), (reference, other) = (preferred(0.0 if even else 0.01, **form) for form in forms)
    names: dict[str, Any] = {"phase": "backward", "slot": "output", "module": "", "stage": Stage.LOSS}
    evidence = case(sent_back, reference, target_run=run, reference_run=other, **names)
    said = said_by(evidence, Kind.SCALED_AT_EVEN_SCORES)
    assert (said is not None) is even
    if said is not None:
        assert said.number("smoothing") == pytest.approx(smoothing, rel=1e-4)
        assert said.number("factor") == pytest.approx(
            float(sent_back[0, 0, 0] / reference[0, 0, 0]), rel=1e-5
        )


PLAIN: dict[str, float] = {"temperature": 1.0, "smoothing": 0.0, "z_loss": 0.0}
FORMS = {
    "temperature": Kind.LOGIT_TEMPERATURE,
    "smoothing": Kind.LABEL_SMOOTHING,
    "z_loss": Kind.Z_LOSS,
}


@pytest.mark.parametrize(
    ("name", "target", "reference"),
    [
        ("temperature", 0.8, 1.0),
        ("temperature", 2.0, 2.03),
        ("temperature", 1.25, 1.25),
        ("smoothing", 0.1, 0.0),
        ("smoothing", 0.1, 0.102),
        ("smoothing", 0.05, 0.05),
        ("z_loss", 0.0, 1e-3),
        ("z_loss", 0.01, 0.01001),
        ("z_loss", 1e-4, 1e-4),
    ],
)
def test_the_form_of_a_loss(name: str, target: float, reference: float) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = 3 * torch.randn(96, 50, generator=generator)
    labels = torch.randint(0, 50, (96,), generator=generator)
    runs = [sent(logits, labels, **{**PLAIN, name: value}) for value in (target, reference)]
    evidence = case(
        *(torch.tensor(run.losses[0].value) for run in runs),
        phase="loss",
        slot="value",
        module="",
        target_run=runs[0],
        reference_run=runs[1],
    )
    found = criterion_fault(evidence)
    said = None if found is None else found.found.sentence
    assert (said is not None and said.code is FORMS[name]) is (target != reference), said
    if said is None or target == reference:
        return
    for side, value in (("target", target), ("reference", reference)):
        assert said.number(side) == pytest.approx(value, rel=1e-3, abs=1e-6)
    words = [text(said), cause_headline(said, (), "the loss") or ""]
    for one in words:
        numbers = one.partition(":" if one.count(":") == 1 else "): ")[2].split(",")
        numbers = [part.strip().split(" ")[0] for part in one.rpartition(":")[2].split(",")]
        assert numbers[0] != numbers[1], one


# -- divisors ------------------------------------------


def candidates(losses: dict[int, tuple[int, int, int]]) -> dict[DivisorCode, dict[int, float]]:
    """What a program divides the sum over tokens by; given (counted, positions, rows) by microbatch."""
    every = [sum(one[at] for one in losses.values()) for at in range(3)]
    num = len(losses)
    return {
        DivisorCode.COUNTED: {m: float(one[0]) for m, one in losses.items()},
        DivisorCode.COUNTED_TIMES: {m: float(one[0] * num) for m, one in losses.items()},
        DivisorCode.COUNTED_OF_STEP: dict.fromkeys(losses, float(every[0])),
        DivisorCode.POSITIONS: {m: float(one[1]) for m, one in losses.items()},
        DivisorCode.POSITIONS_OF_STEP: dict.fromkeys(losses, float(every[1])),
        DivisorCode.ROWS: {m: float(one[2]) for m, one in losses.items()},
        DivisorCode.ROWS_OF_STEP: dict.fromkeys(losses, float(every[2])),
        DivisorCode.NOTHING: dict.fromkeys(losses, 1.0),
        DivisorCode.MICROBATCHES: dict.fromkeys(losses, float(num)),
    }


counts = st.integers(1, 3).flatmap(
    lambda num: st.lists(
        st.tuples(st.integers(1, 5), st.integers(3, 16), st.floats(0.2, 1.0)), min_size=num, max_size=num
    )
)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    counts,
    st.sampled_from(sorted(candidates({0: (1, 1, 1)}))),
    st.sampled_from(sorted(candidates({0: (1, 1, 1)}))),
    st.integers(0, 2),
    st.sampled_from([1.0, 1.0, 1.3]),
)
def test_by_what_losses_are_divided(
    made: list[tuple[int, int, float]], one: Any, other: Any, at: int, beside: float
) -> None:
    """``beside``: a factor that no number of the step is."""
    losses = {m: (max(int(r * w * share), 1), r * w, r) for m, (r, w, share) in enumerate(made)}
    sums = {m: 5.3 * counted + 0.1 * m for m, (counted, _, _) in losses.items()}
    held, runs = candidates(losses), []
    for code, factor in ((one, beside), (other, 1.0)):
        facts = {
            m: LossFacts(
                value=factor * sums[m] / held[code][m], counted=c, positions=p, rows=r, steepest=None
            )
            for m, (c, p, r) in losses.items()
        }
        runs.append(RunFacts(losses=facts))
    at = min(at, len(losses) - 1)
    evidence = case(
        *(torch.tensor(run.losses[at].value) for run in runs),
        phase="loss",
        slot="value",
        module="",
        microbatch=at,
        target_run=runs[0],
        reference_run=runs[1],
    )
    found = divided_otherwise(evidence)
    quotients = [runs[0].losses[m].value / runs[1].losses[m].value for m in losses]
    fits = [
        (a, b)
        for a in held
        for b in held
        if a is not b
        and all(held[a].values())
        and all(held[b].values())
        and all(math.isclose(q * held[a][m] / held[b][m], 1, rel_tol=1e-6) for m, q in enumerate(quotients))
    ]
    same = all(math.isclose(q, 1, rel_tol=1e-6) for q in quotients)
    if found is None:
        assert same or not fits
        return
    said = found.sentence
    assert said.code is Kind.LOSS_DIVISORS
    assert not same
    a, b = said.parts
    assert a.number("number") == held[a.code][at]  # type: ignore[index]
    assert b.number("number") == held[b.code][at]  # type: ignore[index]
    assert a.number("number") / b.number("number") == pytest.approx(1 / quotients[at])  # type: ignore[operator]
    assert said.number("microbatches") == len(losses)
    assert ("one of" in text(said)) is (len({tuple(map(tuple, numbers(held, p))) for p in fits}) > 1)


def numbers(held: dict[DivisorCode, dict[int, float]], codes: tuple[Any, Any]) -> Iterator[list[float]]:
    return (list(held[code].values()) for code in codes)


@some
@given(
    counts,
    st.sampled_from([DivisorCode.COUNTED, DivisorCode.COUNTED_OF_STEP, DivisorCode.POSITIONS_OF_STEP]),
    st.sampled_from([DivisorCode.COUNTED, DivisorCode.COUNTED_OF_STEP, DivisorCode.COUNTED_TIMES, None]),
)
def test_numbers_of_the_step_that_a_model_is_given(
    made: list[tuple[int, int, float]], one: Any, other: Any
) -> None:
    losses = {m: (max(int(r * w * share), 1), r * w, r) for m, (r, w, share) in enumerate(made)}
    held = candidates(losses)
    facts = {
        m: LossFacts(value=1.0, counted=c, positions=p, rows=r, steepest=None)
        for m, (c, p, r) in losses.items()
    }
    sides = [held[one][0], held[one][0] + 0.37 if other is None else held[other][0]]
    run = RunFacts(losses=facts)
    at = {"slot": "input.num_items", "module": "", "microbatch": 0}
    evidence = case(*map(torch.tensor, sides), target_run=run, reference_run=run, **at)
    found = given_divisor(evidence)
    if found is None:
        assert other is None or sides[0] == sides[1] or 1.0 in sides
        return
    said = found.sentence
    assert said.code is Kind.DIVISORS_GIVEN
    assert said.facts["name"] == "num_items"
    for part, number in zip(said.parts, sides, strict=True):
        assert part.number("number") == number
        assert held[part.code][0] == number  # type: ignore[index]
    for kind in name_kinds(evidence):
        check(kind, evidence)


# -- orders and layouts ------------------------------------------


def laid_out(said: Reason, r: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The reference in the layout that a sentence describes."""
    facts = said.facts
    if said.code in (OrderCode.DIMENSIONS, OrderCode.DIMENSIONS_VIEWED):
        turned = r.transpose([int(one) for one in facts["order"]])  # type: ignore[union-attr]
        told = facts.get("shape")
        assert told is None or tuple(map(int, told)) == shape  # type: ignore[arg-type]
        return turned.reshape(shape)
    heads, (*lead, tokens, width) = int(facts["heads"]), r.shape  # type: ignore[arg-type]
    if said.code is OrderCode.HEADS_NOT_TRANSPOSED:  # (tokens, heads, size) -> heads first, read as it lies
        return r.reshape(*lead, tokens, heads, width // heads).swapaxes(-3, -2).reshape(shape)
    assert said.code is OrderCode.HEADS_TRANSPOSED_TWICE
    return r.reshape(*lead, heads, tokens, width // heads).swapaxes(-3, -2).reshape(shape)


@some
@given(st.integers(1, 3), st.integers(2, 6), st.sampled_from([2, 3, 4]), st.integers(2, 3), st.data())
def test_layouts(rows: int, tokens: int, heads: int, size: int, data: st.DataObject) -> None:
    r = np.random.default_rng(0).standard_normal((rows, tokens, heads * size)).astype(np.float32)
    made = {
        "not back": r.reshape(rows, tokens, heads, size).swapaxes(1, 2).reshape(r.shape),
        "twice": r.reshape(rows, heads, tokens, size).swapaxes(1, 2).reshape(r.shape),
        "turned": r.transpose(data.draw(st.permutations(range(3)))),
        "viewed": r.transpose(data.draw(st.permutations(range(3)))).reshape(tokens, rows, heads * size),
        "flat": r.transpose(data.draw(st.permutations(range(3)))).reshape(-1),
        "shuffled": np.random.default_rng(1).permutation(r.ravel()).reshape(r.shape),
    }
    how = data.draw(st.sampled_from(sorted(made)))
    t = np.ascontiguousarray(made[how])
    evidence = case(torch.from_numpy(t), torch.from_numpy(r))
    said = found_by(KindCode.TRANSPOSED_OR_PERMUTED, evidence, Kind.LAID_OUT_ANEW)
    if said is not None:
        assert np.array_equal(laid_out(said.parts[0], r, t.shape), t)
        assert not np.array_equal(t.ravel(), r.ravel())
    elif how in ("not back", "twice"):  # rows or columns in another order say as much
        along = found_by(KindCode.TRANSPOSED_OR_PERMUTED, evidence, Kind.REORDERED_ALONG)
        assert along is not None or np.array_equal(t, r)
    for one, candidate in layouts(r.astype(float), t.shape):
        assert np.array_equal(laid_out(one, r, t.shape).ravel(), candidate.astype(np.float32).ravel())


def test_each_layout_is_named() -> None:
    r = normal(2, 5, 12, seed=3)
    cases = {
        OrderCode.HEADS_NOT_TRANSPOSED: r.view(2, 5, 3, 4).transpose(1, 2).reshape(2, 5, 12),
        OrderCode.HEADS_TRANSPOSED_TWICE: r.view(2, 3, 5, 4).transpose(1, 2).reshape(2, 5, 12),
        OrderCode.DIMENSIONS_VIEWED: r.permute(2, 0, 1).reshape(5, 24),
        OrderCode.DIMENSIONS: r.permute(2, 0, 1).contiguous(),
    }
    for code, t in cases.items():
        said = said_by(case(t, r), Kind.LAID_OUT_ANEW)
        assert said is not None
        assert said.parts[0].code is code


@pytest.mark.parametrize("function", [F.silu, F.relu, F.tanh])
@pytest.mark.parametrize("halves", [True, False])
def test_gate_and_up(function: Any, halves: bool) -> None:
    """Two tensors or the halves of one; near misses: another function, one more factor."""
    a, b = normal(3, 5, 16, seed=1), normal(3, 5, 16, seed=2)
    given_ = (torch.cat((a, b), -1),) if halves else (a, b)
    for target, seen in (
        (function(b) * a, True),
        (F.gelu(b) * a, False),
        (1.5 * function(b) * a, False),
        (function(a) * b * (1 + 1e-6), False),
    ):
        for one, other in ((target, function(a) * b), (function(a) * b, target)):
            evidence = case(one, other, surroundings=inputs(*given_, type="MLP"))
            said = found_by(KindCode.TRANSPOSED_OR_PERMUTED, evidence, Kind.GATE_AND_UP_SWAPPED)
            if one is target or not seen:
                assert (said is not None) is seen


# -- updates ------------------------------------------

VALUES: dict[str, list[Any]] = {
    "lr": [0.01, 0.02, 0.0100000001],
    "betas": [[0.9, 0.999], [0.9, 0.95]],
    "eps": [1e-8, 1e-6],
    "weight_decay": [0.0, 0.1],
    "momentum": [0.0],
    "amsgrad": [True, False],
    "class": ["Adam", "AdamW"],
    "fused": [True, False],
}
drawn = st.fixed_dictionaries({}, optional={name: st.sampled_from(of) for name, of in VALUES.items()})


@some
@given(drawn, drawn)
def test_settings_of_an_optimizer(target: dict[str, Any], reference: dict[str, Any]) -> None:
    facts = ParameterStep(
        fqn="norm.weight",
        before=pair("value", GRADS[0][0]),
        updated=(pair("param", 0.9 * GRADS[0][0], 0.8 * GRADS[0][0]),),
        target_settings=target,
        reference_settings=reference,
    )
    evidence = case(0.9 * GRADS[0][0], 0.8 * GRADS[0][0], parameter=facts, **UPDATE)
    said = found_by(KindCode.WRONG_OPTIMIZER_SETTING, evidence, Kind.SETTINGS_DIFFER)
    told = {} if said is None else {part.facts.get("setting", "class"): part for part in said.parts}
    both = target.keys() & reference.keys() - {"fused"}
    differ = {name for name in both if target[name] != reference[name]}
    if "lr" in differ and math.isclose(target["lr"], reference["lr"], rel_tol=1e-6):
        differ.discard("lr")
    assert set(told) == differ, (said, target, reference)
    for name, part in told.items():
        for side, values in (("target", target), ("reference", reference)):
            shown = ", ".join(map(str, values[name])) if name == "betas" else str(values[name])
            assert part.facts[side] == shown
        assert part.code is (SettingReason.CLASS if name == "class" else SettingReason.VALUE)
    assert said is None or said.facts["parameter"] == "norm.weight"


def moments(
    earlier: Tensor, fresh: Tensor, *, kept: float, beta: float = 0.9, squared: bool = False
) -> Evidence:
    """A moment of the second step; the target has kept this share of what the first one left."""
    slot = "state.exp_avg_sq" if squared else "state.exp_avg"
    of = fresh.square() if squared else fresh
    before = (1 - beta) * (earlier.square() if squared else earlier)
    sides = [beta * share * before + (1 - beta) * of for share in (kept, 1.0)]
    facts = ParameterStep(
        fqn="w",
        before=pair("value", GRADS[3]),
        gradients=((0, pair("clipped", fresh)),),
        updated=(pair(slot, *sides),),
        state_before=(pair(slot, before),),
    )
    return case(*sides, parameter=facts, phase="optimizer", slot=slot, module="w")


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize(
    ("earlier", "kept", "beta", "seen"),
    [
        (GRADS[1], 0.0, 0.9, True),
        (GRADS[1], 1.0, 0.9, False),
        (GRADS[1], 0.5, 0.9, False),
        (GRADS[0], 0.5, 0.9, False),  # each step's gradient is the same: nothing tells them apart
        (GRADS[0], 0.0, 0.9, False),
        (1e-4 * GRADS[1], 0.0, 0.9, False),  # as good as nothing was there
        (GRADS[1], 0.0, 0.0, False),  # neither run keeps anything
    ],
)
def test_moments_that_start_anew(
    earlier: Tensor, kept: float, beta: float, seen: bool, squared: bool
) -> None:
    evidence = moments(earlier, GRADS[0], kept=kept, beta=beta, squared=squared)
    said = said_by(evidence, Kind.MOMENT_STARTS_ANEW)
    assert (said is not None) is seen, said
    if said is not None:
        assert said.facts["parameter"] == "w"
        assert said.facts["state"] == ("state.exp_avg_sq" if squared else "state.exp_avg")


# -- a second use of a weight ------------------------------------------


@pytest.mark.parametrize(
    ("of_target", "of_reference", "code"),
    [
        (0.0, 1.0, Kind.OTHER_USE),
        (1.0, 0.0, Kind.OTHER_USE),
        (0.5, 1.0, Kind.OTHER_USES_DIFFER),
        (1.0, 1.0, None),
        (0.0, 0.0, None),
    ],
)
def test_a_second_use_of_a_weight(of_target: float, of_reference: float, code: Kind | None) -> None:
    own, more = GRADS[0], GRADS[1]
    sides = [own + factor * more for factor in (of_target, of_reference)]
    held = own.double().numpy()
    evidence = case(
        *sides,
        surroundings=Surroundings(module="embed"),
        parameter=ParameterStep(fqn="embed.weight"),
        **GRADIENT,
    )
    evidence.own_gradients = OwnGradients(target=held, reference=held)
    found = other_use(evidence)
    assert (None if found is None else found.sentence.code) is code
    if found is not None:
        assert found.sentence.facts["module"] == "embed"
        for kind in name_kinds(evidence):
            check(kind, evidence)
        size = max(float(one.norm()) for one in (*sides, own))
        shares = {side: factor * float(more.norm()) / size for side, factor in (
            ("target", of_target),
            ("reference", of_reference),
        )}  # fmt: skip
        if code is Kind.OTHER_USE:
            side = "target" if of_target else "reference"
            assert found.sentence.facts["side"] == side
            assert found.sentence.number("share") == pytest.approx(shares[side], rel=1e-4)
        else:
            assert {s: found.sentence.number(s) for s in shares} == pytest.approx(shares, rel=1e-4)


# -- cosines ------------------------------------------


@pytest.mark.parametrize(("dtype", "near"), [("bfloat16", False), ("float16", False), ("bfloat16", True)])
def test_cosines_that_are_rounded(dtype: str, near: bool) -> None:
    """Near miss: another scale of the scores beside it."""
    reference = padded()
    q, k, v, cos, sin, mask, _ = reference
    turned = [one.to(getattr(torch, dtype)).float() for one in (cos, sin)]
    heads = [x.unflatten(-1, (-1, SMALL)).transpose(1, 2).double() for x in (q, k, v)]
    for at in (0, 1):
        other = torch.cat((-heads[at][..., SMALL // 2 :], heads[at][..., : SMALL // 2]), -1)
        heads[at] = heads[at] * turned[0][0].double() + other * turned[1][0].double()
    a, b, c = heads[0], heads[1].repeat_interleave(2, 1), heads[2].repeat_interleave(2, 1)
    scale = SMALL**-0.5 * (1.2 if near else 1.0)
    scores = a @ b.transpose(-2, -1) * scale + mask.double()
    target = (scores.softmax(-1) @ c).transpose(1, 2).flatten(-2).float()
    said = said_by(around(reference, target), Kind.COSINES_ROUNDED)
    assert (said is not None) is not near
    assert said is None or said.facts["dtype"] == dtype
    assert ANGLES.shape == (TOKENS, SMALL // 2)
