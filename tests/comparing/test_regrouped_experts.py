"""Experts that are given all tokens, or those that chose them: what they give their layer is the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trueup
from trueup.comparing.run import compare

pytestmark = pytest.mark.torch


class Experts(nn.Module):
    """Two experts, of which each token takes one; ``whole``: each runs on all tokens and counts for some."""

    def __init__(self, *, whole: bool, factor: float) -> None:
        super().__init__()
        self.router = nn.Linear(16, 2, bias=False)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.whole, self.factor = whole, factor

    def forward(self, x: Tensor) -> Tensor:
        share, chosen = self.router(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            if self.whole:
                out = out + expert(x) * (share * (chosen == number) * self.factor)[:, None]
            else:
                at = torch.where(chosen == number)[0]
                out = out.index_add(0, at, expert(x[at]) * share[at, None])
        return out


def trained(folder: Path, *, whole: bool, factor: float = 1.0) -> Path:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Embedding(30, 16), Experts(whole=whole, factor=factor), nn.Linear(16, 30))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids = torch.randint(0, 30, (40,), generator=torch.Generator().manual_seed(1))
    with trueup.Tracer(folder, level="L0", steps="0", task="tensor"):
        F.cross_entropy(model(ids), ids.roll(-1)).backward()
        optimizer.step()
    return folder


@pytest.mark.parametrize(("factor", "status"), [(1.0, 0), (1.01, 1)])
def test_experts_on_all_tokens(factor: float, status: int, tmp_path: Path) -> None:
    target = trained(tmp_path / "target", whole=True, factor=factor)
    assert compare(target, trained(tmp_path / "reference", whole=False)).exit_code == status
