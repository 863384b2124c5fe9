"""Labels of another size cannot be compared: the place is the loss they make, never a later step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.batches.labels import same_parts  # noqa: E402
from trueup.comparing.label_parts import _of_ranks  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.types.codes import BatchCode  # noqa: E402


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.mid, self.head = nn.Embedding(40, 16), nn.Linear(16, 16), nn.Linear(16, 40)

    def forward(self, ids: Tensor) -> Any:
        return self.head(torch.tanh(self.mid(self.emb(ids).cumsum(1) / 3)))


def loss_of(kind: str, logits: Tensor, labels: Tensor) -> Tensor:
    cut = {"clean": 1, "not shifted": 0, "shifted twice": 2}.get(kind, 1)
    logits, labels = logits[:, : logits.shape[1] - cut], labels[:, cut:]
    if kind == "padding counted":
        labels = labels.clamp(min=0)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def trained(folder: Path, kind: str = "clean") -> Path:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with trueup.Tracer(folder, level="L0", steps="0-1", task="tensor"):
        for step in range(2):
            ids = torch.randint(1, 40, (4, 12), generator=torch.Generator().manual_seed(step))
            labels = ids.masked_fill(torch.arange(12)[None] >= torch.tensor([[12], [9], [11], [6]]), -100)
            loss_of(kind, model(ids), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
    return folder


@pytest.mark.parametrize(
    ("kind", "code"),
    [("not shifted", BatchCode.NOT_SHIFTED), ("shifted twice", BatchCode.SHIFTED_TWICE)],
)
def test_the_place_is_the_loss_of_the_first_step(kind: str, code: BatchCode, tmp_path: Path) -> None:
    run, clean = trained(tmp_path / "run", kind), trained(tmp_path / "clean")
    verdict = compare(run, clean).verdict
    assert (verdict.step, verdict.phase) == (0, "loss")
    assert diagnose(run, clean, output=tmp_path / "out").findings[0].headline.code is code


def test_labels_of_no_known_shift_are_not_called_shifted(tmp_path: Path) -> None:
    run, clean = trained(tmp_path / "run", "padding counted"), trained(tmp_path / "clean")
    finding = diagnose(run, clean, output=tmp_path / "out").findings[0]
    assert finding.headline.code is BatchCode.ENDS_COUNTED


LABELS = np.random.default_rng(0).integers(0, 40, (4, 12))


@pytest.mark.parametrize(("num", "other"), [(2, 0), (3, 0), (1, 0), (2, 1)])
def test_ranks_share_the_tokens_of_every_row(num: int, other: int) -> None:
    """Flat, one rank after the other: another order of the same labels, but of no others."""
    shares = np.concatenate([part.ravel() for part in np.split(LABELS, num, axis=1)])
    shares[7] += other
    whole = [LABELS.ravel()]
    assert same_parts(_of_ranks([shares], num), _of_ranks(whole, 1)) is (other == 0)
    assert same_parts([shares], whole) is (num == 1)
