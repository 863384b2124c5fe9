"""Runs that end in NaN or infinities are compared and diagnosed like all others; every report is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.adapters.torch.reading import capture
from trueup.cli.app import run
from trueup.comparing.content import content_from_json
from trueup.comparing.result import open_comparison

pytestmark = pytest.mark.torch

Spoil = Callable[[nn.Module, Tensor, int], Tensor]
"""gives the loss of a step, spoiled"""


def loss_is_nan(model: nn.Module, loss: Tensor, step: int) -> Tensor:
    return loss * float("nan")


def loss_is_infinite(model: nn.Module, loss: Tensor, step: int) -> Tensor:
    return loss * float("inf") if step else loss


def gradient_is_nan(model: nn.Module, loss: Tensor, step: int) -> Tensor:
    next(model.parameters()).register_hook(lambda gradient: gradient * float("nan"))
    return loss


def gradient_overflows(model: nn.Module, loss: Tensor, step: int) -> Tensor:
    return loss * 1e38 * 1e3


def weight_is_nan(model: nn.Module, loss: Tensor, step: int) -> Tensor:
    with torch.no_grad():
        next(model.parameters())[0, 0] = float("nan")
    return loss


def half(model: nn.Module, loss: Tensor, step: int) -> Tensor:
    return loss


def program(spoil: Spoil | None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))
    dtype = torch.float16 if spoil is half else torch.float32
    model = model.to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    draw = torch.Generator().manual_seed(1)
    for step in range(3):
        optimizer.zero_grad()
        x, y = torch.randn(4, 8, generator=draw).to(dtype), torch.randint(0, 4, (4,), generator=draw)
        loss = nn.functional.cross_entropy(model(x), y)
        if spoil is not None:
            loss = spoil(model, loss, step)
        loss.backward()
        optimizer.step()


CASES = (loss_is_nan, loss_is_infinite, gradient_is_nan, gradient_overflows, weight_is_nan, half)
SPOILED = list(zip(CASES, ["target", "reference"] * 3, strict=True))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference") / "trace"
    capture(folder, lambda: program(None), level="mix")
    return folder


@pytest.mark.parametrize(("spoil", "spoiled"), SPOILED)
def test_every_report_is_written(
    spoil: Spoil, spoiled: str, reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "spoiled"
    capture(other, lambda: program(spoil), level="mix")
    pair = [str(other), str(reference)] if spoiled == "target" else [str(reference), str(other)]
    for verb in ("compare", "diagnose"):
        out = tmp_path / verb
        assert run([verb, *pair, "-o", str(out)]) in (1, 2), capsys.readouterr().err
        said = capsys.readouterr()
        assert "internal error" not in said.err, said.err
        assert "RuntimeWarning" not in said.err, said.err
        assert list(out.glob("*.html"))
    json.loads((tmp_path / "diagnose" / "diagnosis.json").read_text(), parse_constant=pytest.fail)
    kept = open_comparison(tmp_path / "compare")
    assert content_from_json(kept.summary).local_norms is not None
    assert run(["report", str(tmp_path / "compare")]) in (0, 1, 2)
