"""Microbatches of one sequence, each as wide as it is long, against microbatches of two that are padded."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.capture.programs import run_trueup, write
from trueup.comparing.run import compare
from trueup.types.codes import VerdictCode
from trueup.types.status import Outcome

pytestmark = pytest.mark.torch

PROGRAM = """
import sys, torch
from torch import nn
from torch.nn import functional as F

kind, size, lengths = sys.argv[1], int(sys.argv[2]), [int(one) for one in sys.argv[3].split(",")]
torch.set_num_threads(1)
torch.manual_seed(0)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.scale = nn.Linear(16, 48), 0.25

    def forward(self, x, mask=None):
        q, k, v = self.qkv(x).chunk(3, -1)
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()[None]
        seen = seen if mask is None else seen & mask
        return (q @ k.transpose(1, 2) * self.scale).masked_fill(~seen, -1e9).softmax(-1) @ v


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.pos, self.head = nn.Embedding(40, 16), nn.Embedding(16, 16), nn.Linear(16, 40)
        self.norm, self.attention = nn.LayerNorm(16), Attention()

    def forward(self, input_ids, attention_mask, position_ids):
        x = self.norm(self.emb(input_ids) + self.pos(position_ids))
        if kind == "unmasked" or attention_mask.all():
            return self.head(x + self.attention(x))
        return self.head(x + self.attention(x, mask=attention_mask[:, None].bool()))


model = Model()
if kind == "scaled":
    model.attention.scale = 0.26
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    make = torch.Generator().manual_seed(step)
    rows = [torch.randint(1, 40, (n,), generator=make) for n in lengths]
    total = sum(len(row) - 1 for row in rows)
    for at in range(0, len(rows), size):
        part = rows[at : at + size]
        width = max(map(len, part))
        pads = [(0, width - len(row)) for row in part]
        if kind in ("left", "unmasked"):
            pads = [pad[::-1] for pad in pads]
        ids = torch.stack([F.pad(row, pad) for row, pad in zip(part, pads)])
        mask = torch.stack([F.pad(torch.ones_like(row), pad) for row, pad in zip(part, pads)])
        positions = (mask.cumsum(1) - 1).clamp(min=0) * mask
        logits = model(input_ids=ids, attention_mask=mask, position_ids=positions)[:, :-1]
        counts = mask[:, 1:] * mask[:, :-1]
        losses = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        ((losses * counts).sum() / total).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LENGTHS = ("9,9,5,9", "5,9,9,9", "9,5,9,9,7,7,4,8")


def trained(folder: Path, kind: str, size: int, lengths: str) -> Path:
    program = write(folder.parent / "train.py", PROGRAM)
    words = [str(program), kind, str(size), lengths]
    captured = ["capture", "-q", "--task", "tensor", "-o", str(folder), "--", sys.executable]
    out = run_trueup(*captured, *words, cwd=folder.parent)
    assert out.returncode == 0, out.stderr
    return folder


@pytest.mark.parametrize("lengths", LENGTHS)
def test_rows_of_any_width_are_found_again(lengths: str, tmp_path: Path) -> None:
    one, two = (trained(tmp_path / f"run-{size}", "plain", size, lengths) for size in (1, 2))
    for target, reference in ((one, two), (two, one)):
        found = compare(target, reference)
        assert found.verdict.outcome is Outcome.AGREE, found.verdict
        statuses = found.frame()["status"].to_list()
        apart = sum(status in ("undecided", "unmatched") for status in statuses)
        assert apart < 0.1 * len(statuses)  # also of the microbatches after the first


def test_what_differs_in_rows_of_one_is_named_where_it_is(tmp_path: Path) -> None:
    """The padded run makes a mask for what is inside, the other needs none: no input of one side."""
    two = trained(tmp_path / "two", "plain", 2, LENGTHS[1])
    other = trained(tmp_path / "scaled", "scaled", 1, LENGTHS[1])
    found = compare(other, two)
    assert found.exit_code == 1
    assert found.verdict.headline.code is not VerdictCode.INPUT_OF_ONE_SIDE
    assert "attention" in str(found.verdict.where)


def test_a_mask_that_the_model_has_and_does_not_hand_on_is_an_input_of_one_side(tmp_path: Path) -> None:
    left = trained(tmp_path / "left", "left", 2, LENGTHS[1])
    without = trained(tmp_path / "unmasked", "unmasked", 2, LENGTHS[1])
    found = compare(without, left)
    assert (found.exit_code, found.verdict.headline.code) == (1, VerdictCode.INPUT_OF_ONE_SIDE)
