"""The causes that are printed of a kind belong to it, are true of its definition, and stand only where the
case says nothing better. Asked of all cases of kinds, and of tensors that chance puts together, in
test_sentences_are_true.py; here of what rules a cause out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.diagnosing.cases import case, known, normal, pair
from tests.diagnosing.kind_cases import GRADIENT, GRADS, X
from tests.diagnosing.usual_causes import ADVICE, OF, check
from trueup.diagnosing.evidence import Elsewhere, Evidence, ParameterStep, RunFacts
from trueup.diagnosing.kinds import RULES, name_kinds
from trueup.diagnosing.kinds.rule import Found
from trueup.types.codes.kinds import CauseCode as Cause
from trueup.types.codes.kinds import KindReason as Kind
from trueup.types.finding import EvidenceRank, KindCode
from trueup.types.reason import reason
from trueup.wording import text

pytestmark = pytest.mark.torch
PHASES = ("batch", "forward", "loss", "backward", "param_grad", "collective", "optimizer", "param")


def test_usual_causes_are_of_their_kind() -> None:
    for rule in RULES:
        assert set(rule.causes) <= {cause for cause, of in OF.items() if rule.code in of.kinds}, rule.code
        assert ADVICE[rule.advice] is rule.code
    assert {rule.advice for rule in RULES} == set(ADVICE)
    assert len({text(reason(cause)) for cause in OF}) == len(OF)  # no two say the same


@pytest.mark.parametrize("worlds", [1, 2])
def test_usual_causes_are_of_their_phase(worlds: int) -> None:
    """Where a kind is named of a phase, and nothing is known of the case."""
    run = RunFacts(world_size=worlds)
    for phase in PHASES:
        evidence = case(X, 2 * X, target_run=run, reference_run=run)
        evidence.origin = replace(evidence.origin, phase=phase)
        for rule in RULES:
            kind = rule.kind(Found(rank=EvidenceRank.MOST, sentence=reason(Kind.NEGATED)), evidence)
            for cause in kind.causes:
                of = OF[cause.code]
                assert of.phases is None or phase in of.phases, (rule.code, phase, cause.code)
                assert worlds > 1 or not of.needs_ranks, cause.code
            bare = rule.kind(Found(rank=EvidenceRank.MOST, sentence=reason(Kind.NEGATED)), phase=phase)
            assert set(kind.causes) <= set(bare.causes)


WEIGHT = "layers.0.mlp.up.weight"
FURTHER = (
    "grouped",
    "skipped",
    "scale of one",
    "unknown scale",
    "empty rows",
    "shifted by two",
    "weights of two draws",
    "rounded in both",
    "rounded in one",
    "tf32",
    "exact",
    "a gradient of ranks",
    "an activation of ranks",
    "a batch again",
    "channels last",
)
STALE = Elsewhere(target_earlier=((0, known(GRADS[0])),), reference_earlier=((0, known(GRADS[0])),))


def further(name: str) -> Evidence:
    """Cases in which one usual cause is ruled out, or the only one."""
    held = RunFacts(dtypes=frozenset({"bfloat16", "float32"}))
    plain = RunFacts(dtypes=frozenset({"float32"}))
    noisy = X * (1 + 0.002 * normal(*X.shape, seed=3))
    if name in ("grouped", "skipped"):
        facts = ParameterStep(
            fqn=WEIGHT,
            before=pair("value", GRADS[0]),
            updated=(pair("param", GRADS[0], GRADS[1]),),
            target_grouped=True if name == "grouped" else None,
        )
        run = RunFacts(skipped=False if name == "skipped" else None)
        at = {"phase": "optimizer", "slot": "param"}
        return case(GRADS[0], GRADS[1], parameter=facts, target_run=run, **at)
    made = {
        "shifted by two": lambda: case(X.roll(2, 1), X),
        "weights of two draws": lambda: case(
            0.02 * normal(64, 64, seed=61), 0.02 * normal(64, 64, seed=62), phase="param", slot="value"
        ),
        "rounded in both": lambda: case(noisy, X, target_run=held, reference_run=held),
        "rounded in one": lambda: case(noisy, X, target_run=held, reference_run=plain),
        "tf32": lambda: case(
            X * (1 + 2e-4 * normal(*X.shape, seed=3)), X, target_run=plain, reference_run=plain
        ),
        "exact": lambda: case((X.double() * (1 + 3e-8 * normal(*X.shape, seed=3))).float(), X),
        "a gradient of ranks": lambda: of_ranks(GRADIENT),
        "an activation of ranks": lambda: of_ranks({"phase": "forward", "slot": "output.0"}),
        "channels last": lambda: case(drawn_as((0, 3, 1, 2)), drawn_as((0, 1, 2, 3))),
        "a batch again": lambda: case(GRADS[0], GRADS[1], elsewhere=STALE, phase="param", slot="value"),
    }
    if name in made:
        return made[name]()
    other = X.clone()
    other[0, 0] = float("nan") if name == "empty rows" else float("inf")
    scales = {"scale of one": 1.0, "unknown scale": None}
    run = RunFacts(loss_scale=scales.get(name))
    return case(other, X, phase="backward", slot="output.0", target_run=run)


def drawn_as(order: tuple[int, ...]) -> torch.Tensor:
    """Dropout of pictures whose dimensions lie in memory in an order that this one puts right."""
    pictures = normal(2, 6, 6, 6, seed=4)
    lost = torch.rand(2, 6, 6, 6, generator=torch.Generator().manual_seed(5)) < 0.25
    return torch.where(lost.permute(order), 0, pictures / 0.75)


def of_ranks(at: dict[str, str]) -> Evidence:
    ranks = Elsewhere(target_ranks=tuple(enumerate(map(known, GRADS))))
    run = RunFacts(world_size=4)
    return case(GRADS[0], sum(GRADS), elsewhere=ranks, target_run=run, reference_run=run, **at)


@pytest.mark.parametrize(
    ("name", "kind", "there", "not_there"),
    [
        ("grouped", KindCode.DROPPED_UPDATE, {Cause.OTHER_TENSORS, Cause.NO_STEP}, {Cause.IN_NO_GROUP}),
        ("skipped", KindCode.DROPPED_UPDATE, {Cause.OTHER_TENSORS, Cause.IN_NO_GROUP}, {Cause.NO_STEP}),
        ("scale of one", KindCode.OVERFLOW_UNDERFLOW, {Cause.BEYOND_RANGE}, {Cause.LOSS_SCALE}),
        ("unknown scale", KindCode.OVERFLOW_UNDERFLOW, {Cause.LOSS_SCALE}, {Cause.EMPTY_ROW}),
        ("empty rows", KindCode.OVERFLOW_UNDERFLOW, {Cause.EMPTY_ROW, Cause.LOSS_SCALE}, set()),
        (
            "shifted by two",
            KindCode.SHIFTED_BY_ONE,
            {Cause.SHIFTED_TWICE_OR_NEVER},
            {Cause.INDEX_OFF_BY_ONE},
        ),
        ("weights of two draws", KindCode.RANDOMNESS, {Cause.OTHER_SEED}, {Cause.STATE_NOT_RESTORED}),
        ("rounded in both", KindCode.DTYPE_OR_ROUNDING, {Cause.OTHER_ORDER_OR_KERNEL}, {Cause.ORDER_OF_SUMS}),
        (
            "rounded in one",
            KindCode.DTYPE_OR_ROUNDING,
            {Cause.COARSER_ON_ONE_SIDE},
            {Cause.OTHER_ORDER_OR_KERNEL},
        ),
        ("tf32", KindCode.DTYPE_OR_ROUNDING, {Cause.TF32_ON_ONE_SIDE}, {Cause.UPCAST_LEFT_OUT}),
        ("exact", KindCode.DTYPE_OR_ROUNDING, {Cause.ORDER_OF_SUMS}, {Cause.COARSER_ON_ONE_SIDE}),
        (
            "a gradient of ranks",
            KindCode.MISSING_ALL_REDUCE,
            {Cause.OUTSIDE_THE_GROUP, Cause.PARTIAL_SUM},
            set(),
        ),
        (
            "an activation of ranks",
            KindCode.MISSING_ALL_REDUCE,
            {Cause.PARTIAL_SUM},
            {Cause.OUTSIDE_THE_GROUP},
        ),
        ("a batch again", KindCode.STALE_VALUE, {Cause.COPY_NOT_UPDATED}, {Cause.BATCH_AGAIN}),
    ],
)
def test_what_a_case_rules_out_is_no_cause(
    name: str, kind: KindCode, there: set[Cause], not_there: set[Cause]
) -> None:
    evidence = further(name)
    for one in name_kinds(evidence):
        check(one, evidence)
    found = next(one for one in name_kinds(evidence) if one.name == kind)
    causes = {one.code for one in found.causes}
    assert there <= causes, causes
    assert not not_there & causes, causes


@pytest.mark.parametrize(("value", "stale"), [(0.35, True), (1e-9, False)])
def test_a_loss_that_cancels_is_no_earlier_one(value: float, stale: bool) -> None:
    """Advantages of a group sum to nothing, in every step."""
    target, reference = torch.tensor(value), torch.tensor(0.4)
    earlier = ((0, known(torch.tensor(0.45))),)
    before = Elsewhere(target_earlier=((0, known(target)),), reference_earlier=earlier)
    found = name_kinds(case(target, reference, phase="loss", slot="value", module="", elsewhere=before))
    assert (KindCode.STALE_VALUE in {one.name for one in found}) is stale
