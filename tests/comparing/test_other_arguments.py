"""Plain arguments that both programs give otherwise, where no number tells them from rounding."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trueup
from trueup.comparing.other_arguments import is_one_number
from trueup.comparing.run import compare
from trueup.types.codes import EvidenceCode, NextCode, NoteCode, VerdictCode
from trueup.types.codes.evidence import NUM_CALLS
from trueup.types.status import Outcome
from trueup.types.verdict import Verdict

pytestmark = pytest.mark.torch

OPTIONS: dict[str, Any] = {"level": "L0", "functions": True}
Formula = Callable[[Tensor], Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]
NUM_CLASSES = 67


class Weighing(nn.Module):
    """A formula behind a projection."""

    def __init__(self, formula: Formula) -> None:
        super().__init__()
        self.first, self.formula = nn.Linear(16, 16), formula

    def forward(self, x: Tensor) -> Tensor:
        return x + self.formula(F.linear(x, self.first.weight))


class Turning(nn.Module):
    """Its weights come from a product in halves or in one: other bits, and agreeing ones."""

    def __init__(self, *, halves: bool) -> None:
        super().__init__()
        self.weight, self.halves = nn.Parameter(torch.randn(16, 16) / 4), halves

    def forward(self, x: Tensor) -> Tensor:
        if self.halves:
            return x[:, :8] @ self.weight[:8] + x[:, 8:] @ self.weight[8:]
        return x @ self.weight


def mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), labels)


def verdict(
    tmp_path: Path,
    target: Formula,
    reference: Formula,
    *,
    losses: tuple[Loss, Loss] = (mean_loss, mean_loss),
    dtype: torch.dtype = torch.bfloat16,
    options: dict[str, Any] = OPTIONS,
    rows: tuple[int, int] = (8, 8),
) -> Verdict:
    """Of two programs whose first module rounds otherwise, so that nothing behind it has equal bits."""
    sides = zip(("target", "reference"), (target, reference), losses, rows, (True, False), strict=True)
    for name, formula, loss, number, halves in sides:
        with trueup.Tracer(tmp_path / name, **options):
            train(formula, loss, number, halves=halves, dtype=dtype)
    comparison = compare(tmp_path / "target", tmp_path / "reference")
    return comparison.verdict


def train(formula: Formula, loss: Loss, rows: int, *, halves: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    body = [Turning(halves=halves), Weighing(formula), nn.Linear(16, NUM_CLASSES)]
    model = nn.Sequential(*body).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x, labels = torch.randn(8, 16, dtype=dtype), torch.randint(NUM_CLASSES, (8,))
    for some, one in zip(x.split(rows), labels.split(rows), strict=True):
        (loss(model(some), one) * (len(some) / 8)).backward()
    optimizer.step()


def in_float32(x: Tensor) -> Tensor:
    return x.softmax(-1, dtype=torch.float32).to(x.dtype) * x


def in_its_own(x: Tensor) -> Tensor:
    return x.softmax(-1).to(x.dtype) * x


def of_float32(x: Tensor) -> Tensor:
    return x.float().softmax(-1).to(x.dtype) * x


def smoothed(words: int) -> Loss:
    """What is taken from the label is shared among so many words."""

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        log = logits.log_softmax(-1)
        share = torch.full_like(log, 0.1 / words)
        kept = 0.9 if words < NUM_CLASSES else 0.9 + 0.1 / words
        return -(share.scatter(1, labels[:, None], kept) * log).sum(-1).mean()

    return loss


def test_a_softmax_in_a_coarse_dtype_is_open(tmp_path: Path) -> None:
    found = verdict(tmp_path, in_its_own, in_float32)
    assert (found.outcome, found.headline.code) == (Outcome.UNDECIDED, VerdictCode.OTHER_ARGUMENT)
    assert found.numbers_agree
    facts = found.headline.facts
    assert (facts["call"], facts["module"], facts["name"]) == ("softmax", "1", "dtype")
    assert (facts["target"], facts["reference"]) == ("'bfloat16'", "'float32'")
    assert found.next is not None
    assert found.next.code is NextCode.ALIGN_ARGUMENT
    assert found.evidence[0].code is EvidenceCode.ARGUMENTS_DIFFER


def test_smoothing_that_is_shared_among_one_word_less_is_open(tmp_path: Path) -> None:
    losses = smoothed(NUM_CLASSES - 1), smoothed(NUM_CLASSES)
    found = verdict(tmp_path, F.silu, F.silu, losses=losses)
    assert (found.outcome, found.headline.code) == (Outcome.UNDECIDED, VerdictCode.OTHER_ARGUMENT)
    assert (found.headline.facts["call"], found.headline.facts["module"]) == ("full_like", None)


def capped(x: Tensor) -> Tensor:
    return 30 * torch.tanh(x / 30)


def as_it_is(x: Tensor) -> Tensor:
    return x * 1.0


def by_hand(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def out_and_back(x: Tensor) -> Tensor:
    return x / 4 * 4


@pytest.mark.parametrize("lacking", ["target", "reference"])
def test_softcapping_of_small_numbers_is_open(lacking: str, tmp_path: Path) -> None:
    """It changes them by x^3 / 2700, less than bfloat16 rounds; of grown numbers it is another training."""
    formulas = (as_it_is, capped) if lacking == "target" else (capped, as_it_is)
    found = verdict(tmp_path, *formulas)
    assert (found.outcome, found.headline.code) == (Outcome.UNDECIDED, VerdictCode.OTHER_ARGUMENT)
    facts, counts = found.headline.facts, ("0", "1") if lacking == "target" else ("1", "0")
    assert (facts["call"], facts["module"], facts["name"]) == ("tanh", "1", NUM_CALLS)
    assert (facts["target"], facts["reference"]) == counts


@pytest.mark.parametrize(
    "pair",
    [
        (out_and_back, as_it_is),  # factors alone
        (lambda x: F.gelu(x, approximate="tanh"), by_hand),  # the same by other functions
        (capped, lambda x: x * torch.tanh(x / 30) / (x / 30)),  # on both sides
    ],
    ids=["factors", "by hand", "both"],
)
def test_functions_of_one_side_that_bend_nothing_say_nothing(
    pair: tuple[Formula, Formula], tmp_path: Path
) -> None:
    found = verdict(tmp_path, *pair)
    assert found.headline.facts.get("name") != NUM_CALLS


def test_calls_that_were_captured_with_values_are_judged_alike(tmp_path: Path) -> None:
    found = verdict(tmp_path, in_its_own, in_float32, options={"level": "mix"})
    assert found.headline.code in (VerdictCode.OTHER_ARGUMENT, VerdictCode.RESULT_IN, VerdictCode.COMPUTES_IN)


def over(x: Tensor, **given: Any) -> Tensor:
    return F.scaled_dot_product_attention(x.view(2, 4, 16), x.view(2, 4, 16), x.view(2, 4, 16), **given).view(
        8, 16
    )


BENIGN: dict[str, tuple[Formula, Formula]] = {
    "a cast in place of a dtype": (of_float32, in_float32),
    "a dim from the other end": (lambda x: x.softmax(-1), lambda x: x.softmax(1)),
    "a dim in a list": (lambda x: x - x.mean((1,), True), lambda x: x - x.mean(1, True)),
    "keepdim": (lambda x: x - x.mean(-1, keepdim=True), lambda x: x - x.mean(-1)[:, None]),
    "a default": (lambda x: F.leaky_relu(x), lambda x: F.leaky_relu(x, 0.01, inplace=False)),
    "an eps that is one number": (
        lambda x: F.layer_norm(x, (16,), eps=1e-5),
        lambda x: F.layer_norm(x, (16,), eps=9.99999974e-6),
    ),
    "in place": (lambda x: F.silu(x.clone(), inplace=True), lambda x: F.silu(x.clone())),
    "masks that both hide": (
        lambda x: x.masked_fill(x > 0, -1e9).softmax(-1),
        lambda x: x.masked_fill(x > 0, torch.finfo(torch.bfloat16).min).softmax(-1),
    ),
    "a scale that is the default": (lambda x: over(x, scale=0.25, dropout_p=0.0), lambda x: over(x)),
    "a mask for a flag": (
        lambda x: over(x, attn_mask=torch.ones(4, 4, dtype=torch.bool).tril()),
        lambda x: over(x, is_causal=True),
    ),
    "dropout that is off": (
        lambda x: F.dropout(x, 0.5, training=False),
        lambda x: F.dropout(x, 0.1, training=False),
    ),
    "other views": (lambda x: x.view(4, 32).view(8, 16), lambda x: x.view(2, 64).view(8, 16)),
    "a scale of the loss": (
        lambda x: x * torch.full((), 4096.0) * (1 / 4096),
        lambda x: x * torch.full((), 2048.0) * (1 / 2048),
    ),
    "factors of one product": (lambda x: (x * 0.5) * 2.0, lambda x: (x * 2.0) * 0.5),
    "other functions": (F.relu6, lambda x: x.clamp(0, 6)),
    "sizes": (
        lambda x: x * torch.ones(64, dtype=x.dtype)[:16],
        lambda x: x * torch.ones(32, dtype=x.dtype)[:16],
    ),
}


@pytest.mark.parametrize("pair", BENIGN.values(), ids=BENIGN)
def test_what_has_no_effect_says_nothing(pair: tuple[Formula, Formula], tmp_path: Path) -> None:
    assert verdict(tmp_path, *pair).outcome is Outcome.AGREE


NEAR: dict[str, tuple[Formula, Formula]] = {
    "an eps": (lambda x: F.layer_norm(x, (16,), eps=1e-5), lambda x: F.layer_norm(x, (16,), eps=1.01e-5)),
    "a bound": (lambda x: x.clamp(min=-50), lambda x: x.clamp(min=-60)),
    "an eps that is left to the framework": (
        lambda x: F.rms_norm(x, (16,)),
        lambda x: F.rms_norm(x, (16,), eps=1e-6),
    ),
    "a mask that shows": (
        lambda x: x.masked_fill(x > 9, -20.0).softmax(-1),
        lambda x: x.masked_fill(x > 9, -30.0).softmax(-1),
    ),
    "a scale that is no power of two": (
        lambda x: x * torch.full((), 3.0) * (1 / 3),
        lambda x: x * torch.full((), 5.0) * (1 / 5),
    ),
    "factors of another product": (lambda x: (x * 0.5) * 2.0, lambda x: (x * 2.0) * 0.50001),
    "a dropout's rate that is on": (lambda x: F.dropout(x, 0.0), lambda x: F.dropout(x, 1e-9)),
}


@pytest.mark.parametrize("pair", NEAR.values(), ids=NEAR)
def test_what_may_have_an_effect_is_open(pair: tuple[Formula, Formula], tmp_path: Path) -> None:
    found = verdict(tmp_path, *pair)
    assert (found.outcome, found.headline.code) == (Outcome.UNDECIDED, VerdictCode.OTHER_ARGUMENT)


def test_its_own_dtype_is_no_other_dtype(tmp_path: Path) -> None:
    assert verdict(tmp_path, in_its_own, in_float32, dtype=torch.float32).outcome is Outcome.AGREE


def test_a_sum_that_is_divided_is_a_mean(tmp_path: Path) -> None:
    def summed(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits.float(), labels, reduction="sum") / len(labels)

    def averaged(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits.float(), labels, reduction="mean") / 1

    assert verdict(tmp_path, F.silu, F.silu, losses=(summed, averaged)).outcome is Outcome.AGREE


def test_other_microbatches_are_other_sizes(tmp_path: Path) -> None:
    found = verdict(tmp_path, in_its_own, in_float32, rows=(4, 8))
    assert found.headline.code is not VerdictCode.OTHER_ARGUMENT


def test_equal_bits_are_proof(tmp_path: Path) -> None:
    for name, bound in (("target", 50.0), ("reference", 60.0)):
        with trueup.Tracer(tmp_path / name, **OPTIONS):
            formula: Formula = lambda x, most=bound: x.clamp(max=most)  # noqa: E731
            train(formula, mean_loss, 8, halves=False, dtype=torch.bfloat16)
    comparison = compare(tmp_path / "target", tmp_path / "reference")
    assert comparison.verdict.outcome is Outcome.AGREE
    assert not any(note.has(EvidenceCode.ARGUMENTS_DIFFER) for note in comparison.content.notes)
    assert not any(note.code is NoteCode.PROGRAMS_DIFFER for note in comparison.content.notes)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (0.1, 0.1 * (1 + 1e-8), True),
        (0.1, 0.1 * (1 + 1e-6), False),
        (float("nan"), float("nan"), True),
        (float("nan"), 1.0, False),
        (float("-inf"), -65504.0, True),
        (float("-inf"), -100.0, False),
        (1, True, True),
        (float("inf"), 3.0, False),
    ],
)
def test_one_number(one: float, other: float, same: bool) -> None:
    assert is_one_number(one, other) is same
