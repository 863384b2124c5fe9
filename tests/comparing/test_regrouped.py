"""Work cut into other pieces agrees where all that leaves the model does; a fault in it stays a fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trueup
from trueup.comparing.run import compare
from trueup.types.codes import RecordCode

IDS = torch.randint(0, 50, (4, 24), generator=torch.Generator().manual_seed(3))
Loss = Callable[["Model", Tensor, Tensor], Tensor]


class Model(nn.Module):
    """Ids to hidden states; the head is called by the loss, as often as that likes."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(50, 32)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.head = nn.Linear(32, 50)
        self.loss: Loss

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.emb(ids)
        return self.loss(self, hidden + self.mlp(hidden), ids)


def trained(folder: Path, loss: Loss) -> Path:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Model()
    model.loss = loss
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with trueup.Tracer(folder, level="mix", steps="0-1", store_values_of=["labels"]):
        for step in range(2):
            model(IDS.roll(step, 0)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return folder


def whole(model: Model, hidden: Tensor, ids: Tensor) -> Tensor:
    logits = model.head(hidden[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def head_in_chunks(model: Model, hidden: Tensor, ids: Tensor) -> Tensor:
    parts = zip(hidden[:, :-1].chunk(4, 1), ids[:, 1:].chunk(4, 1), strict=True)
    total = sum(F.cross_entropy(model.head(x).flatten(0, 1), y.flatten(), reduction="sum") for x, y in parts)
    return total / ids[:, 1:].numel()


def criterion_in_chunks(model: Model, hidden: Tensor, ids: Tensor) -> Tensor:
    criterion = nn.CrossEntropyLoss(reduction="sum")
    logits, labels = model.head(hidden[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()
    total = sum(criterion(x, y) for x, y in zip(logits.chunk(3), labels.chunk(3), strict=True))
    return total / labels.numel()


def mean_of_means(model: Model, hidden: Tensor, ids: Tensor) -> Tensor:
    """A fault: chunks of other sizes count alike."""
    logits, labels = model.head(hidden[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()
    parts = zip(logits.split(60), labels.split(60), strict=True)
    return torch.stack([F.cross_entropy(x, y) for x, y in parts]).mean()


def last_chunk_lost(model: Model, hidden: Tensor, ids: Tensor) -> Tensor:
    """A fault."""
    parts = list(zip(hidden[:, :-1].chunk(4, 1), ids[:, 1:].chunk(4, 1), strict=True))[:-1]
    total = sum(F.cross_entropy(model.head(x).flatten(0, 1), y.flatten(), reduction="sum") for x, y in parts)
    return total / ids[:, 1:].numel()


def cooler(model: Model, hidden: Tensor, ids: Tensor) -> Tensor:
    """A fault beside the chunks: the logits are a little smaller."""
    parts = zip(hidden[:, :-1].chunk(4, 1), ids[:, 1:].chunk(4, 1), strict=True)
    sums = [
        F.cross_entropy(model.head(x).flatten(0, 1) * 0.999, y.flatten(), reduction="sum") for x, y in parts
    ]
    return torch.stack(sums).sum() / ids[:, 1:].numel()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("whole") / "run", whole)


@pytest.mark.parametrize("loss", [head_in_chunks, criterion_in_chunks])
def test_the_same_work_in_other_pieces_agrees(reference: Path, loss: Loss, tmp_path: Path) -> None:
    comparison = compare(trained(tmp_path / "run", loss), reference)
    assert comparison.exit_code == 0
    rows = [row for table in comparison.tables for row in table.to_pylist()]
    assert not any(row["status"] in ("propagated", "amplified", "origin") for row in rows)


@pytest.mark.parametrize("loss", [mean_of_means, last_chunk_lost, cooler])
def test_a_fault_in_the_pieces_differs(reference: Path, loss: Loss, tmp_path: Path) -> None:
    comparison = compare(trained(tmp_path / "run", loss), reference)
    rows = [row for table in comparison.tables for row in table.to_pylist()]
    assert comparison.exit_code == 1
    assert RecordCode.REGROUPED not in {row["reason_code"] for row in rows if row["step"] == 0}
