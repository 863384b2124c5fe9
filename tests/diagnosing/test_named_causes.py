"""Causes that a diagnosis of two traces names, and what it must not say beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.diagnosing.diagnosis import Diagnosis  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.types.codes import BatchCode, ClippingCode, StagesCode, WeightsCode  # noqa: E402
from trueup.types.codes.kinds import KindReason  # noqa: E402

KEPT = frozenset({"module", "parameter", "labels", "configuration"})
PIXELS = torch.randn(6, 3, 5, 8, generator=torch.Generator().manual_seed(1))
WANTED = torch.randn(6, 3, 5, 8, generator=torch.Generator().manual_seed(2))
SEEN = torch.arange(5) < torch.tensor([5, 3, 4, 5, 2, 3])[:, None]


class Inner(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8, bias=bias)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        scores = x @ x.transpose(-1, -2)
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None, :], -torch.inf)
        return self.mix(scores.softmax(-1) @ x)


class Model(nn.Module):
    def __init__(self, without: str) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8, bias=without != "first.bias")
        self.inner, self.scale = Inner(without != "inner.mix.bias"), nn.Parameter(torch.ones(()))

    def forward(self, pixels: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        hidden = self.first(pixels)
        return self.scale * self.inner(hidden, attention_mask), hidden.square().mean()


def trained(folder: Path, **other: Any) -> Path:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Model(other.get("without", ""))
    make = other.get(
        "optimizer", lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.9, 0.98), weight_decay=0.1)
    )
    optimizer = make(model.parameters())
    with trueup.Tracer(folder, level="L0", steps="0-1", store_values_of=KEPT):
        for _ in range(2):
            given = {"attention_mask": SEEN} if other.get("mask", True) else {}
            made, size = model(other.get("pixels", PIXELS), **given)
            (other.get("loss", F.mse_loss)(made, WANTED) + other.get("weight", 0.01) * size).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.01, norm_type=other.get("norm_type", 2.0))
            optimizer.step()
            optimizer.zero_grad()
    return folder


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("reference") / "run")


def diagnosed(reference: Path, folder: Path, **other: Any) -> Diagnosis:
    return diagnose(trained(folder / "run", **other), reference, output=folder / "out")


def codes(diagnosis: Diagnosis) -> list[object]:
    return [finding.headline.code for finding in diagnosis.findings]


def test_the_norm_that_is_clipped_to(reference: Path, tmp_path: Path) -> None:
    diagnosis = diagnosed(reference, tmp_path, norm_type=float("inf"))
    assert codes(diagnosis)[0] is ClippingCode.NORM_TYPE
    assert diagnosis.findings[0].headline.place("side") == "target"
    assert [one.code for one in diagnosis.findings[0].causes] == [ClippingCode.NORM_TYPE_CAUSE]


def test_another_limit_of_the_same_norm_is_no_other_norm(reference: Path, tmp_path: Path) -> None:
    def half(parameters: Any) -> torch.optim.Optimizer:
        parameters = list(parameters)
        optimizer = torch.optim.AdamW(parameters, lr=0.01, betas=(0.9, 0.98), weight_decay=0.1)
        optimizer.register_step_pre_hook(lambda *_: nn.utils.clip_grad_norm_(parameters, 0.005) and None)
        return optimizer

    diagnosis = diagnosed(reference, tmp_path, optimizer=half)
    assert ClippingCode.NORM_TYPE not in codes(diagnosis)
    causes = {one.code for finding in diagnosis.findings for one in finding.causes}
    assert ClippingCode.NORM_TYPE_CAUSE not in causes


def test_settings_that_are_declared_alike_are_alike(reference: Path, tmp_path: Path) -> None:
    """Decay within the gradient makes a moment that another beta1 would make as well."""
    diagnosis = diagnosed(
        reference,
        tmp_path,
        optimizer=lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.9, 0.999), weight_decay=0.1),
    )
    named = {finding.headline.place("key") for finding in diagnosis.findings}
    assert "beta2" in named
    assert "beta1" not in named


def test_parameters_of_one_side(reference: Path, tmp_path: Path) -> None:
    """Made first, so that all others are drawn otherwise."""
    diagnosis = diagnosed(reference, tmp_path, without="first.bias")
    assert codes(diagnosis)[0] in (WeightsCode.ONLY_IN, WeightsCode.ONE_SIDED)
    assert ClippingCode.REPORTED_NORM not in codes(diagnosis)


def test_a_parameter_of_one_side_made_last(reference: Path, tmp_path: Path) -> None:
    (lead, *_) = diagnosed(reference, tmp_path, without="inner.mix.bias").findings
    assert KindReason.TERM_MISSING in [kind.sentence.code for kind in lead.kinds]


def test_a_mask_of_one_side_has_the_name_that_the_model_gives_it(reference: Path, tmp_path: Path) -> None:
    diagnosis = diagnosed(reference, tmp_path, mask=False)
    (lead, *_), verdict = diagnosis.findings, compare(tmp_path / "run", reference).verdict
    assert (lead.headline.code, lead.headline.place("name")) == (
        StagesCode.INPUT_OF_ONE_SIDE,
        "attention_mask",
    )
    assert (verdict.headline.place("side"), verdict.headline.place("name")) == ("reference", "attention_mask")


@pytest.mark.parametrize(
    ("pixels", "code"),
    [
        (PIXELS.flip(1), BatchCode.MOVED),
        (2 * PIXELS.flip(1) - 1, BatchCode.MOVED_AND_SCALED),
        ((PIXELS - 0.5) / 0.25, BatchCode.SCALED),
        (PIXELS.clamp(min=0.3), BatchCode.LIMITED),
        (PIXELS**2, None),
    ],
)
def test_what_became_of_pixels(pixels: Tensor, code: object, reference: Path, tmp_path: Path) -> None:
    headlines: dict[object, StagesCode] = {
        BatchCode.SCALED: StagesCode.INPUT_SCALED,
        BatchCode.LIMITED: StagesCode.INPUT_LIMITED,
        BatchCode.MOVED: StagesCode.INPUT_MOVED,
        BatchCode.MOVED_AND_SCALED: StagesCode.INPUT_MOVED,
    }
    (lead, *_) = diagnosed(reference, tmp_path, pixels=pixels).findings
    headline = headlines.get(code, StagesCode.INPUT_DIFFERS)
    assert (lead.headline.code, lead.headline.place("name")) == (headline, "0")
    assert (lead.evidence[0].code is code) is (code is not None)


@pytest.mark.parametrize(
    ("loss", "code"),
    [
        (F.l1_loss, KindReason.ABSOLUTE_ERROR),
        (F.smooth_l1_loss, KindReason.LIMITED_ERROR),
        (lambda made, wanted: (made - wanted).pow(4).mean(), None),
    ],
)
def test_the_error_that_a_loss_is_made_of(loss: Any, code: object, reference: Path, tmp_path: Path) -> None:
    (lead, *_) = diagnosed(reference, tmp_path, loss=loss).findings
    told = [kind.sentence.code for kind in lead.kinds]
    assert (
        code in told
        if code is not None
        else not {KindReason.ABSOLUTE_ERROR, KindReason.LIMITED_ERROR} & {*told}
    )


@pytest.mark.parametrize(("weight", "named"), [(0.0, True), (0.0101, True), (0.01, False)])
def test_the_weight_of_another_output_in_the_loss(
    weight: float, named: bool, reference: Path, tmp_path: Path
) -> None:
    findings = diagnosed(reference, tmp_path, weight=weight).findings
    told = [kind.sentence for finding in findings for kind in finding.kinds]
    (found,) = [one for one in told if one.code is KindReason.OUTPUT_WEIGHED][:1] or [None]
    assert (found is not None) is named
    if found is not None:
        assert found.place("output") == "output.1"
        assert (found.number("target"), found.number("reference")) == pytest.approx((weight, 0.01))


def test_a_scaled_loss_is_no_other_weight(reference: Path, tmp_path: Path) -> None:
    """Twin: all that the loss sends back is scaled."""
    other = {"loss": lambda made, wanted: 1.5 * F.mse_loss(made, wanted), "weight": 0.015}
    told = [
        kind.sentence.code
        for finding in diagnosed(reference, tmp_path, **other).findings
        for kind in finding.kinds
    ]
    assert KindReason.OUTPUT_WEIGHED not in told
