"""A router that differs in one thing is told from its input, weight, and the experts it chose."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.diagnosing.cases import case, normal, pair
from trueup.diagnosing.evidence import Surroundings
from trueup.diagnosing.kinds import name_kinds
from trueup.diagnosing.kinds.routing import routing_fault
from trueup.types.codes.kinds import CauseCode, KindReason

pytestmark = pytest.mark.torch
ROWS, WIDTH, EXPERTS, K = 64, 16, 8, 3
GIVEN, WEIGHT, BIAS = (
    normal(ROWS, WIDTH, seed=81),
    normal(EXPERTS, WIDTH, seed=82) / 4,
    normal(EXPERTS, seed=83) / 4,
)


def routed(
    *,
    scores: str = "sigmoid",
    over: str = "chosen",
    factor: float = 1.5,
    by: str = "sum",
    groups: int = 4,
    biased: bool = False,
    added: bool = True,
    dtype: torch.dtype | None = None,
    noise: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Weights and experts, (rows, k)."""
    x, w = (GIVEN, WEIGHT) if dtype is None else (GIVEN.to(dtype), WEIGHT.to(dtype))
    logits = (x @ w.t()).double() + noise * normal(ROWS, EXPERTS, seed=84)
    s = logits.sigmoid() if scores == "sigmoid" else logits.softmax(-1)
    choice = s + BIAS if added else s
    if groups > 1:
        parts = choice.view(ROWS, groups, -1)
        best = parts.max(-1).values if by == "max" else parts.topk(2, -1).values.sum(-1)
        kept = torch.zeros_like(best).scatter(1, best.topk(2, -1).indices, 1.0)
        choice = choice.masked_fill(kept.repeat_interleave(EXPERTS // groups, 1) == 0, -torch.inf)
    index = choice.topk(K, -1).indices
    weights = (s + BIAS if biased else s).gather(1, index)
    whole = {"chosen": weights, "all": s, "none": None}[over]
    return (weights if whole is None else weights / whole.sum(-1, keepdim=True)).float() * factor, index


CHANGES: dict[str, tuple[dict[str, Any], KindReason]] = {
    "softmax": ({"scores": "softmax"}, KindReason.ROUTER_SCORES),
    "over all": ({"over": "all"}, KindReason.ROUTER_NORMALISED),
    "not normalised": ({"over": "none", "factor": 1.0}, KindReason.ROUTER_NORMALISED),
    "factor": ({"factor": 2.5}, KindReason.ROUTER_FACTOR),
    "bias in the weights": ({"biased": True}, KindReason.ROUTER_BIAS_WEIGHS),
    "best expert": ({"by": "max"}, KindReason.ROUTER_CHOICE),
    "no groups": ({"groups": 1}, KindReason.ROUTER_CHOICE),
    "no bias": ({"added": False}, KindReason.ROUTER_CHOICE),
    "float16": ({"dtype": torch.float16}, KindReason.ROUTER_ROUNDED),
    "bfloat16": ({"dtype": torch.bfloat16}, KindReason.ROUTER_ROUNDED),
}
SAID = {code for _, code in CHANGES.values()}


def codes(
    target: tuple[Tensor, Tensor],
    reference: tuple[Tensor, Tensor],
    *,
    dense: bool = False,
    held: str = "parameters",
) -> set[Any]:
    """``held``: as what the module holds that which is added to scores for the choice."""
    if dense:
        target, reference = (
            (torch.zeros(ROWS, EXPERTS).scatter(1, index, weights), index)
            for weights, index in (target, reference)
        )
    bias = pair("bias", BIAS, BIAS)
    around = Surroundings(
        module="layers.0.mlp.router",
        name="layers.0.mlp.router",
        type="Router",
        inputs=(pair("input.0", GIVEN, GIVEN),),
        outputs=tuple(
            pair(f"output.{at}", *sides) for at, sides in enumerate(zip(target, reference, strict=True))
        )[: 1 if dense else 2],
        parameters=(pair("weight", WEIGHT, WEIGHT), *([bias] if held == "parameters" else [])),
        buffers=(bias,) if held == "buffers" else (),
    )
    found = name_kinds(
        case(target[0], reference[0], slot="output.0", module="layers.0.mlp.router", surroundings=around)
    )
    return {kind.sentence.code for kind in found} & SAID


@pytest.mark.parametrize("held", ["parameters", "buffers"])
@pytest.mark.parametrize("dense", [False, True], ids=["chosen experts", "all experts"])
@pytest.mark.parametrize(("change", "code"), CHANGES.values(), ids=CHANGES)
def test_the_one_change_is_named(change: dict[str, Any], code: KindReason, dense: bool, held: str) -> None:
    assert codes(routed(**change), routed(), dense=dense, held=held) == {code}
    if code is not KindReason.ROUTER_ROUNDED:
        assert codes(routed(), routed(**change), dense=dense, held=held) == {code}


@pytest.mark.parametrize("noise", [1e-6, 1e-2, 0.3])
def test_other_logits_have_none_of_these_causes(noise: float) -> None:
    """Rounding of another kernel, and logits that differ by more."""
    assert not codes(routed(noise=noise), routed())


def test_weights_of_another_function_have_none() -> None:
    weights, index = routed()
    assert not codes((weights.square(), index), (weights, index))
    assert not codes((weights, index), (weights.square(), index))


def loss_codes(target: Tensor, reference: Tensor) -> set[Any]:
    """What is said of the loss that a router adds."""
    weights, index = routed()
    around = Surroundings(
        module="layers.0.mlp.router",
        name="layers.0.mlp.router",
        type="Router",
        inputs=(pair("input.0", GIVEN, GIVEN),),
        outputs=(
            pair("output.0", weights, weights),
            pair("output.1", index, index),
            pair("output.2", target, reference),
        ),
        parameters=(pair("weight", WEIGHT, WEIGHT), pair("bias", BIAS, BIAS)),
    )
    place = {"slot": "output.2", "module": "layers.0.mlp.router", "surroundings": around}
    codes = {kind.sentence.code for kind in name_kinds(case(target, reference, **place))}
    return codes & {KindReason.ROUTER_BALANCE, KindReason.ROUTER_Z_LOSS}


def added(*, of: str = "all", factor: float = EXPERTS / K, z: float = 0.1, more: float = 0.0) -> Tensor:
    logits = (GIVEN @ WEIGHT.t()).double()
    chosen = torch.zeros(ROWS, EXPERTS).double().scatter(1, routed()[1], 1.0)
    part = logits.sigmoid() * (chosen if of == "chosen" else 1.0)
    part = (part / part.sum(-1, keepdim=True)).mean(0)
    return (factor * (chosen.mean(0) * part).sum() + z * logits.logsumexp(-1).square().mean() + more).float()


@pytest.mark.parametrize("factor", [EXPERTS / K, float(EXPERTS)])
def test_what_a_router_adds_to_the_loss(factor: float) -> None:
    """Twins: another number, rounding, and a coefficient that nobody writes."""
    plain = added(factor=factor)
    assert loss_codes(added(factor=factor, of="chosen"), plain) == {KindReason.ROUTER_BALANCE}
    assert loss_codes(plain, added(factor=factor, of="chosen")) == {KindReason.ROUTER_BALANCE}
    assert loss_codes(added(factor=factor, z=0.0), plain) == {KindReason.ROUTER_Z_LOSS}
    for other in (added(factor=factor, more=0.0123), added(factor=factor, z=0.0376213), plain * (1 + 1e-7)):
        assert not loss_codes(other, plain)


# -- terms of the loss ------------------------------------------

NUM_TOKENS, OF_TERM = 40, 6
OF_GATE = torch.randn(NUM_TOKENS, OF_TERM, generator=torch.Generator().manual_seed(8))
MAIN = 1e-3 * torch.randn(NUM_TOKENS, OF_TERM, generator=torch.Generator().manual_seed(9))


def balance(logits: Any, *, scores: str = "softmax", chosen: int = 2) -> Any:
    p = logits.softmax(-1) if scores == "softmax" else logits.sigmoid()
    shares = torch.zeros(NUM_TOKENS, OF_TERM).scatter_(1, logits.topk(chosen).indices, 1.0).mean(0)
    return OF_TERM * (shares * p.mean(0)).sum()


def z_loss(logits: Any) -> Any:
    return logits.logsumexp(-1).square().mean()


def gradient(*terms: Any) -> Any:
    """Of the gate's logits: of the model's loss, and of more terms."""
    logits = OF_GATE.clone().requires_grad_()
    sum(((MAIN * logits).sum(), *(0.02 * term(logits) for term in terms))).backward()
    return logits.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("target", "reference", "seen"),
    [
        (gradient(balance), gradient(), True),
        (gradient(), gradient(balance), True),
        (gradient(lambda z: 3 * balance(z)), gradient(balance), True),
        (gradient(lambda z: 4 * balance(z, chosen=1)), gradient(lambda z: 4 * balance(z)), True),
        (gradient(balance, z_loss), gradient(z_loss), True),
        (gradient(z_loss), gradient(), False),
        (gradient(lambda z: 5 * balance(z, scores="sigmoid")), gradient(), False),
        (gradient(lambda z: z.mean(0)[0]), gradient(), False),
        (gradient(balance) * 1.5, gradient(balance), False),
        (gradient(balance)[torch.arange(NUM_TOKENS).roll(1)], gradient(), False),
        (gradient(balance), gradient(balance), False),
    ],
    ids=[
        "extra",
        "missing",
        "weight",
        "shares",
        "beside z",
        "z",
        "sigmoid",
        "number",
        "scaled",
        "rows",
        "equal",
    ],
)
def test_a_term_of_mean_scores(target: Any, reference: Any, seen: bool, dtype: torch.dtype) -> None:
    """Its gradient is p (v - p.v), one v for all tokens; other terms of the loss have other forms."""
    around = Surroundings(module="gate", outputs=(pair("output.0", OF_GATE, OF_GATE),))
    held = (target.to(dtype), reference.to(dtype))
    evidence = case(*held, phase="backward", slot="output.0", module="gate", surroundings=around)
    found = routing_fault(evidence)
    assert (found is not None) is seen
    if found is not None:
        assert found.found.sentence.code is KindReason.TERM_OF_SCORES
        assert found.found.sentence.number("experts") == OF_TERM
        assert found.found.causes == (CauseCode.BALANCE_TERM,)
