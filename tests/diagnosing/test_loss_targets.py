"""Targets of a loss that differ, and how they were made of the reference's; each law with a near miss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.comparing.losses.divergence import class_rows  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.diagnosing.stages.loss_targets import class_relation, combined, is_spread  # noqa: E402
from trueup.types.arrays import Floats  # noqa: E402
from trueup.types.codes import BatchCode as Batches  # noqa: E402
from trueup.types.codes import VerdictCode  # noqa: E402
from trueup.types.codes.kinds import CauseCode  # noqa: E402
from trueup.types.finding import Stage  # noqa: E402
from trueup.types.reason import Reason  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402

if TYPE_CHECKING:
    from trueup.diagnosing.diagnosis import Diagnosis

EPS = 2.0**-24
ROWS, CLASSES = 12, 10
RNG = np.random.default_rng(3)
LOGITS = RNG.standard_normal((ROWS, CLASSES)) * 3
HARD = np.eye(CLASSES)[RNG.permutation(ROWS) % CLASSES]
PARTNERS = HARD[np.arange(ROWS)[::-1]]
OTHERS = np.roll(HARD, 1, axis=0)


def softmax(logits: Floats) -> Floats:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def rounded(values: Floats) -> Floats:
    return values.astype(np.float32).astype(np.float64)


def mixed(share: float, partners: Floats = PARTNERS) -> Floats:
    return np.asarray(share * HARD + (1 - share) * partners)


def related(target: Floats, reference: Floats) -> Batches | None:
    own, other = (class_rows(rounded(side), EPS) for side in (target, reference))
    assert own is not None
    assert other is not None
    found = class_relation(own, other, EPS)
    return None if found is None else Batches(found.code)


@pytest.mark.parametrize(
    ("target", "reference", "relation"),
    [
        (0.9 * HARD + 0.1 / CLASSES, HARD, Batches.TARGETS_SMOOTHED),
        (mixed(0.3), 0.8 * mixed(0.3) + 0.2 / CLASSES, Batches.TARGETS_SMOOTHED),
        (0.9 * HARD + 0.1 * np.eye(CLASSES)[0], HARD, Batches.TARGETS_MIXED),  # spread over one class alone
        (softmax(LOGITS), softmax(LOGITS / 2), Batches.TARGETS_OF_TEMPERATURE),
        (softmax(LOGITS), softmax(LOGITS / 2 + 1e-3 * RNG.standard_normal(LOGITS.shape)), None),
        (softmax(LOGITS), softmax(LOGITS**3), None),
        (HARD, mixed(0.3), Batches.TARGETS_MIXED),
        (0.9 * HARD + 0.01, 0.9 * mixed(0.3) + 0.01, Batches.TARGETS_MIXED),
        (0.9 * mixed(0.7) + 0.01, 0.9 * mixed(0.3) + 0.01, Batches.TARGETS_WEIGHTED),
        (mixed(0.3), HARD, Batches.TARGETS_MIXED),
        (mixed(0.3), mixed(0.7), Batches.TARGETS_WEIGHTED),
        (mixed(0.3), mixed(0.3, OTHERS), Batches.TARGETS_PARTNERS),
        (mixed(0.3), mixed(0.7, OTHERS), None),
        (HARD, OTHERS, None),
    ],
)
def test_soft_labels(target: Floats, reference: Floats, relation: Batches | None) -> None:
    assert related(target, reference) is relation


@pytest.mark.parametrize("values", [LOGITS, softmax(LOGITS) * 1.001, HARD[:, :2], HARD[0]])
def test_no_rows_of_classes(values: Floats) -> None:
    assert class_rows(values, EPS) is None


SHAPE = (6, 3, 5)
CLEAN, NOISE = RNG.standard_normal(SHAPE) * 0.5, RNG.standard_normal(SHAPE)
LEVEL = RNG.uniform(0.1, 0.9, (SHAPE[0], 1, 1))
A, B = np.sqrt(1 - LEVEL), np.sqrt(LEVEL)
NOISY, VELOCITY = A * CLEAN + B * NOISE, A * NOISE - B * CLEAN
ON_LINE, FLOW = (1 - LEVEL) * CLEAN + LEVEL * NOISE, NOISE - CLEAN


@pytest.mark.parametrize(
    ("target", "reference", "given", "law"),
    [
        (VELOCITY, NOISE, NOISY, "velocity_noise"),
        (VELOCITY, CLEAN, NOISY, "velocity_sample"),
        (NOISE, VELOCITY, NOISY, "of_velocity_noise"),
        (CLEAN, VELOCITY, NOISY, "of_velocity_sample"),
        (CLEAN, NOISE, NOISY, "noise_or_sample"),
        (NOISE, CLEAN, NOISY, "noise_or_sample"),
        (FLOW, NOISE, ON_LINE, "flow_velocity_noise"),
        (FLOW, CLEAN, ON_LINE, "flow_velocity_sample"),
        (NOISE, FLOW, ON_LINE, "of_flow_velocity_noise"),
        (CLEAN, FLOW, ON_LINE, "of_flow_velocity_sample"),
        (CLEAN, NOISE, ON_LINE, "flow_noise_or_sample"),
        (2 * NOISE - 3 * NOISY, NOISE, NOISY, ""),  # a combination of no diffusion model
    ],
)
def test_what_a_diffusion_model_predicts(target: Floats, reference: Floats, given: Floats, law: str) -> None:
    found = combined(*map(rounded, (target, reference, given)), "0", EPS)
    assert found is not None
    assert (found.code, found.facts["law"]) == (Batches.TARGETS_COMBINED, law)


@pytest.mark.parametrize(
    "target",
    [
        NOISE * 0.5,  # nothing of the input in it
        VELOCITY + 1e-4 * RNG.standard_normal(SHAPE),
        RNG.standard_normal(SHAPE),
        VELOCITY[::-1],
    ],
)
def test_no_combination(target: Floats) -> None:
    assert combined(*map(rounded, (target, NOISE, NOISY)), "0", EPS) is None


def test_two_factors_explain_few_numbers_by_chance() -> None:
    few = [rounded(RNG.standard_normal((4, 2))) for _ in range(3)]
    assert combined(few[0], few[1], few[2], "0", EPS) is None


@pytest.mark.parametrize(
    ("wide", "narrow", "holds"),
    [
        (np.broadcast_to(np.arange(4.0), (4, 4)), np.arange(4.0)[:, None], True),
        (np.broadcast_to(np.arange(4.0)[:, None], (4, 4)), np.arange(4.0), True),
        (np.arange(16.0).reshape(4, 4), np.arange(4.0), False),
        (np.arange(4.0)[:, None], np.arange(4.0), False),  # of as many numbers
        (np.broadcast_to(np.arange(4.0), (4, 4)), np.arange(4.0) + 1, False),
    ],
)
def test_a_broadcast(wide: Floats, narrow: Floats, holds: bool) -> None:
    assert is_spread(wide, narrow) is holds


Made = Callable[[Tensor, Tensor], Tensor]


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(16, 24), nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(x).relu())


def run(folder: Path, targets: Made, loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy) -> Path:
    torch.manual_seed(0)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    draws = torch.Generator().manual_seed(1)
    with trueup.Tracer(
        folder, level="L0", steps="0-1", store_values_of={"module", "parameter", "labels", "configuration"}
    ):
        for _ in range(2):
            x, labels = (
                torch.randn(ROWS, 16, generator=draws),
                F.one_hot(torch.arange(ROWS) % CLASSES, CLASSES),
            )
            loss(model(x), targets(x, labels.float())).backward()
            optimizer.step()
            optimizer.zero_grad()
    return folder


def told_of(tmp_path: Path, target: Made, reference: Made) -> Diagnosis:
    return diagnose(run(tmp_path / "a", target), run(tmp_path / "b", reference), output=tmp_path / "out")


def flipped(x: Tensor, labels: Tensor) -> Tensor:
    return 0.3 * labels + 0.7 * labels.flip(0)


def plain(x: Tensor, labels: Tensor) -> Tensor:
    return labels


def test_targets_that_are_not_mixed(tmp_path: Path) -> None:
    first = told_of(tmp_path, plain, flipped).findings[0]
    assert (first.stage, first.headline.code) == (Stage.DATA, Batches.TARGETS_DIFFER)
    assert first.evidence[0].code is Batches.TARGETS_MIXED
    assert first.evidence[0].facts["side"] == "reference"
    assert first.causes == ()


@pytest.mark.parametrize("negative", ["both", "target"])
def test_labels_that_a_program_negates_are_the_same_labels(negative: str, tmp_path: Path) -> None:
    """``-t * log p`` keeps -t; a share that differs is said of t, and the two forms are one loss."""

    def own(outputs: Tensor, wanted: Tensor) -> Tensor:
        return torch.sum(-wanted * outputs.log_softmax(-1), -1).mean()

    def other(outputs: Tensor, wanted: Tensor) -> Tensor:
        return -(wanted * outputs.log_softmax(-1)).sum(-1).mean()

    reference_loss = own if negative == "both" else other
    reference = run(tmp_path / "b", flipped, reference_loss)
    target = run(tmp_path / "a", lambda x, labels: 0.4 * labels + 0.6 * labels.flip(0), own)
    first = diagnose(target, reference, output=tmp_path / "out").findings[0]
    assert first.evidence[0].code is Batches.TARGETS_WEIGHTED
    assert first.evidence[0].place("target_weights") == ("0.4", "0.6")
    assert compare(run(tmp_path / "c", flipped, own), reference).verdict.outcome is Outcome.AGREE


def test_targets_of_no_known_relation_have_usual_causes(tmp_path: Path) -> None:
    first = told_of(tmp_path, lambda x, labels: torch.rand(labels.shape).softmax(-1), flipped).findings[0]
    assert (first.stage, first.headline.code) == (Stage.DATA, Batches.TARGETS_DIFFER)
    assert [one.code for one in first.causes] == [CauseCode.TARGETS_MADE]


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_targets_that_are_broadcast(tmp_path: Path) -> None:
    def values(x: Tensor, labels: Tensor) -> Tensor:
        return x.sum(-1, keepdim=True)

    def of_one(outputs: Tensor, wanted: Tensor) -> Tensor:
        return F.mse_loss(outputs[:, :1], wanted)

    pair = (
        run(tmp_path / "a", lambda x, labels: values(x, labels)[:, 0], of_one),
        run(tmp_path / "b", values, of_one),
    )
    first = diagnose(*pair, output=tmp_path / "out").findings[0]
    assert (first.stage, first.headline.code) == (Stage.DATA, Batches.TARGETS_BROADCAST)
    assert (first.evidence[0].code, first.evidence[0].facts["side"]) == (Batches.TARGETS_SPREAD, "target")


def squares(outputs: Tensor, wanted: Tensor) -> Tensor:
    """As a program writes them, which keeps the target nowhere."""
    return ((wanted - outputs[:, : wanted.shape[-1]]) ** 2).flatten(1).sum(1).mean()


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda x, labels: labels.roll(1, 0), Batches.MOVED),
        (lambda x, labels: 0.5 * labels, Batches.SCALED),
        (lambda x, labels: torch.lerp(labels, x[:, :CLASSES], 0.2), None),
        (lambda x, labels: labels.clone(), Outcome.AGREE),
    ],
)
def test_targets_of_squares_that_a_program_writes(
    make: Callable[[Tensor, Tensor], Tensor], told: Batches | Outcome | None, tmp_path: Path
) -> None:
    drawn = torch.randn(ROWS, CLASSES, generator=torch.Generator().manual_seed(4))
    pair = (
        run(tmp_path / "a", lambda x, labels: make(x, drawn), squares),
        run(tmp_path / "b", lambda x, labels: drawn, squares),
    )
    found = diagnose(*pair, output=tmp_path / "out")
    if told is Outcome.AGREE:
        assert found.outcome is Outcome.AGREE
        return
    first = found.findings[0]
    assert (first.stage, first.headline.code) == (Stage.DATA, Batches.TARGETS_DIFFER)
    codes = [one.code for one in first.evidence]
    assert Batches.SQUARES in codes
    assert told is None or told in codes


def test_squares_that_are_broadcast(tmp_path: Path) -> None:
    def values(x: Tensor, labels: Tensor) -> Tensor:
        return x.sum(-1, keepdim=True)

    def of_one(outputs: Tensor, wanted: Tensor) -> Tensor:
        return (outputs[:, :1] - wanted).square().mean()

    pair = (
        run(tmp_path / "a", lambda x, labels: values(x, labels)[:, 0], of_one),
        run(tmp_path / "b", values, of_one),
    )
    findings = diagnose(*pair, output=tmp_path / "out").findings
    evidence = [one for finding in findings for one in finding.evidence]
    (averaged,) = [one for one in evidence if one.code is Batches.TARGETS_AVERAGED]
    assert averaged.place("side") == "target"


def test_targets_made_by_other_calls_agree(tmp_path: Path) -> None:
    same = told_of(tmp_path, lambda x, labels: torch.lerp(labels.flip(0), labels, 0.3), flipped)
    assert same.outcome is Outcome.AGREE


def test_compare_says_what_the_loss_is_made_with(tmp_path: Path) -> None:
    found = compare(run(tmp_path / "a", plain), run(tmp_path / "b", flipped), output=tmp_path / "out")
    assert found.verdict.headline.code is VerdictCode.LOSS_INPUT_DIFFERS
    assert found.verdict.headline.place("name") == "targets"


FOUR, ONES = torch.full((CLASSES,), 4.0), torch.ones(CLASSES)


def binary(**weights: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda outputs, wanted: F.binary_cross_entropy_with_logits(outputs, wanted, **weights)


@pytest.mark.parametrize(
    ("target", "reference", "headline"),
    [
        (binary(), binary(pos_weight=FOUR), {"name": "pos_weight", "side": "reference"}),
        (binary(weight=FOUR), binary(), {"name": "weight", "side": "target"}),
        (binary(pos_weight=FOUR), binary(pos_weight=FOUR + 1), {"name": "pos_weight"}),
        (binary(pos_weight=ONES), binary(), None),  # as good as none
        (binary(weight=FOUR), binary(weight=FOUR), None),
    ],
)
def test_weights_of_the_loss(
    target: Callable[[Tensor, Tensor], Tensor],
    reference: Callable[[Tensor, Tensor], Tensor],
    headline: dict[str, str] | None,
    tmp_path: Path,
) -> None:
    found = diagnose(
        run(tmp_path / "a", plain, target), run(tmp_path / "b", plain, reference), output=tmp_path / "out"
    )
    if headline is None:
        assert found.outcome is Outcome.AGREE
        return
    (first,) = found.findings
    assert (first.stage, first.headline.code) == (Stage.FORWARD, Batches.LOSS_WEIGHTED)
    assert {name: place for name, place in first.headline.facts.items() if place is not None} == headline
    assert first.evidence[0].code is Batches.LOSS_WEIGHTS
    assert first.next_note is not None
    assert first.next_note.code is Batches.CHECK_WEIGHTS


def weighted(weights: Tensor | None) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda outputs, wanted: F.cross_entropy(outputs, wanted.argmax(-1), weight=weights)


def test_weights_of_classes(tmp_path: Path) -> None:
    pair = (
        run(tmp_path / "a", plain, weighted(torch.arange(1.0, CLASSES + 1))),
        run(tmp_path / "b", plain, weighted(None)),
    )
    assert diagnose(*pair, output=tmp_path / "out").findings[0].headline.code is Batches.LOSS_WEIGHTED


def taught(folder: Path, layer: int, *, seed: int = 7) -> Path:
    """A student whose output is drawn to what one layer of a teacher returns."""
    torch.manual_seed(seed)
    teacher = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3))).eval()
    torch.manual_seed(1)
    student = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 6))
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(3)
    with trueup.Tracer(folder, level="L0", task="tensor", steps="0-1"):
        for _ in range(3):
            x = torch.randn(ROWS, 6, generator=data)
            with torch.no_grad():
                held = [x]
                for part in teacher:
                    held.append(part(held[-1]))
            F.mse_loss(student(x), held[layer]).backward()
            optimizer.step()
            optimizer.zero_grad()
    return folder


@pytest.mark.parametrize(("layer", "seed", "named"), [(2, 7, True), (1, 8, False)], ids=["layer", "weights"])
def test_targets_of_another_layer(tmp_path: Path, layer: int, seed: int, named: bool) -> None:
    """Other weights of the teacher make other targets at the same place."""
    pair = taught(tmp_path / "a", layer, seed=seed), taught(tmp_path / "b", 1)
    found = diagnose(*pair, output=tmp_path / "out").findings
    assert (Batches.TARGETS_OF_MODULES in [one.headline.code for one in found]) is named
    assert (found[0].next_note == Reason(Batches.CHECK_TARGETS)) is named
