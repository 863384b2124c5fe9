"""Rows of a gradient that are exactly zero in one run alone, beside zeros that rounding makes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import trueup
from trueup.comparing.counted_rows import counted
from trueup.comparing.run import compare
from trueup.types.codes import VerdictCode
from trueup.types.status import Outcome
from trueup.types.verdict import Verdict

pytestmark = pytest.mark.torch

WIDTH, VOCAB = 32, 256


@dataclass(frozen=True, kw_only=True)
class Program:
    """A head over an embedding in bfloat16, with a z-loss and ignored labels."""

    z_of_all: bool = False
    padding: int | None = None
    moved: float = 0.0
    """added to hidden values: another rounding"""
    mask_by_weight: bool = False
    in_float32: bool = False
    sent_to_all: bool = False
    """gradients of ignored positions are those of some label"""
    rows: int = 4
    length: int = 12


class Model(nn.Module):
    def __init__(self, program: Program) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH, padding_idx=program.padding)
        self.head, self.moved = nn.Linear(WIDTH, VOCAB), program.moved
        with torch.no_grad():
            self.embed.weight[0] = 0.5
        self.to(torch.float32 if program.in_float32 else torch.bfloat16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.embed(ids)) + self.moved)


def train(folder: Path, program: Program) -> Path:
    torch.manual_seed(0)
    model = Model(program)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids, labels = torch.randint(1, VOCAB, (2, program.rows, program.length))
    ids[0, 0], labels[:, -2:] = 0, -100
    with trueup.Tracer(
        folder, level="L0", steps="0", store_values_of=["configuration", "module", "parameter"]
    ):
        logits = model(ids).float()
        counts = labels != -100
        if program.mask_by_weight:
            each = F.cross_entropy(logits.flatten(0, 1), labels.flatten().clamp(min=0), reduction="none")
            loss = (each * counts.flatten()).sum()
        else:
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        if program.sent_to_all:
            zero = F.cross_entropy(logits.flatten(0, 1), labels.flatten().clamp(min=0), reduction="none")
            zero = torch.where(counts.flatten(), 0.0, zero)
            loss = loss + (zero - zero.detach()).sum()
        z = torch.logsumexp(logits, -1).square()
        z = z.sum() if program.z_of_all else z.masked_fill(~counts, 0.0).sum()
        ((loss + 1e-4 * z) / counts.sum()).backward()
        optimizer.step()
    return folder


def verdict(folder: Path, target: Program, reference: Program) -> Verdict:
    return compare(train(folder / "target", target), train(folder / "reference", reference)).verdict


BASE = Program()


def test_positions_that_a_term_of_the_loss_counts(tmp_path: Path) -> None:
    found = verdict(tmp_path, replace(BASE, z_of_all=True), BASE)
    assert found.headline.code is VerdictCode.POSITIONS_COUNT
    numbers = [found.headline.number(name) for name in ("target", "reference", "total")]
    assert numbers == [48, 40, 48]
    assert found.phase == "loss"


@pytest.mark.parametrize("in_float32", [True, False])
def test_gradients_that_the_same_loss_sends_to_ignored_positions(in_float32: bool, tmp_path: Path) -> None:
    base = replace(BASE, in_float32=in_float32)
    found = verdict(tmp_path, replace(base, sent_to_all=True), base)
    assert found.headline.code is VerdictCode.POSITIONS_COUNT
    assert [found.headline.number(name) for name in ("target", "reference", "same_loss")] == [48, 40, True]
    assert len(found.evidence) > 1


def test_a_row_of_an_embedding_that_is_frozen(tmp_path: Path) -> None:
    large = replace(BASE, rows=64, length=64)
    found = verdict(tmp_path, replace(large, padding=0), large)
    assert (found.headline.code, found.headline.place("weight")) == (VerdictCode.ROWS_TRAIN, "embed.weight")
    assert (found.headline.number("target"), found.headline.number("reference")) == (255, 256)


@pytest.mark.parametrize("other", [replace(BASE, moved=2.0**-9), replace(BASE, mask_by_weight=True)])
def test_other_roundings_and_another_form_of_one_mask(other: Program, tmp_path: Path) -> None:
    assert verdict(tmp_path, other, BASE).outcome is Outcome.AGREE


ROWS = np.random.default_rng(0).normal(size=(6, 32))


def without(rows: slice | int, numbers: slice = slice(None), times: float = 0.0) -> np.ndarray:
    out = ROWS.copy()
    out[rows, numbers] *= times
    return out


@pytest.mark.parametrize(
    ("target", "reference", "found"),
    [
        (ROWS, without(5), (6, 5)),
        (without(slice(4, 6)), without(3), (4, 5)),
        (without(5, times=1e-3), without(5), (6, 5)),
        (without(5), without(5), None),
        (without(5, times=1e-38), without(5), None),
        (without(5, slice(1, 32)), without(5), None),
        (ROWS, np.zeros_like(ROWS), None),
        (ROWS, ROWS[:5], None),
    ],
    ids=[
        "one",
        "both",
        "small",
        "the same",
        "underflow",
        "one number",
        "nothing is counted",
        "another shape",
    ],
)
def test_rows_of_one_side(target: np.ndarray, reference: np.ndarray, found: object) -> None:
    assert counted(target, reference, ["bfloat16", "bfloat16"], share=0.0) == found
