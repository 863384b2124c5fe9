"""Labels that a model is given: they come with their rows, or differ alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.types.codes import StagesCode as Stages  # noqa: E402
from trueup.types.finding import Finding  # noqa: E402
from trueup.types.reason import reason  # noqa: E402

Batch = tuple[Tensor, Tensor]


class Model(nn.Module):
    """Its loss is part of it, as in the transformers library."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.head = nn.Embedding(40, 16), nn.Linear(16, 40)

    def forward(self, labels: Tensor, input_ids: Tensor) -> Tensor:
        logits = self.head(torch.tanh(self.emb(input_ids).cumsum(1) / 3))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def batch_of(step: int) -> Batch:
    tokens = torch.randint(1, 40, (4, 13), generator=torch.Generator().manual_seed(step))
    return tokens[:, :-1], tokens[:, 1:]


def trained(folder: Path, batches: Callable[[int], Batch] = batch_of) -> Path:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with trueup.Tracer(folder, level="L0", steps="0-1", task="tensor"):
        for step in range(2):
            ids, labels = batches(step)
            model(labels=labels, input_ids=ids).backward()
            optimizer.step()
            optimizer.zero_grad()
    return folder


def of_other_rows(step: int) -> Batch:
    return batch_of(0)


def one_token_later(step: int) -> Batch:
    ids, labels = batch_of(step)
    return ids.roll(-1, 1), labels.roll(-1, 1)


def with_labels_of_other_rows(step: int) -> Batch:
    return batch_of(step)[0], batch_of(0)[1]


def in_another_order_with_other_labels(step: int) -> Batch:
    return batch_of(step)[0].flip(0), batch_of(step + 5)[1]


@pytest.mark.parametrize(
    ("batches", "named"),
    [
        (of_other_rows, [("elsewhere", False)]),
        (one_token_later, [("shift", False)]),
        (with_labels_of_other_rows, [("elsewhere", True)]),
        (in_another_order_with_other_labels, [("order", False), ("other", True)]),
    ],
)
def test_what_is_said_of_rows_is_said_once(
    batches: Callable[[int], Batch], named: list[tuple[str, bool]], tmp_path: Path
) -> None:
    run, clean = trained(tmp_path / "run", batches), trained(tmp_path / "clean")
    findings: tuple[Finding, ...] = diagnose(run, clean, output=tmp_path / "out").findings
    expected = [reason(Stages.BATCH, relation=relation, labels=labels) for relation, labels in named]
    assert [finding.headline for finding in findings if finding.headline.code is Stages.BATCH] == expected
