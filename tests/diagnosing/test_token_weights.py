"""Weights that losses of log-probabilities give tokens: real losses, each beside one of equal weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.diagnosing.cases import case
from trueup.diagnosing.evidence import RunFacts
from trueup.diagnosing.kinds.by_index import index_fault
from trueup.types.codes.kinds import CauseCode, KindReason
from trueup.types.reason import Reason
from trueup.wording import text

ROWS, LENGTH, WORDS = 8, 7, 23
DRAWN = torch.Generator().manual_seed(4)
LOGITS = torch.randn(ROWS, LENGTH, WORDS, generator=DRAWN)
LABELS = torch.randint(0, WORDS, (ROWS, LENGTH), generator=DRAWN)
MASK = (torch.arange(LENGTH)[None] < torch.randint(2, LENGTH + 1, (ROWS, 1), generator=DRAWN)).float()
REWARDS = torch.rand(ROWS, generator=DRAWN) * torch.tensor([1.0] * 4 + [3.0] * 4)
ANCHOR = torch.randn(ROWS, LENGTH, generator=DRAWN)
Of = Callable[[Tensor], Tensor]


def preference(
    anchor: Tensor,
    *,
    adjacent: bool = False,
    beta: float = 0.3,
    margin: float = 0.0,
    mean: bool = False,
    smoothed: float = 0.0,
) -> Of:
    def loss(chosen: Tensor) -> Tensor:
        rows = (chosen * MASK).sum(1) / (MASK.sum(1) if mean else 1.0) - anchor
        good, bad = (rows[::2], rows[1::2]) if adjacent else rows.chunk(2)
        wins = beta * (good - bad) - margin
        return (-F.logsigmoid(wins) * (1 - smoothed) - F.logsigmoid(-wins) * smoothed).mean()

    return loss


def advantages(scale: str, mean: str = "group") -> Tensor:
    grouped = REWARDS.view(2, 4)
    centred = grouped - (grouped.mean(1, keepdim=True) if mean == "group" else grouped.mean())
    by = {"group": grouped.std(1, keepdim=True), "batch": grouped.std(), "none": torch.tensor(1.0)}[scale]
    return (centred / by).flatten()


def policy(
    gain: Tensor, beta: float = 0.1, *, by_row: bool = True, clip: float = 9.0, old: float = 0.0
) -> Of:
    def loss(chosen: Tensor) -> Tensor:
        ratio = torch.exp(chosen - chosen.detach() + old * ANCHOR)
        objective = torch.min(ratio * gain[:, None], ratio.clamp(max=1 + clip) * gain[:, None])
        apart = ANCHOR - 3 - chosen
        each = -objective + beta * (apart.exp() - apart - 1)
        return ((each * MASK).sum(1) / (MASK.sum(1) if by_row else 5.0)).mean()

    return loss


def plain(over: str, factor: float = 1.0) -> Of:
    def loss(chosen: Tensor) -> Tensor:
        kept = -chosen * MASK * factor
        return (kept.sum(1) / MASK.sum(1)).mean() if over == "rows" else kept.sum() / MASK.sum()

    return loss


def run(
    loss: Of, *, labels: Tensor = LABELS, dtype: torch.dtype = torch.float32, soft: bool = False
) -> RunFacts:
    """What a real loss sends back to its logits."""
    logits = LOGITS.clone().to(dtype).detach().requires_grad_()
    spread = logits.float().log_softmax(-1)
    if soft:
        made = -(spread * F.softmax(LOGITS.flip(0), -1)).sum(-1)
        loss(-made).backward()
    else:
        loss(spread.gather(-1, labels[..., None]).squeeze(-1)).backward()
    assert logits.grad is not None
    name = str(dtype).removeprefix("torch.")
    return RunFacts(
        sent_back={0: logits.grad.double().numpy()},
        sent_from={0: logits.detach().double().numpy()},
        dtypes=frozenset({name}),
    )


def found(target: RunFacts, reference: RunFacts) -> Reason | None:
    evidence = case(
        np.array(1.0),
        np.array(1.2),
        phase="loss",
        slot="value",
        module="",
        target_run=target,
        reference_run=reference,
    )
    solved = index_fault(evidence)
    if solved is None or solved.found.sentence.code is not KindReason.WEIGHTS_OF_TOKENS:
        return None
    is_shifted = any(part.code is KindReason.WEIGHTS_MARGIN for part in solved.found.sentence.parts)
    cause = CauseCode.MARGIN_OF_PAIRS if is_shifted else CauseCode.WEIGHTS_OF_ROWS
    assert solved.found.causes == (cause,)
    return solved.found.sentence


GROUP, BATCH = (policy(advantages(scale)) for scale in ("group", "batch"))
OTHERS = torch.linspace(-2, 2, ROWS) ** 3
MEAN = {"size": 4, "law": "mean"}
ADJACENT = preference(OTHERS, adjacent=True)


@pytest.mark.parametrize(
    ("target", "reference", "unit", "law"),
    [
        (BATCH, GROUP, "token", {"size": 4, "law": "scale"}),
        (policy(advantages("none")), GROUP, "token", {"size": 4, "law": "scale"}),
        (policy(advantages("none", "batch")), policy(advantages("none")), "token", MEAN),
        (policy(advantages("group"), beta=0.2), GROUP, "token", None),
        (policy(advantages("group"), by_row=False), GROUP, "token", None),
        (policy(advantages("group"), clip=0.2, old=0.5), policy(advantages("group"), old=0.5), "token", None),
        (policy(advantages("batch"), old=0.5), policy(advantages("group"), old=0.5), "token", None),
        (preference(OTHERS), preference(0 * OTHERS), "row", {"step": 4, "num": 4}),
        (ADJACENT, preference(0 * OTHERS, adjacent=True), "row", {"step": 1, "num": 4}),
        (preference(OTHERS), preference(0 * OTHERS, adjacent=True), "row", None),
        (plain("rows"), plain("tokens"), "row", {"target": "rows", "reference": "tokens"}),
        (plain("tokens"), plain("rows"), "row", {"target": "tokens", "reference": "rows"}),
    ],
    ids=[
        "std of the batch",
        "no std",
        "mean of the batch",
        "another beta",
        "no length",
        "clipped",
        "of old probabilities",
        "pairs",
        "adjacent pairs",
        "paired otherwise",
        "mean of rows",
        "mean of tokens",
    ],
)
def test_weights_of_both_sides(target: Of, reference: Of, unit: str, law: dict[str, Any] | None) -> None:
    said = found(run(target), run(reference))
    assert said is not None
    assert said.place("unit") == unit
    assert [one.facts for one in said.parts] == ([] if law is None else [law])
    codes = {
        "law": KindReason.WEIGHTS_BY_ROWS,
        "step": KindReason.WEIGHTS_PAIRED,
        "reference": KindReason.WEIGHTS_LAW,
    }
    assert all(one.code is codes[max(one.facts.keys() & codes.keys())] for one in said.parts)
    own = run(target).sent_back[0]
    first = [int(n) for n in str(said.facts["names"][0]).split(":")]  # type: ignore[index]
    row, at = first if len(first) == 2 else (first[0], 0)
    spread = F.softmax(LOGITS[row, at].double(), -1)
    weight = own[row, at, LABELS[row, at]] / (float(spread[LABELS[row, at]]) - 1)
    assert float(said.facts["target"][0]) == pytest.approx(weight, rel=1e-3)  # type: ignore[index]
    assert str(said.facts["target"][0]) in text(said)  # type: ignore[index]


NO_ANCHOR = 0 * OTHERS


@pytest.mark.parametrize(
    ("target", "reference", "shift"),
    [
        (preference(NO_ANCHOR, margin=0.8), preference(NO_ANCHOR), -0.8),
        (preference(OTHERS, margin=0.3, mean=True), preference(OTHERS, margin=0.8, mean=True), 0.5),
        (preference(OTHERS, adjacent=True), preference(OTHERS + 0.01 * (OTHERS < 99), adjacent=True), None),
        (preference(NO_ANCHOR, beta=0.4), preference(NO_ANCHOR), None),
        (preference(NO_ANCHOR, beta=0.4, margin=0.8), preference(NO_ANCHOR), None),
        (preference(NO_ANCHOR, smoothed=0.1), preference(NO_ANCHOR), None),
        (preference(OTHERS), preference(NO_ANCHOR), None),
    ],
    ids=["margin", "of means", "none", "beta", "beta and margin", "smoothed", "anchors"],
)
def test_a_margin_that_is_another_one_for_all_pairs(target: Of, reference: Of, shift: float | None) -> None:
    said = found(run(target), run(reference))
    parts = [] if said is None else [one for one in said.parts if one.code is KindReason.WEIGHTS_MARGIN]
    assert [one.number("shift") for one in parts] == (
        [] if shift is None else [pytest.approx(shift, rel=1e-3)]
    )
    assert all("in the target for every row" in text(one) for one in parts)


def test_a_term_of_all_tokens_is_no_mean() -> None:
    """One number for all rows, of opposite numbers for two: of another term, or of pairs, as well."""
    groups = run(GROUP)
    for more in (plain("tokens", 0.2), ADJACENT):
        said = found(run(lambda chosen, more=more: GROUP(chosen) + more(chosen)), groups)  # type: ignore[misc]
        assert said is not None
        assert (said.number("per_row"), said.parts) == (1, ())


@pytest.mark.parametrize(
    ("target", "reference"),
    [
        (run(GROUP), run(GROUP)),
        (run(plain("tokens", 3.0)), run(plain("tokens"))),
        (run(preference(OTHERS), labels=LABELS.roll(1, 1)), run(preference(0 * OTHERS))),
        (run(plain("rows"), soft=True), run(plain("tokens"), soft=True)),
        (run(plain("tokens"), dtype=torch.bfloat16), run(plain("tokens", 1.001), dtype=torch.bfloat16)),
    ],
    ids=["equal", "one factor", "other labels", "a teacher's words", "rounding"],
)
def test_quiet_where_weights_agree(target: RunFacts, reference: RunFacts) -> None:
    assert found(target, reference) is None


def test_words_that_are_all_but_certain_tell_nothing() -> None:
    """Where p is 1 but for rounding, what is left of 1 - p is no weight."""
    sure = LOGITS.clone()
    sure[:2].scatter_(-1, LABELS[:2, :, None], 14.0)
    runs = []
    for factor in (1.0, 1.0 + 1e-6):
        logits = sure.clone().requires_grad_()
        (plain("tokens", factor)(logits.log_softmax(-1).gather(-1, LABELS[..., None]).squeeze(-1))).backward()
        assert logits.grad is not None
        kept = {"sent_back": {0: logits.grad.double().numpy()}, "sent_from": {0: sure.double().numpy()}}
        runs.append(RunFacts(**kept, dtypes=frozenset({"float32"})))
    assert found(*runs) is None
