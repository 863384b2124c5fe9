"""By what a loss is divided: named on both sides, for every pair of ways that programs divide it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.adapters.torch.reading import capture
from tests.diagnosing.cases import case
from trueup.diagnosing.diagnosis import Diagnosis
from trueup.diagnosing.evidence import RunFacts
from trueup.diagnosing.evidence.facts import LossFacts
from trueup.diagnosing.kinds.loss_divisor import divided_otherwise, given_divisor
from trueup.diagnosing.loss_form import LossForm
from trueup.diagnosing.pipeline import diagnose
from trueup.types.codes import DivisorCode, StagesCode
from trueup.types.finding import KindCode

pytestmark = pytest.mark.torch

MICROBATCHES, ROWS, WIDTH = 3, 4, 12
Divide = Callable[[Tensor, Tensor, int, int], Tensor]
"""logits, labels, tokens of the step, all positions of the step -> loss"""


def mean(logits: Tensor, labels: Tensor, tokens: int, positions: int) -> Tensor:
    return nn.functional.cross_entropy(logits, labels)


def mean_of_means(logits: Tensor, labels: Tensor, tokens: int, positions: int) -> Tensor:
    return nn.functional.cross_entropy(logits, labels) / MICROBATCHES


def over_step(logits: Tensor, labels: Tensor, tokens: int, positions: int) -> Tensor:
    return nn.functional.cross_entropy(logits, labels, reduction="sum") / tokens


def over_positions(logits: Tensor, labels: Tensor, tokens: int, positions: int) -> Tensor:
    return nn.functional.cross_entropy(logits, labels, reduction="sum") / positions


def over_own_positions(logits: Tensor, labels: Tensor, tokens: int, positions: int) -> Tensor:
    return nn.functional.cross_entropy(logits, labels, reduction="none").mean()


def over_sequences(logits: Tensor, labels: Tensor, tokens: int, positions: int) -> Tensor:
    return nn.functional.cross_entropy(logits, labels, reduction="sum") / (ROWS * MICROBATCHES)


def plain_sum(logits: Tensor, labels: Tensor, tokens: int, positions: int) -> Tensor:
    return nn.functional.cross_entropy(logits, labels, reduction="sum")


WAYS: dict[Divide, DivisorCode] = {
    mean: DivisorCode.COUNTED,
    mean_of_means: DivisorCode.COUNTED_TIMES,
    over_step: DivisorCode.COUNTED_OF_STEP,
    over_positions: DivisorCode.POSITIONS_OF_STEP,
    over_own_positions: DivisorCode.POSITIONS,
    over_sequences: DivisorCode.ROWS_OF_STEP,
    plain_sum: DivisorCode.NOTHING,
}


PAIRS = [pair if at % 2 else pair[::-1] for at, pair in enumerate(combinations(WAYS, 2))]


def program(divide: Divide, *, seed: int = 0, smoothing: float = 1.0, added: float = 0.0) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Embedding(31, 16), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 31))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        batches = [torch.randint(0, 31, (ROWS, WIDTH + 1)) for _ in range(MICROBATCHES)]
        ignored = [torch.arange(WIDTH) < torch.randint(1, WIDTH - 2, (ROWS, 1)) for _ in range(MICROBATCHES)]
        labels = [
            ids[:, 1:].masked_fill(off, -100).flatten() for ids, off in zip(batches, ignored, strict=True)
        ]
        tokens = sum(int((one != -100).sum()) for one in labels)
        for ids, one in zip(batches, labels, strict=True):
            logits = model(ids[:, :-1]).flatten(0, 1)
            loss = divide(logits, one, tokens, ROWS * WIDTH * MICROBATCHES) * SMOOTHING[smoothing]
            (loss + ADDED[added]).backward()
        optimizer.step()
        optimizer.zero_grad()


SMOOTHING = {factor: torch.tensor(factor) for factor in (1.0, 0.9, 1.5, 0.31, -1.0, -0.31)}
ADDED = {term: torch.tensor(term) for term in (0.0, 0.25, -8.0)}
"""made before any capture: no call shows them"""
Diagnosed = Callable[..., Diagnosis]


@pytest.fixture(scope="module")
def diagnosed(tmp_path_factory: pytest.TempPathFactory) -> Diagnosed:
    @cache
    def captured(divide: Divide, seed: int, task: str, **changed: float) -> Path:
        folder = tmp_path_factory.mktemp("run") / "trace"
        capture(folder, lambda: program(divide, seed=seed, **changed), level="L0", task=task)
        return folder

    def pair(
        target: Divide, reference: Divide, *, seed: int = 0, task: str = "tensor", **changed: float
    ) -> Diagnosis:
        sides = captured(target, seed, task, **changed), captured(reference, seed, task)
        return diagnose(*sides, output=tmp_path_factory.mktemp("diagnosis"))

    return pair


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: "-".join(one.__name__ for one in pair))
def test_both_divisors_are_named(pair: tuple[Divide, Divide], diagnosed: Diagnosed) -> None:
    finding = diagnosed(*pair).findings[0]
    assert finding.kinds[0].name == KindCode.WRONG_SCALE
    assert finding.headline.code is StagesCode.LOSS_DIVISOR
    assert [part.code for part in finding.headline.parts] == [WAYS[one] for one in pair]


@pytest.mark.parametrize("seed", range(1, 4))
def test_on_other_batches(seed: int, diagnosed: Diagnosed) -> None:
    finding = diagnosed(over_step, mean_of_means, seed=seed).findings[0]
    assert [part.code for part in finding.headline.parts] == [
        DivisorCode.COUNTED_OF_STEP,
        DivisorCode.COUNTED_TIMES,
    ]


@pytest.mark.parametrize("divide", [mean, over_step, plain_sum])
def test_a_factor_that_is_none_of_them_is_not_named_after_one(divide: Divide, diagnosed: Diagnosed) -> None:
    """A loss times 0.9 is no other divisor."""
    finding = diagnosed(divide, divide, smoothing=0.9).findings[0]
    assert finding.headline.code is not StagesCode.LOSS_DIVISOR


@pytest.mark.parametrize("task", ["tensor", "statistics"])
@pytest.mark.parametrize("factor", [0.9, 1.5, 0.31])
@pytest.mark.parametrize("divide", [mean, plain_sum])
def test_a_factor_of_the_loss_is_told_by_the_gradients_it_sends_back(
    divide: Divide, factor: float, task: str, diagnosed: Diagnosed
) -> None:
    """Without the values of the labels, the statistics of the gradient tell it."""
    kind = diagnosed(divide, divide, smoothing=factor, task=task).findings[0].kinds[0]
    assert kind.name == KindCode.WRONG_SCALE
    assert kind.factor == pytest.approx(factor, rel=1e-5)


@pytest.mark.parametrize(
    ("factor", "task", "code"),
    [
        (-1.0, "tensor", KindCode.WRONG_SIGN),
        (-1.0, "statistics", KindCode.WRONG_SIGN),
        (-0.31, "statistics", KindCode.WRONG_SCALE),
    ],
)
def test_a_negative_factor_of_the_loss(
    factor: float, task: str, code: KindCode, diagnosed: Diagnosed
) -> None:
    """What it sends back is turned over: its least value is the other run's largest times the factor."""
    kind = diagnosed(mean, mean, smoothing=factor, task=task).findings[0].kinds[0]
    assert kind.name == code
    assert kind.factor == (None if code is KindCode.WRONG_SIGN else pytest.approx(factor, rel=1e-5))


@pytest.mark.parametrize("added", [0.25, -8.0])
@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_a_term_added_to_the_loss_is_no_factor(task: str, added: float, diagnosed: Diagnosed) -> None:
    """One number and another, perhaps below 0: their gradients are the same."""
    finding = diagnosed(mean, mean, added=added, task=task).findings[0]
    assert not {kind.name for kind in finding.kinds} & {KindCode.WRONG_SCALE, KindCode.WRONG_SIGN}


def of_rank(value: float, ranks: tuple[int, ...]) -> RunFacts:
    """Two microbatches of 30 and 21 tokens on this rank."""
    losses = {
        m: LossFacts(value=value * (m + 1), counted=n, positions=48, rows=4, steepest=None, form=None)
        for m, n in enumerate((30, 21))
    }
    return RunFacts(losses=losses, world_size=2, rank_counted=ranks)


@pytest.mark.parametrize(
    ("others", "code"),
    [((51, 38), DivisorCode.COUNTED_BY_RANK), ((51, 40), None), ((), None)],
    ids=["tokens of all ranks", "another number", "not known"],
)
def test_tokens_of_all_ranks(others: tuple[int, ...], code: DivisorCode | None) -> None:
    """The mean over ranks of the mean over a rank's tokens, against the mean over all tokens."""
    target, reference = of_rank(3.0 / 51, others), of_rank(3.0 / 44.5, others)
    values = (torch.tensor(run.losses[0].value) for run in (target, reference))
    found = divided_otherwise(
        case(*values, phase="loss", slot="value", target_run=target, reference_run=reference)
    )
    named = None if found is None else found.sentence.parts[1].code
    assert named is code


@pytest.mark.parametrize(
    ("given", "codes"),
    [
        ((51.0, 44.5), [DivisorCode.COUNTED_OF_STEP, DivisorCode.COUNTED_BY_RANK]),
        ((51.0, 89.0), [DivisorCode.COUNTED_OF_STEP, DivisorCode.COUNTED_OF_RANKS]),
        ((51.0, 44.0), None),
    ],
    ids=["this process's", "as a sum", "another number"],
)
def test_a_number_that_is_given_is_named_after_the_tokens_of_the_ranks(
    given: tuple[float, float], codes: list[DivisorCode] | None
) -> None:
    """A model that makes its loss is given the tokens of its own process, in place of its share of all."""
    run = of_rank(3.0, (51, 38))
    values = (torch.tensor(number) for number in given)
    found = given_divisor(
        case(*values, phase="forward", slot="input.items", module="", target_run=run, reference_run=run)
    )
    assert (None if found is None else [part.code for part in found.sentence.parts]) == codes


@pytest.mark.parametrize(
    ("divisors", "code"),
    [((30.0, 21.0), DivisorCode.COUNTED), ((51.0, 51.0), None), ((37.0, 37.0), None)],
    ids=["its own tokens", "the same", "no number of the step"],
)
def test_a_loss_with_another_term_is_told_by_its_gradients(
    divisors: tuple[float, float], code: DivisorCode | None
) -> None:
    """The balance of experts is added to the loss: no quotient of losses is one of divisors."""
    sums = (90.0, 70.0)

    def run(by: tuple[float, float]) -> RunFacts:
        forms = [LossForm(divisor=d, smoothing=0, smoothing_error=0, z_loss=0, z_loss_error=0) for d in by]
        losses = {
            m: LossFacts(value=s / d + 2.5, counted=n, positions=48, rows=4, steepest=None, form=form)
            for m, (s, d, n, form) in enumerate(zip(sums, by, (30, 21), forms, strict=True))
        }
        return RunFacts(losses=losses)

    target, reference = run(divisors), run((51.0, 51.0))
    values = (torch.tensor(side.losses[0].value) for side in (target, reference))
    found = divided_otherwise(
        case(*values, phase="loss", slot="value", target_run=target, reference_run=reference)
    )
    assert (None if found is None else found.sentence.parts[0].code) is code
