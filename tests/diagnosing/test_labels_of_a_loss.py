"""Labels that a loss counts elsewhere, and what a sum over tokens is divided by: each with its near miss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.diagnosing.cases import case
from trueup.diagnosing.evidence import RunFacts
from trueup.diagnosing.evidence.facts import LossFacts
from trueup.diagnosing.kinds import criterion, loss_divisor
from trueup.diagnosing.loss_form import LossForm
from trueup.types.codes.kinds import CauseCode, KindReason
from trueup.types.finding import Stage

ROWS, LENGTH, WORDS = 3, 12, 20
LABELS = np.random.default_rng(5).integers(0, WORDS, (ROWS, LENGTH))
COUNTED = np.ones((ROWS, LENGTH), bool)
COUNTED[:, :4] = False
COUNTED[1, 9:] = COUNTED[2, 10:] = False


def sent(shift: int, *, longer: int = 0, other: bool = False) -> Any:
    """What cross-entropy sends back to logits that do not matter: each position counts with the label
    ``shift`` positions on; ``longer``: so many more positions of the prompt count."""
    gradient = np.zeros((ROWS, LENGTH, WORDS))
    counted = COUNTED.copy()
    counted[:, 4 - longer : 4] = True
    labels = np.random.default_rng(6).integers(0, WORDS, LABELS.shape) if other else LABELS
    for row in range(ROWS):
        for at in range(LENGTH):
            of = at + shift
            if of < LENGTH and counted[row, of]:
                gradient[row, at] = 1 / WORDS
                gradient[row, at, labels[row, of]] -= 1
    return gradient


@pytest.mark.parametrize(
    ("target", "reference", "shift"),
    [
        (sent(0), sent(1), 1),
        (sent(1), sent(0), -1),
        (sent(2), sent(1), -1),
        (sent(2), sent(0), -2),
        (sent(1, longer=2), sent(1), None),
        (sent(0, other=True), sent(1), None),
    ],
    ids=["not shifted", "shifted in one alone", "twice", "by two", "a longer mask", "other labels"],
)
def test_labels_that_lie_elsewhere(target: Any, reference: Any, shift: int | None) -> None:
    runs = {
        "target_run": RunFacts(sent_back={0: target}),
        "reference_run": RunFacts(sent_back={0: reference}),
    }
    evidence = case(np.array(1.0), np.array(1.2), phase="loss", slot="value", module="", **runs)
    assert evidence.origin.stage is Stage.LOSS
    found = criterion._other_positions(evidence)
    assert found is not None
    sentence = found.found.sentence
    if shift is None:
        assert sentence.code is KindReason.SENT_TO_OTHER_POSITIONS
    else:
        assert (sentence.code, sentence.number("shift")) == (KindReason.LABELS_SHIFTED, shift)
        assert found.found.causes == (CauseCode.SHIFTED_TWICE_OR_NEVER,)


def of_losses(factor: float, *, kept: bool) -> RunFacts:
    """Two losses of 24 tokens, times a factor; ``kept``: with the gradients that they send back."""
    losses = {
        m: LossFacts(value=factor * (2.0 + m), counted=24, positions=24, rows=3, steepest=factor * 0.04)
        for m in range(2)
    }
    gradient = np.full((3, 8, WORDS), factor * 0.01)
    return RunFacts(losses=losses, sent_back=dict.fromkeys(losses, gradient) if kept else {})


@pytest.mark.parametrize("kept", [True, False])
def test_a_loss_that_is_no_sum_over_tokens_names_no_divisor(kept: bool) -> None:
    runs = {"target_run": of_losses(0.5, kept=kept), "reference_run": of_losses(1.0, kept=kept)}
    evidence = case(np.array(1.0), np.array(2.0), phase="loss", slot="value", module="", **runs)
    assert (loss_divisor.divided_otherwise(evidence) is None) is kept


def smoothed(smoothing: float, ignored: float) -> RunFacts:
    """A loss of 24 of 36 positions; the others are smoothed by ``ignored``."""
    form = LossForm(
        divisor=24.0,
        smoothing=smoothing,
        smoothing_error=1e-6,
        z_loss=0.0,
        z_loss_error=1e-6,
        ignored_smoothing=ignored,
    )
    facts = LossFacts(value=2.0, counted=24, positions=36, rows=3, steepest=None, form=form)
    gradient = sent(1)
    if ignored:
        gradient[:, :3] = 1 / WORDS
    return RunFacts(losses={0: facts}, sent_back={0: gradient})


@pytest.mark.parametrize(
    ("target", "reference", "side", "code"),
    [
        ((0.1, 0.1), (0.0, 0.0), "target", KindReason.SMOOTHED_IGNORED),
        ((0.1, 0.1), (0.1, 0.0), "target", KindReason.SMOOTHED_IGNORED),
        ((0.1, 0.0), (0.1, 0.1), "reference", KindReason.SMOOTHED_IGNORED),
        ((0.1, 0.1), (0.1, 0.1), None, None),
        ((0.1, 0.0), (0.0, 0.0), None, KindReason.LABEL_SMOOTHING),
    ],
    ids=["added", "not masked", "masked", "alike", "of labels that count"],
)
def test_label_smoothing_of_ignored_positions(
    target: tuple[float, float], reference: tuple[float, float], side: str | None, code: KindReason | None
) -> None:
    runs = {"target_run": smoothed(*target), "reference_run": smoothed(*reference)}
    evidence = case(np.array(1.0), np.array(1.2), phase="loss", slot="value", module="", **runs)
    found = criterion.criterion_fault(evidence)
    assert (None if found is None else found.found.sentence.code) is code
    if side is not None:
        assert found is not None
        said = found.found.sentence
        assert (said.place("side"), said.number("ignored")) == (side, 0.1)


def kinds_of(target: Any, reference: Any, **given: Any) -> Any:
    """What is said of a loss whose gradients are these."""
    runs = {
        "target_run": RunFacts(sent_back={0: target}),
        "reference_run": RunFacts(sent_back={0: reference}),
    }
    place = {"phase": "loss", "slot": "value", "module": "", **given}
    return criterion.criterion_fault(case(np.array(1.0), np.array(1.2), **place, **runs))


def without(gradient: Any, chosen: Any) -> Any:
    return np.where(chosen[..., None], 0.0, gradient)


def test_a_label_that_one_loss_ignores() -> None:
    whole = sent(0)
    labels = whole.argmin(axis=-1)
    live = np.abs(whole).max(axis=-1) > 0
    values, counts = np.unique(labels[live], return_counts=True)
    label = int(values[counts.argmax()])
    chosen = live & (labels == label)
    many = np.tile(whole, (4, 1, 1)), np.tile(without(whole, chosen), (4, 1, 1))
    for at, side in ((1, "target"), (0, "reference")):
        found = kinds_of(many[at], many[1 - at])
        assert found is not None
        sentence = found.found.sentence
        assert (sentence.code, sentence.number("label")) == (KindReason.LABEL_IGNORED, label)
        assert sentence.place("side") == side
        assert found.found.causes == (CauseCode.IGNORE_INDEX,)


def test_positions_of_several_labels_are_a_mask() -> None:
    whole = sent(0)
    chosen = np.zeros(whole.shape[:2], bool)
    chosen[:, 4:7] = True
    found = kinds_of(whole, without(whole, chosen))
    assert found is not None
    assert found.found.sentence.code is KindReason.SENT_TO_OTHER_POSITIONS


def test_positions_that_a_clipped_ratio_leaves_out_are_no_mask() -> None:
    """Each position that counts in both runs has a weight of its own; one a row is that of its length."""
    whole = sent(0)
    chosen = np.zeros(whole.shape[:2], bool)
    chosen[:, 4:7] = True
    ratios = np.random.default_rng(5).uniform(0.8, 1.2, whole.shape[:2])
    codes = []
    for weights in (ratios, np.broadcast_to(ratios[:, :1], ratios.shape)):
        found = kinds_of(whole, without(whole, chosen) * weights[..., None].astype(np.float32))
        codes.append(None if found is None else found.found.sentence.code)
    assert codes[0] is not KindReason.SENT_TO_OTHER_POSITIONS
    assert codes[1] is KindReason.SENT_TO_OTHER_POSITIONS


def test_a_loss_inside_the_model_is_looked_at() -> None:
    whole = sent(0)
    chosen = np.zeros(whole.shape[:2], bool)
    chosen[:, 4:7] = True
    inside = kinds_of(whole, without(whole, chosen), phase="forward", slot="output.1")
    assert inside is not None
    assert kinds_of(whole, without(whole, chosen), phase="forward", slot="output.1", module="head") is None


def test_a_loss_without_log_softmax() -> None:
    draw = np.random.default_rng(2)
    logits = draw.normal(size=(ROWS, LENGTH, WORDS))
    chances = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    one_hot = np.eye(WORDS)[LABELS]
    normalised, plain, each = chances - one_hot, -one_hot, 1 / (1 + np.exp(-logits)) - one_hot
    for other in (plain, each):
        found = kinds_of(other, normalised)
        assert found is not None
        assert found.found.sentence.code is KindReason.LOSS_NOT_NORMALISED
        assert found.found.sentence.place("side") == "target"
        assert found.found.causes == (CauseCode.LOG_SOFTMAX,)
    hotter = np.exp(2 * logits) / np.exp(2 * logits).sum(-1, keepdims=True) - one_hot
    assert kinds_of(hotter, normalised) is None
    assert kinds_of(plain, each) is None
