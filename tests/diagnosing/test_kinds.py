"""Every kind is named on its own cases, first of all, and not on what resembles it."""

from __future__ import annotations

import importlib
import re
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.diagnosing.cases import best, case, known, normal, pair, rank, told
from tests.diagnosing.kind_cases import (
    GRADIENT,
    GRADS,
    NEAR,
    TRUE,
    UPDATE,
    Case,
    X,
    another_formula,
    token_of_each_row,
)
from trueup.diagnosing.evidence import ParameterStep, RunFacts
from trueup.diagnosing.kinds import RULES, name_kinds
from trueup.diagnosing.kinds.rule import Found
from trueup.types.codes.kinds import AdviceCode, CauseCode, FactorCode, KindReason, PlacesCode
from trueup.types.finding import EvidenceRank, KindClass, KindCode
from trueup.types.reason import Reason, reason

_TRUE = [pytest.param(k, c, id=f"{k}-{c.__name__}") for k, cases in TRUE.items() for c in cases]
_NEAR = [pytest.param(k, c, i, id=f"{k}-{c.__name__}") for k, cases in NEAR.items() for c, i in cases]


@pytest.mark.parametrize(("kind", "made"), _TRUE)
def test_a_kind_comes_first_on_its_own_case(kind: str, made: Case) -> None:
    kinds = name_kinds(made())
    assert best(kinds) == kind, told(kinds)
    assert kinds[0].rank.is_named
    assert kinds[0].causes
    assert kinds[0].next
    assert list(kinds) == sorted(kinds, key=lambda k: k.rank.place)


@pytest.mark.parametrize(("kind", "made", "instead"), _NEAR)
def test_a_near_miss_is_not_taken_for_the_kind(kind: str, made: Case, instead: str | None) -> None:
    kinds = name_kinds(made())
    assert best(kinds) != kind or kinds[0].rank is EvidenceRank.BY_ELIMINATION, told(kinds)
    if instead is not None:
        assert best(kinds) == instead, told(kinds)


def test_what_other_functions_point_to() -> None:
    kind = name_kinds(another_formula())[0]
    assert [one.code for one in kind.causes] == [CauseCode.OTHER_FORMULA, CauseCode.STEP_OF_COMPUTATION]
    assert kind.next == reason(AdviceCode.COMPARE_FORMULAS)


@pytest.mark.parametrize("classes", [12, 13])
def test_a_loss_over_its_number_of_classes(classes: int) -> None:
    runs = {f"{side}_run": RunFacts(sent_back={0: np.ones((8, classes))}) for side in ("target", "reference")}
    kinds = name_kinds(case(torch.tensor(0.25), torch.tensor(3.0), phase="loss", slot="value", **runs))
    said = [part for kind in kinds for part in kind.sentence.parts]
    assert (reason(FactorCode.CLASSES, inverse=True, number=12) in said) is (classes == 12)


@pytest.mark.parametrize(
    ("worlds", "listed"), [((1, 1), False), ((2, 2), True), ((2, 1), True), ((None, 1), True)]
)
def test_causes_among_ranks_are_listed_where_there_are_some(
    worlds: tuple[int | None, int], listed: bool
) -> None:
    runs = [RunFacts(world_size=size) for size in worlds]
    kinds = name_kinds(case(X * 3, X, phase="param_grad", target_run=runs[0], reference_run=runs[1]))
    assert best(kinds) == "wrong_scale"
    assert (CauseCode.SUMMED_FOR_AVERAGED in {one.code for one in kinds[0].causes}) is listed


@pytest.mark.parametrize(
    ("sides", "trained", "cause", "is_listed"),
    [
        ((None, X), True, CauseCode.NOT_TRAINABLE, False),
        ((None, X), None, CauseCode.NOT_TRAINABLE, True),
        ((None, X), True, CauseCode.GRAPH_CUT, True),
        ((X, None), None, CauseCode.NOT_TRAINABLE, False),
        ((X, None), None, CauseCode.CUT_IN_REFERENCE, True),
    ],
)
def test_causes_of_a_missing_gradient_are_those_of_its_side(
    sides: tuple[object, object], trained: bool | None, cause: CauseCode, is_listed: bool
) -> None:
    facts = ParameterStep(fqn="w", target_trainable=trained, reference_trainable=True)
    rule = next(rule for rule in RULES if rule.code is KindCode.FROZEN_OR_MISSING_GRADIENT)
    evidence = case(*sides, parameter=facts, **GRADIENT)
    found = rule.find(evidence)
    assert found is not None
    assert (cause in {one.code for one in rule.kind(found, evidence).causes}) is is_listed


def test_a_mask_of_attention_has_no_cause_of_a_loss() -> None:
    rule = next(rule for rule in RULES if rule.code is KindCode.WRONG_MASK)
    found = Found(rank=EvidenceRank.MOST, sentence=reason(KindReason.NO_MASK))
    for phase, cause, other in (
        ("forward", CauseCode.CAUSAL_MASK, CauseCode.LABELS_COUNTED),
        ("loss", CauseCode.LABELS_COUNTED, CauseCode.CAUSAL_MASK),
    ):
        codes = {one.code for one in rule.kind(found, case(X * 3, X, phase=phase)).causes}
        assert cause in codes
        assert other not in codes


@pytest.mark.parametrize(
    ("rates", "beside", "code"),
    [
        ((0.02, 0.01), 0.0, KindReason.LEARNING_RATE),
        ((0.01, 0.01), 0.0, KindReason.ALONG_UPDATE),
        ((None, None), 0.0, KindReason.SETTINGS_SOLVED),
        ((None, None), 0.03, KindReason.ALONG_UPDATE),
    ],
    ids=["recorded", "recorded alike", "not recorded", "another rule"],
)
def test_a_rate_is_solved_for_where_the_runs_do_not_say_it(
    rates: tuple[float | None, float | None], beside: float, code: KindReason
) -> None:
    """``beside``: what an update has that no rate and no decay of the gradient explains, in its own size."""
    before, gradient, other = GRADS[0], GRADS[1], GRADS[2]
    after = [before - rate * (gradient + beside * other) for rate in (0.0104, 0.01)]
    facts = ParameterStep(
        fqn="layers.0.mlp.up.weight",
        before=pair("value", before),
        updated=(pair("param", *after),),
        gradients=((0, pair("clipped", gradient)),),
    )
    runs = [RunFacts(learning_rate=() if rate is None else (rate,)) for rate in rates]
    evidence = case(*after, parameter=facts, target_run=runs[0], reference_run=runs[1], **UPDATE)
    assert name_kinds(evidence)[0].sentence.code is code


def test_every_kind_has_a_rule_a_case_and_a_near_miss() -> None:
    assert {rule.code for rule in RULES} == set(KindCode) == set(TRUE) == set(NEAR)
    assert all(rule.place and rule.looks for rule in RULES)


def test_families() -> None:
    numerical = {rule.code.value for rule in RULES if rule.family is KindClass.NUMERICAL}
    assert numerical == {"dtype_or_rounding", "non_determinism", "overflow_underflow", "bit_flip"}


def test_equal_tensors_are_of_no_kind() -> None:
    assert name_kinds(case(X, X.clone())) == ()


def test_unrelated_tensors_are_of_no_kind() -> None:
    assert name_kinds(case(normal(4, 16, 32, seed=99), X)) == ()


# -- what a sentence says ------------------------------------------


def test_the_factor_is_named_after_what_the_run_holds() -> None:
    evidence = case(X / 6, X, target_run=RunFacts(microbatches=6), **GRADIENT)
    assert reason(FactorCode.MICROBATCHES, inverse=True, number=6) in name_kinds(evidence)[0].sentence.parts


@pytest.mark.parametrize(("here", "elsewhere"), [(1, 2), (3, 4), (2, 8)])
def test_a_step_of_fewer_microbatches_than_others_is_a_factor(here: int, elsewhere: int) -> None:
    run = RunFacts(microbatches=here, microbatches_elsewhere=elsewhere)
    wanted = reason(FactorCode.OTHER_STEPS, here=here, elsewhere=elsewhere)
    evidence = case(X * (here / elsewhere), X, target_run=run, **GRADIENT)
    assert name_kinds(evidence)[0].sentence.parts[0] == wanted
    evidence = case(X * (elsewhere / here), X, target_run=run, **GRADIENT)
    assert name_kinds(evidence)[0].sentence.parts[0].code is FactorCode.OTHER_STEPS
    alike = RunFacts(microbatches=elsewhere, microbatches_elsewhere=elsewhere)
    parts = name_kinds(case(X * (here / elsewhere), X, target_run=alike, **GRADIENT))[0].sentence.parts
    assert FactorCode.OTHER_STEPS not in {part.code for part in parts}


def test_the_ratio_of_tokens_is_a_factor() -> None:
    runs = {"target_run": RunFacts(tokens=700.0), "reference_run": RunFacts(tokens=1000.0)}
    assert name_kinds(case(0.7 * X, X, **runs))[0].sentence.parts == (reason(FactorCode.TOKENS),)


def test_the_mask_s_place_is_said() -> None:
    places = [name_kinds(TRUE["wrong_mask"][n]())[0].sentence.parts[0] for n in (0, 3, 4)]
    assert places[0] == reason(PlacesCode.DIAGONALS, first=1, last=1)
    assert [place.code for place in places[1:]] == [PlacesCode.WHOLE_COLUMNS, PlacesCode.BETWEEN_DOCUMENTS]


@pytest.mark.parametrize(
    ("number", "place", "more", "fewer"),
    [
        (5, reason(PlacesCode.WHOLE_COLUMNS, number=4, size=16), 0, 10),
        (6, reason(PlacesCode.DIAGONALS, first=-5, last=-5), 22, 0),
        (7, reason(PlacesCode.WHOLE_COLUMNS, number=4, size=16), 0, 10),
        (8, reason(PlacesCode.DIAGONALS, first=1, last=1), 0, 30),
        (9, reason(PlacesCode.DIAGONALS, first=1, last=1), 0, 30),
    ],
)
def test_masks_beside_padding_and_in_other_forms(number: int, place: Reason, more: int, fewer: int) -> None:
    sentence = name_kinds(TRUE["wrong_mask"][number]())[0].sentence
    assert sentence.parts[0] == place
    assert (sentence.number("more"), sentence.number("fewer")) == (more, fewer)


def test_both_values_of_eps_are_said() -> None:
    sentence = name_kinds(TRUE["constant_argument"][0]())[0].sentence
    assert sentence.code is KindReason.NORM_EPS
    assert sentence.number("reference") == pytest.approx(1e-5, rel=0.05)
    assert 1e-7 < sentence.number("target") < 3e-6


# -- properties ------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.floats(0.01, 100.0).filter(lambda a: abs(a - 1) > 1e-3), st.integers(0, 1000))
def test_any_scale_is_recovered(scale: float, seed: int) -> None:
    x = normal(16, 32, seed=seed).double()
    kinds = name_kinds(case(x * scale, x))
    assert best(kinds) == "wrong_scale"
    assert kinds[0].sentence.number("factor") == pytest.approx(scale, rel=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.permutations(list(range(12))).filter(lambda p: p != sorted(p)), st.integers(0, 2))
def test_any_permutation_along_any_dimension_is_found(order: list[int], dim: int) -> None:
    x = normal(12, 12, 12, seed=5)
    kinds = name_kinds(case(x.index_select(dim, torch.tensor(order)), x))
    named = {k.name for k in kinds if k.rank is EvidenceRank.EVERY_ELEMENT}
    assert "transposed_or_permuted" in named
    assert best(kinds) in ("transposed_or_permuted", "shifted_by_one")


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 511), st.integers(3, 30))
def test_any_flipped_bit_above_rounding_is_found(place: int, bit: int) -> None:
    x = normal(16, 32, seed=6)
    other = x.clone()
    other.view(torch.int32).view(-1)[place] ^= 1 << bit
    kinds = name_kinds(case(other, x))
    assert rank(kinds, "bit_flip") <= EvidenceRank.EVERY_ELEMENT.place or not torch.isfinite(other).all()


_ODD = [
    torch.zeros(0),
    torch.zeros(0, 4),
    torch.tensor(1.0),
    torch.tensor(float("nan")),
    torch.full((4, 4), float("nan")),
    torch.full((4, 4), float("-inf")),
    torch.zeros(4, 4),
    torch.ones(4, 4, dtype=torch.bool),
    torch.arange(16).reshape(4, 4),
    torch.full((4, 4), 2**62),
    torch.randn(4, 4, dtype=torch.complex64, generator=torch.Generator().manual_seed(0)),
    normal(4, 4),
    normal(4, 4).bfloat16() * 1e38,
    normal(2, 8),
    1e300 * normal(4, 4).double(),
    1e-310 * normal(4, 4).double(),
    torch.tensor([1.0, float("inf")]),
]


@pytest.mark.parametrize("kept", ["values", "sketch", "statistics"])
@pytest.mark.parametrize("phase", ["forward", "backward", "param_grad", "optimizer", "param", "loss"])
def test_nothing_raises_on_odd_tensors(kept: str, phase: str, caplog: pytest.LogCaptureFixture) -> None:
    slot = {"forward": "output.0", "backward": "input.0", "param_grad": "accumulated", "optimizer": "param"}
    for target in (*_ODD, None):
        for reference in (*_ODD, None):
            if target is None and reference is None:
                continue
            kinds = name_kinds(case(target, reference, kept=kept, phase=phase, slot=slot.get(phase, "value")))
            assert all(0 <= k.measure <= 1 and k.sentence for k in kinds)
    assert not caplog.records, caplog.text


# -- less evidence, less confidence ------------------------------------------


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        ("wrong_scale", lambda k: case(3 * X, X, kept=k)),
        ("wrong_sign", lambda k: case(-X - 0.1, X + 0.1, kept=k)),
    ],
)
def test_summaries_prove_less_than_values(kind: str, made: object) -> None:
    ranks = [rank(name_kinds(made(kept)), kind) for kept in ("values", "sketch", "statistics")]  # type: ignore[operator]
    assert ranks[0] < ranks[1] < ranks[2] <= EvidenceRank.CONSISTENT.place


# -- confusion ------------------------------------------


def test_no_case_is_taken_for_another_kind() -> None:
    wrong = []
    for kind, cases in TRUE.items():
        for made in cases:
            named = best(name_kinds(made()))
            if named != kind:
                wrong.append((made.__name__, kind, named))
    assert wrong == []


# -- large tensors ------------------------------------------


def test_a_difference_in_the_last_rows_of_a_large_tensor_is_looked_at() -> None:
    large = normal(2048, 512, seed=3)
    other = large.clone()
    other[-40:] *= 2
    evidence = case(other, large)
    assert evidence.window is not None
    assert evidence.window[0][1] == 2048
    values, reference = evidence.target_values, evidence.reference_values
    assert values is not None
    assert reference is not None
    assert not np.array_equal(values, reference)


def test_a_part_is_said_to_be_one() -> None:
    large = normal(2048, 512, seed=3)
    assert name_kinds(case(2 * large, large))[0].sentence.place("part_seen")


def test_a_million_elements_take_a_moment() -> None:
    large = normal(1024, 1024, seed=4)
    evidence = case(large * (1 + 0.3 * normal(1024, 1024, seed=5)), large)
    assert known(large).numel == 1 << 20
    started = time.process_time()
    name_kinds(evidence)
    assert time.process_time() - started < 1.0


def test_the_kind_of_the_architecture_page_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One module and one line: the page's module, its new codes replaced by ones that exist."""
    page = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")
    code, line = (
        page.split("# diagnosing/kinds/saturated.py\n")[1].split("```")[0].split("# diagnosing/kinds")
    )
    existing = {
        "KindCode": "WRONG_SCALE",
        "KindReason": "NEGATED",
        "CauseCode": "MINUS_LEFT_OUT",
        "AdviceCode": "CHECK_SIGNS",
    }
    for enum, member in existing.items():
        code = re.sub(rf"\b{enum}\.[A-Z_]+", f"{enum}.{member}", code)
    (tmp_path / "saturated.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    rule = importlib.import_module("saturated").RULE
    assert "saturated.RULE," in line
    assert len(code.splitlines()) < 40
    kinds = name_kinds(case(X.clamp(-1, 1), X), (rule, *RULES))
    assert kinds[0].family is KindClass.NUMERICAL
    assert kinds[0].sentence.number("bound") == 1.0
    near = X.clamp(-1, 1)
    near[0, 0, 0] += 0.5
    assert all(one.sentence.number("bound") is None for one in name_kinds(case(near, X), (rule, *RULES)))


def table(function: str, change: str) -> torch.Tensor:
    """Cosines or sines by position and frequency, each twice, with something done to them on the way."""
    frequencies = 10000.0 ** (-torch.arange(16) / 16)
    if change in ("bfloat16", "float16"):
        frequencies = frequencies.to(getattr(torch, change)).float()
    if change == "scaled":
        frequencies = frequencies * 1.002
    angles = torch.arange(48)[:, None] * torch.cat([frequencies, frequencies])
    if change == "angles":
        angles = angles.bfloat16().float()
    return getattr(torch, function)(angles)[None]


@pytest.mark.parametrize("function", ["cos", "sin"])
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("bfloat16", (KindReason.FREQUENCIES_ROUNDED, "bfloat16")),
        ("float16", (KindReason.FREQUENCIES_ROUNDED, "float16")),
        ("angles", (KindReason.ANGLES_ROUNDED, "bfloat16")),
        ("scaled", None),
    ],
)
def test_a_rotary_table_tells_what_was_rounded(
    function: str, change: str, expected: tuple[KindReason, str] | None
) -> None:
    kinds = name_kinds(case(table(function, change), table(function, "")))
    codes = (KindReason.FREQUENCIES_ROUNDED, KindReason.ANGLES_ROUNDED)
    found = [(one.sentence.code, one.sentence.place("dtype")) for one in kinds if one.sentence.code in codes]
    assert found == ([] if expected is None else [expected])


def test_dropout_of_the_same_numbers_in_another_memory_layout() -> None:
    x = torch.randn(4, 8, 6, 6, generator=torch.Generator().manual_seed(0))

    def drop(seed: int, layout: torch.memory_format) -> torch.Tensor:
        torch.manual_seed(seed)
        return torch.nn.functional.dropout(x.contiguous(memory_format=layout), 0.1).contiguous()

    last, first = (drop(1, layout) for layout in (torch.channels_last, torch.contiguous_format))
    for side, both in (("target", (last, first)), ("reference", (first, last))):
        said = name_kinds(case(*both))[0].sentence
        assert (said.code, said.place("side")) == (KindReason.DROPPED_IN_OTHER_LAYOUT, side)
    seen = torch.randn(4, 24, 16, generator=torch.Generator().manual_seed(0))
    for side, turned in (("target", (1, 0)), ("reference", (0, 1))):
        laid = [seen.transpose(1, 2).contiguous().transpose(1, 2) if one else seen for one in turned]
        made = []
        for one in laid:
            torch.manual_seed(1)
            made.append(torch.nn.functional.dropout(one, 0.1).contiguous())
        said = name_kinds(case(*made))[0].sentence
        assert (said.code, said.place("side")) == (KindReason.DROPPED_IN_OTHER_LAYOUT, side)
        assert said.place("order") == ("0", "2", "1")
    other = drop(2, torch.channels_last)
    assert name_kinds(case(other, first))[0].sentence.code is KindReason.OTHER_ELEMENTS_DROPPED


@pytest.mark.parametrize(
    ("places", "same_at", "code"),
    [
        ([11] * 6, None, KindReason.OTHER_PLACES),
        ([3, 7, 9, 5, 8, 2], None, KindReason.OTHER_PLACES),
        ([11] * 6, 2, KindReason.OTHER_ELEMENTS),  # which of two equal tokens is not known
    ],
)
def test_the_place_that_is_taken_of_each_row_is_told(
    places: list[int], same_at: int | None, code: KindReason
) -> None:
    said = name_kinds(token_of_each_row(places, same_at=same_at))[0].sentence
    assert said.code is code
    if code is KindReason.OTHER_PLACES:
        told = [said.number(name) for name in ("first", "last", "other_first", "other_last")]
        assert told == [min(places), max(places), 3, 10]
