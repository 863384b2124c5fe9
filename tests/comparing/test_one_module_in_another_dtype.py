"""Modules of a bfloat16 program in float32 on one side, float16 against bfloat16, and groups of clipping.

Beside them programs that cast without effect, or clip something else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import trueup
from trueup.comparing.run import compare
from trueup.types.codes import RecordCode, VerdictCode
from trueup.types.status import Outcome
from trueup.types.verdict import Verdict

pytestmark = pytest.mark.torch

COARSE, FINE = torch.bfloat16, torch.float32


@dataclass(frozen=True, kw_only=True)
class Program:
    """A small model in one dtype, some of its modules in another."""

    dtype: torch.dtype = COARSE
    fine: str = ""
    """part of the names of the modules in float32"""
    autocast: torch.dtype | None = None
    there_and_back: bool = False
    """the head's input is cast to float32 and back"""
    clipped: str = ""
    """part of the names of the only weights that are clipped"""
    scale: float = 1.0
    """of the head's weight: a fault"""
    max_norm: float = 0.1


class Model(nn.Module):
    def __init__(self, program: Program) -> None:
        super().__init__()
        self.there_and_back = program.there_and_back
        self.embedding, self.norm = nn.Embedding(19, 12), nn.LayerNorm(12)
        self.up, self.gate, self.head = nn.Linear(12, 20), nn.Linear(12, 20), nn.Linear(20, 19, bias=False)
        with torch.no_grad():
            self.head.weight *= program.scale
        self.to(program.dtype)
        for name, module in self.named_children():
            if program.fine and program.fine in name:
                module.to(FINE)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.cast(self.norm, self.embedding(ids))
        x = torch.sigmoid(self.cast(self.gate, x)) * self.cast(self.up, x)
        if self.there_and_back:
            x = x.to(FINE).to(x.dtype)
        return self.cast(self.head, x)

    def cast(self, module: nn.Module, x: Tensor) -> Tensor:
        made = module(x.to(next(module.parameters()).dtype))
        return made if module is self.head else made.to(self.up.weight.dtype)


def train(folder: Path, program: Program, level: str) -> Path:
    torch.manual_seed(0)
    model = Model(program)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    random = torch.Generator().manual_seed(3)
    with trueup.Tracer(folder, level="mix" if level == "mix" else "L0", steps="0-1"):
        for _ in range(2):
            ids = torch.randint(19, (3, 7), generator=random)
            with torch.autocast(
                "cpu", dtype=program.autocast or COARSE, enabled=program.autocast is not None
            ):
                logits = model(ids)
            F.cross_entropy(logits.float().flatten(0, 1), ids.roll(-1, 1).flatten()).backward()
            clipped = [p for name, p in model.named_parameters() if program.clipped in name]
            torch.nn.utils.clip_grad_norm_(clipped, program.max_norm, foreach=True)
            optimizer.step()
            optimizer.zero_grad()
    return folder


Compared = Callable[..., Verdict]


@pytest.fixture
def compared(tmp_path: Path) -> Compared:
    def verdict(target: Program, reference: Program, level: str = "mix") -> Verdict:
        folders = (train(tmp_path / "target", target, level), train(tmp_path / "reference", reference, level))
        return compare(*folders).verdict

    return verdict


BASE = Program()
NAMED = (VerdictCode.COMPUTES_IN, VerdictCode.RESULT_IN, VerdictCode.WEIGHTS_IN)


@pytest.mark.parametrize(
    ("fine", "level"), [("head", "mix"), ("head", "L0"), ("gate", "mix"), ("norm", "mix"), ("norm", "L0")]
)
def test_what_is_in_float32_alone_is_named(fine: str, level: str, compared: Compared) -> None:
    found = compared(replace(BASE, fine=fine), BASE, level)
    assert found.headline.code in NAMED, found.headline
    assert (found.headline.place("target"), found.headline.place("reference")) == ("float32", "bfloat16")
    named = [*found.headline.places, *(str(place) for one in found.evidence for place in one.places)]
    assert any(fine in str(place) for place in (*named, found.where)), found


@pytest.mark.parametrize("dtype", [FINE, COARSE])
def test_float16_beside_bfloat16(dtype: torch.dtype, compared: Compared) -> None:
    half, other = (Program(dtype=FINE, autocast=one) for one in (torch.float16, COARSE))
    if dtype is COARSE:
        half, other = Program(dtype=torch.float16), BASE
    found = compared(half, other, "L0")
    assert found.headline.code in NAMED
    assert (found.headline.place("target"), found.headline.place("reference")) == ("float16", "bfloat16")


def test_casts_there_and_back_are_no_difference(compared: Compared) -> None:
    assert compared(replace(BASE, there_and_back=True), BASE).outcome is Outcome.AGREE
    assert compared(BASE, BASE).outcome is Outcome.AGREE


def test_a_fault_beside_the_dtype_is_told(compared: Compared) -> None:
    found = compared(replace(BASE, fine="head", scale=1.5), BASE)
    assert found.outcome is Outcome.DIFFER
    assert found.headline.code is not VerdictCode.RESULT_IN


@pytest.mark.parametrize(
    ("target", "outcome"),
    [
        (replace(BASE, fine="norm"), Outcome.DIFFER),
        (replace(BASE, fine="norm", max_norm=0.05), Outcome.DIFFER),
        (replace(BASE, clipped="up"), Outcome.DIFFER),
        (BASE, Outcome.AGREE),
    ],
)
def test_groups_of_clipping_are_no_place(target: Program, outcome: Outcome, tmp_path: Path) -> None:
    found = compare(train(tmp_path / "t", target, "mix"), train(tmp_path / "r", BASE, "mix"))
    assert found.verdict.outcome is outcome
    codes = set(found.frame()["reason_code"].drop_nulls().to_list())
    assert (RecordCode.OTHER_GROUPS.value in codes) is bool(target.fine)
    assert "_foreach" not in (found.verdict.where or "") or target.clipped
