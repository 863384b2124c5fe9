"""What a loss comes near to is read from its graph: soft labels and values to predict, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch.nn.functional as F  # noqa: E402
from torch import Tensor  # noqa: E402

from trueup.adapters.torch.labels import labels_of  # noqa: E402

SOFT = torch.rand(4, 5, generator=torch.Generator().manual_seed(0)).softmax(-1)
IDS = torch.tensor([0, 3, 1, 4])
ROWS = torch.tensor([1.0, 0.0, 1.0, 1.0])


def own(x: Tensor) -> Tensor:
    return -(SOFT * x.log_softmax(-1)).sum(-1).mean()


def flat(x: Tensor) -> Tensor:
    return -(SOFT * x.reshape(2, 2, 5).reshape(-1, 5).log_softmax(-1)).sum(-1).mean()


@pytest.mark.parametrize(
    "loss",
    [
        lambda x: F.cross_entropy(x, SOFT),
        lambda x: F.cross_entropy(x, SOFT, weight=torch.arange(1.0, 6.0)),
        own,
        flat,
        lambda x: F.kl_div(x.log_softmax(-1), SOFT, reduction="batchmean"),
        lambda x: F.mse_loss(x, SOFT),
        lambda x: (F.mse_loss(x, SOFT, reduction="none") * ROWS[:, None]).mean(),
        lambda x: F.smooth_l1_loss(x, SOFT),
        lambda x: F.huber_loss(x, SOFT),
        lambda x: F.binary_cross_entropy(x.sigmoid(), SOFT),
        lambda x: F.binary_cross_entropy_with_logits(x, SOFT),
        lambda x: F.soft_margin_loss(x, SOFT),
    ],
)
def test_targets(loss: Callable[[Tensor], Tensor]) -> None:
    found, _ = labels_of(loss(torch.randn(4, 5, requires_grad=True)))
    assert [slot for slot, _ in found] == ["targets"]
    assert torch.equal(found[0][1], SOFT)


@pytest.mark.parametrize(
    "loss",
    [
        lambda x: F.cross_entropy(x, IDS),
        lambda x: F.cross_entropy(x, IDS, label_smoothing=0.1),
        lambda x: (F.cross_entropy(x, IDS, reduction="none") * ROWS).sum(),
        lambda x: -(x.softmax(-1) * x.log_softmax(-1)).sum(),  # an entropy
        lambda x: F.mse_loss(x, x * 2),
        lambda x: (x.log_softmax(-1) * torch.arange(5.0)).sum(),  # weights of classes
        lambda x: (x * SOFT).sum(),
    ],
)
def test_no_targets(loss: Callable[[Tensor], Tensor]) -> None:
    found, _ = labels_of(loss(torch.randn(4, 5, requires_grad=True)))
    assert "targets" not in [slot for slot, _ in found]


def test_labels_and_targets_of_two_terms() -> None:
    x = torch.randn(4, 5, requires_grad=True)
    found, _ = labels_of(F.cross_entropy(x, IDS) + F.mse_loss(x, SOFT) + F.mse_loss(x, SOFT + 1))
    assert [slot for slot, _ in found] == ["labels", "targets", "targets.1"]
