"""How exactly the reference computes its loss, where gradients are accumulated."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import trueup
from trueup.comparing.losses.exact import loss_bounds
from trueup.diagnosing.gradients import VALUES
from trueup.store import StepView, Trace

pytestmark = pytest.mark.torch


class Model(nn.Module):
    """Logits in bfloat16, and their loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(16, 8), nn.Linear(8, 16)
        self.to(torch.bfloat16)

    def forward(self, ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.head(self.embed(ids))
        return logits, F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


@pytest.mark.parametrize(("divided", "bounded"), [(2, True), (3, False)])
def test_the_loss_before_it_is_divided_for_accumulation_has_its_bound(
    tmp_path: Path, divided: int, bounded: bool
) -> None:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(1)
    with trueup.Tracer(tmp_path, level="L0", steps="0", store_values_of=VALUES):
        for _ in range(2):
            ids, labels = (torch.randint(16, (4, 8), generator=draw) for _ in range(2))
            _, loss = model(ids, labels)
            (loss / divided).backward()
        optimizer.step()
    trace = Trace(tmp_path)
    book = StepView(trace, trace.read(0, 0))
    outputs = [
        (book.slot[record], record)
        for record, call in enumerate(book.record_call)
        if book.name[call] == ""
        and book.phase[record] == "forward"
        and book.slot[record].startswith("output")
    ]
    logits = {record for slot, record in outputs if slot == "output.0"}
    bounds = loss_bounds(book, logits)
    returned = [book.content[record] for slot, record in outputs if slot == "output.1"]
    assert len(returned) == 2
    assert all((content in bounds) is bounded for content in returned)
    assert all(bound < 1e-5 for bound in bounds.values())
