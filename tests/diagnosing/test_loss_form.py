"""The form of a loss from the gradient of its logits: recovered from torch's own losses, none for others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from trueup.diagnosing.loss_form import LossForm, loss_form

pytestmark = pytest.mark.torch


def form(
    *,
    smoothing: float = 0.0,
    z_loss: float = 0.0,
    times: float = 1.0,
    dtype: str = "float32",
    temperature: float = 1.0,
    size: float = 3.0,
    cap: float | None = None,
) -> LossForm | None:
    generator = torch.Generator().manual_seed(0)
    logits = (size * torch.randn(96, 50, generator=generator)).to(getattr(torch, dtype)).requires_grad_()
    labels = torch.randint(0, 50, (96,), generator=generator)
    labels[::7] = -100
    shown = logits.float() / temperature if cap is None else cap * torch.tanh(logits.float() / cap)
    loss = F.cross_entropy(shown, labels, label_smoothing=smoothing)
    if z_loss:
        loss = loss + z_loss * logits.float()[labels != -100].logsumexp(-1).square().mean()
    (times * loss).backward()
    assert logits.grad is not None
    values = logits.detach().double().numpy(), logits.grad.double().numpy()
    roundoff = torch.finfo(logits.dtype).eps / 2
    return loss_form(values[0], labels.numpy(), values[1], (labels != -100).numpy(), roundoff=roundoff)


@pytest.mark.parametrize("smoothing", [0.0, 0.01, 0.1, 0.3])
@pytest.mark.parametrize("z_loss", [0.0, 1e-4, 1e-2])
def test_smoothing_z_loss_and_divisor_are_recovered(smoothing: float, z_loss: float) -> None:
    found = form(smoothing=smoothing, z_loss=z_loss, times=0.5)
    assert found is not None
    assert found.divisor == pytest.approx(2 * 82, rel=1e-4)
    assert found.smoothing == pytest.approx(smoothing, abs=1e-4)
    assert found.z_loss == pytest.approx(z_loss, abs=1e-6)
    assert abs(found.smoothing - smoothing) < 6 * found.smoothing_error
    assert abs(found.z_loss - z_loss) < 6 * found.z_loss_error


@pytest.mark.parametrize(
    ("temperature", "size"), [(0.9, 0.2), (0.7, 3.0), (1.1, 1.0), (2.0, 3.0), (1.05, 0.2)]
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_temperature_is_recovered(temperature: float, size: float, dtype: str) -> None:
    found = form(temperature=temperature, size=size, dtype=dtype)
    assert found is not None
    exact = dtype == "float32"
    if exact or abs(temperature - 1) * size > 0.1:  # else the roundings of bfloat16 hide it
        assert found.temperature == pytest.approx(temperature, rel=1e-5 if exact else 2e-3)
        assert found.divisor == pytest.approx(82, rel=1e-4 if exact else 1e-2)
        assert abs(found.temperature - temperature) < 6 * found.temperature_error
        assert found.smoothing == found.z_loss == 0


@pytest.mark.parametrize("size", [0.02, 0.2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_of_tokens_about_as_likely_the_divisor_is_that_of_the_sum_itself(dtype: str, size: float) -> None:
    """Terms of smoothing and of a z-loss are nearly multiples of the sum's: of bfloat16 the three together
    are uncertain by a third, the sum by itself is not."""
    found = form(size=size, dtype=dtype)
    assert found is not None
    assert found.divisor == pytest.approx(82, rel=1e-3)


@pytest.mark.parametrize("changed", [{}, {"smoothing": 0.1}, {"z_loss": 1e-2}, {"dtype": "bfloat16"}])
@pytest.mark.parametrize("size", [0.2, 3.0])
def test_other_forms_have_no_temperature(changed: dict[str, Any], size: float) -> None:
    found = form(**changed, size=size)
    assert found is not None
    assert found.temperature == 1.0


def test_capped_logits_have_no_temperature() -> None:
    assert form(cap=3.0) is None


def test_in_bfloat16_the_errors_say_how_little_is_known() -> None:
    found = form(dtype="bfloat16")
    assert found is not None
    assert abs(found.smoothing) < 6 * found.smoothing_error
    assert found.divisor == pytest.approx(82, rel=0.01)


def test_the_gradient_of_another_loss_has_no_such_form() -> None:
    logits = torch.randn(32, 20, generator=torch.Generator().manual_seed(1)).requires_grad_()
    labels = torch.arange(32) % 20
    F.mse_loss(logits, F.one_hot(labels, 20).float()).backward()
    assert logits.grad is not None
    counts = torch.ones(32, dtype=torch.bool).numpy()
    arrays = logits.detach().double().numpy(), labels.numpy(), logits.grad.double().numpy()
    assert loss_form(*arrays, counts, roundoff=2.0**-24) is None


def of_ignored(
    smoothing: float, *, ignored: float, size: tuple[int, int] = (96, 50), labels: bool = False
) -> Any:
    """Cross-entropy with smoothed labels whose mean over all words is taken of ignored positions, too, times
    ``ignored``; ``labels``: these positions have their label's part as well, and are no ignored ones."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(size, generator=generator).requires_grad_()
    given = torch.randint(0, size[1], size[:1], generator=generator)
    counts = torch.arange(size[0]) % 3 > 0
    logs = logits.log_softmax(-1)
    hard, soft = F.nll_loss(logs, given, reduction="none"), -logs.mean(-1)
    loss = ((1 - smoothing) * hard + smoothing * soft)[counts].sum() + ignored * soft[~counts].sum()
    if labels:
        loss = loss + (1 - smoothing) * hard[~counts].sum()
    (loss / counts.sum()).backward()
    assert logits.grad is not None
    arrays = logits.detach().double().numpy(), logits.grad.double().numpy()
    return loss_form(arrays[0], given.numpy(), arrays[1], counts.numpy(), roundoff=2.0**-24)


@pytest.mark.parametrize("size", [(96, 50), (40, 300)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("ignored", [0.0, 0.05, 0.1])
def test_what_ignored_positions_are_smoothed_by(
    smoothing: float, ignored: float, size: tuple[int, int]
) -> None:
    found = of_ignored(smoothing, ignored=ignored, size=size)
    assert found is not None
    assert found.ignored_smoothing == pytest.approx(ignored, abs=1e-5)


def test_positions_that_count_with_a_label_are_not_smoothed_alone() -> None:
    found = of_ignored(0.1, ignored=0.1, labels=True)
    assert found is not None
    assert found.ignored_smoothing == 0
