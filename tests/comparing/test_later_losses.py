"""Losses of steps that were not captured, after captured steps that agree."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn  # noqa: E402

import trueup  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.comparing.scalars import ScalarPair, batches_again, later_batches  # noqa: E402
from trueup.types.codes import EvidenceCode, NextCode, VerdictCode  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402


def two_optimizers(
    folder: Path, *, clears: bool = True, written: str = "product", steps: str = "0-1"
) -> Path:
    """Two models that are trained alternately: the second one's loss leaves gradients in the first, too."""
    torch.manual_seed(0)
    first, second = nn.Linear(6, 6), nn.Linear(6, 6)
    updaters = [torch.optim.SGD(one.parameters(), 0.1) for one in (first, second)]
    with trueup.Tracer(folder, level="L0", steps=steps):
        for _ in range(3):
            x = torch.randn(4, 6)
            if clears:
                updaters[0].zero_grad()
            made = first(x)
            (made * made if written == "product" else made.square()).mean().backward()
            updaters[0].step()
            updaters[1].zero_grad()
            first(second(x)).square().mean().backward()
            updaters[1].step()
    return folder


def test_captured_steps_that_agree_do_not_speak_for_later_ones(tmp_path: Path) -> None:
    reference = two_optimizers(tmp_path / "reference")
    verdict = compare(two_optimizers(tmp_path / "target", clears=False), reference).verdict
    assert (verdict.outcome, verdict.headline.code) == (Outcome.DIFFER, VerdictCode.LOSS_DIFFERS_LATER)
    assert verdict.next is not None
    assert (verdict.next.code, verdict.next.number("step")) == (NextCode.CAPTURE_STEPS, verdict.step)
    again = two_optimizers(tmp_path / "benign", written="square")
    assert compare(again, reference).verdict.outcome is Outcome.AGREE


def test_the_steps_it_names_show_the_cause(tmp_path: Path) -> None:
    runs = [two_optimizers(tmp_path / name, clears=name == "b", steps="2-3") for name in ("a", "b")]
    assert compare(*runs).verdict.headline.code is not VerdictCode.LOSS_DIFFERS_LATER


def changed_in_the_third(folder: Path, times: float) -> Path:
    """Two captured steps, and a third whose loss is multiplied."""
    torch.manual_seed(0)
    model = nn.Linear(6, 6)
    updater = torch.optim.SGD(model.parameters(), 0.1)
    with trueup.Tracer(folder, level="L0", steps="0-1"):
        for step in range(3):
            updater.zero_grad()
            loss = model(torch.randn(4, 6)).square().mean()
            (loss * times if step == 2 else loss).backward()
            updater.step()
    return folder


@pytest.mark.parametrize(("times", "differs"), [(1 + 3e-5, True), (1 + 4e-7, False)])
def test_after_equal_bits_less_is_a_difference(tmp_path: Path, times: float, differs: bool) -> None:
    reference = changed_in_the_third(tmp_path / "reference", 1.0)
    verdict = compare(changed_in_the_third(tmp_path / "target", times), reference).verdict
    assert (verdict.headline.code is VerdictCode.LOSS_DIFFERS_LATER) is differs


# -- batches of steps that were not captured -----------------------------


def read_in_order(folder: Path, order: str, times: float = 1.0) -> Path:
    """Batches by their letters, of which the first two steps are captured; the third loss is multiplied."""
    torch.manual_seed(0)
    model = nn.Linear(6, 6)
    updater = torch.optim.SGD(model.parameters(), 0.1)
    batches = {letter: torch.randn(4, 6) for letter in "abcd"}
    with trueup.Tracer(folder, level="L0", steps="0-1"):
        for step, letter in enumerate(order):
            updater.zero_grad()
            loss = model(batches[letter]).square().mean()
            (loss * times if step == 2 else loss).backward()
            updater.step()
    return folder


@pytest.mark.parametrize(
    ("order", "again"), [("aba", ("target", 0)), ("abb", ("target", 1)), ("abd", None), ("abc", None)]
)
def test_a_later_loss_of_another_batch(order: str, again: tuple[str, int] | None, tmp_path: Path) -> None:
    reference = read_in_order(tmp_path / "reference", "abc")
    same = order == "abc"  # the twin: the loss alone differs
    verdict = compare(read_in_order(tmp_path / "target", order, 1.1 if same else 1.0), reference).verdict
    code = VerdictCode.LOSS_DIFFERS_LATER if same else VerdictCode.LATER_BATCH_DIFFERS
    assert (verdict.headline.code, verdict.step) == (code, 2)
    said = [one for one in verdict.evidence if one.code is EvidenceCode.BATCH_AGAIN]
    assert [(one.place("side"), one.number("of")) for one in said] == ([again] if again else [])


def digests(target: str, reference: str, rank: int = 0) -> list[ScalarPair]:
    pairs = enumerate(zip(target, reference, strict=True))
    return [
        ScalarPair(rank=rank, step=at, name="batch_digest", target=a, reference=b, beyond=a != b)
        for at, (a, b) in pairs
    ]


@pytest.mark.parametrize(
    ("scalars", "ranks", "again"),
    [
        (digests("aba", "abc"), [0], ("target", 0)),
        (digests("abc", "abb"), [0], ("reference", 1)),
        (digests("aba", "abb"), [0], None),  # each its own
        (digests("xya", "abc"), [], None),  # another dtype of inputs, from the first step on
        (digests("a", "b") * 2, [], None),
        (digests("abc", "abc") + digests("abx", "aby", rank=1)[2:], [1], None),
    ],
)
def test_batches_are_others_after_equal_ones(
    scalars: list[ScalarPair], ranks: list[int], again: tuple[str, int] | None
) -> None:
    apart = later_batches(scalars, 2)
    assert [one.rank for one in apart] == ranks
    assert batches_again(scalars, apart) == again
