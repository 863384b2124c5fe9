"""A loss worked out again: of which tokens, over what, in which precision, and what a replay holds it to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.diagnosing.cases import case, normal, pair, tells
from tests.diagnosing.diagnosed import Program, capture, diagnosed
from trueup.comparing.losses.cross_entropy import reproduced
from trueup.diagnosing.evidence import Surroundings
from trueup.diagnosing.kinds import name_kinds
from trueup.diagnosing.optimizer_fit import fit_update
from trueup.types.codes.kinds import KindReason
from trueup.types.finding import Stage

pytestmark = pytest.mark.torch

LOGITS = normal(6, 8, 50, seed=3) * 3
LABELS = torch.randint(0, 50, (6, 8), generator=torch.Generator().manual_seed(4))
LABELS[0, :5] = -100
MASK = (torch.arange(48).view(6, 8) % 3 > 0).float()
OVER = torch.tensor(37.0)


def loss(*, dtype: torch.dtype | None = None, smoothing: float = 0.0) -> Tensor:
    """Over the tokens of a mask, by a number that is given."""
    scores = LOGITS if dtype is None else F.log_softmax(LOGITS.to(dtype), -1).float()
    if dtype is not None:
        picked = scores.gather(-1, LABELS.clamp(min=0)[..., None]).squeeze(-1)
        return -(picked * MASK * (LABELS >= 0)).sum() / OVER
    each = F.cross_entropy(
        scores.flatten(0, 1), LABELS.flatten(), reduction="none", label_smoothing=smoothing
    )
    return (each.view(6, 8) * MASK).sum() / OVER


def test_means_sums_masks_and_numbers_are_found() -> None:
    flat = LOGITS.flatten(0, 1)
    given = {"labels": LABELS.numpy(), "ignore_index": -100}
    for value in (
        F.cross_entropy(flat, LABELS.flatten()),
        F.cross_entropy(flat, LABELS.flatten(), reduction="sum"),
    ):
        assert reproduced(float(value), LOGITS.double().numpy(), **given) is not None
    assert reproduced(float(loss()), LOGITS.double().numpy(), **given) is None
    more = {"masks": [MASK.double().numpy()], "numbers": [37.0]}
    found = reproduced(float(loss()), LOGITS.double().numpy(), **given, **more)
    assert found is not None
    assert found.loss == pytest.approx(float(loss()), rel=1e-6)
    assert reproduced(float(loss(smoothing=0.01)), LOGITS.double().numpy(), **given, **more) is None
    assert reproduced(float(loss()) * (1 + 2e-5), LOGITS.double().numpy(), **given, **more) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_dtype_of_the_log_probabilities_is_named(dtype: torch.dtype) -> None:
    inputs = [LOGITS.to(dtype), LABELS, MASK, OVER]
    around = Surroundings(
        module="criterion", inputs=tuple(pair(f"input.{n}", value) for n, value in enumerate(inputs))
    )
    exact = F.cross_entropy(inputs[0].float().flatten(0, 1), LABELS.flatten(), reduction="none")
    reference = (exact.view(6, 8) * MASK).sum() / OVER
    found = name_kinds(case(loss(dtype=dtype), reference, module="criterion", surroundings=around))
    assert found[0].name == "dtype_or_rounding"
    assert tells(found[0].sentence, KindReason.ROUNDED_LOSS, dtype=str(dtype).removeprefix("torch."))
    other = name_kinds(case(reference * 1.01, reference, module="criterion", surroundings=around))
    assert not any(tells(kind.sentence, KindReason.ROUNDED_LOSS) for kind in other)


class Criterion(torch.nn.Module):
    """Cross-entropy, its logits cast up before the softmax, or not."""

    def __init__(self, *, upcast: bool) -> None:
        super().__init__()
        self.wide: Callable[[Tensor], Tensor] = Tensor.float if upcast else Tensor.contiguous

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        rows = F.log_softmax(self.wide(logits), -1).flatten(0, 1)
        return F.nll_loss(rows.float(), labels.flatten())


def program(*, upcast: bool) -> Program:
    """A bfloat16 model, whose rounding is a hundred times what a loss in bfloat16 changes."""

    class Whole(torch.nn.Module):
        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__()
            self.model, self.criterion = model, Criterion(upcast=upcast)

        def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
            result: Tensor = self.criterion(self.model(ids), labels)
            return result

    whole: list[Whole] = []

    def loss_of(model: torch.nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
        whole.append(whole[0] if whole else Whole(model))
        result: Tensor = whole[0](ids, labels)
        return result

    return {"change": lambda model: model.bfloat16(), "loss": loss_of}


def test_a_loss_in_bfloat16_is_found_below_the_rounding_of_its_logits(tmp_path: Path) -> None:
    trusted = capture(tmp_path / "reference", program(upcast=True))
    found = diagnosed(tmp_path / "same", trusted, program(upcast=True), replay=True)
    assert not found.findings
    found = diagnosed(tmp_path / "coarse", trusted, program(upcast=False), replay=True)
    assert found.verdict is not None
    assert (found.verdict.stage, found.verdict.module) == (Stage.FORWARD, "criterion"), found.headline
    assert found.verdict.kinds[0].name == "dtype_or_rounding"


def test_a_weight_of_ones_whose_decay_and_rate_are_one_direction() -> None:
    ones = np.ones(32)
    fit = fit_update(-1.1e-3 * ones, ones, ones, noise=1e-9)
    assert fit is not None
    assert fit.rate.error == np.inf
    assert fit.pull.error == np.inf
