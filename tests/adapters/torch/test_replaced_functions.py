"""Programs that put functions of their own in the place of torch's, as ports to another device do: each is
called as often with capture on as with capture off, and records have torch's names."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import trueup
from trueup.store import Trace, step_view

pytestmark = pytest.mark.torch

COUNTED: dict[str, int] = {}


def counted(name: str, original: Callable[..., Any], *, wraps: bool) -> Callable[..., Any]:
    """Adds one to what the function gives, if it is a number of the program's; counts its calls."""

    def replaced(*args: Any, **kwargs: Any) -> Any:
        COUNTED[name] = COUNTED.get(name, 0) + 1
        result = original(*args, **kwargs)
        return result * 2 if isinstance(result, Tensor) else f"of the device: {result}"

    return functools.wraps(original)(replaced) if wraps else replaced


def replace(monkeypatch: pytest.MonkeyPatch, *, wraps: bool) -> None:
    """Methods that C calls, one written in Python, functions of other modules, and a property."""
    for home, name in (
        (Tensor, "sigmoid"),
        (Tensor, "type"),
        (Tensor, "norm"),
        (F, "softmax"),
        (torch.functional, "einsum"),
        (nn.init, "normal_"),
    ):
        monkeypatch.setattr(home, name, counted(name, getattr(home, name), wraps=wraps))
    own = Tensor.is_cuda

    def is_cuda(self: Tensor) -> bool:
        COUNTED["is_cuda"] = COUNTED.get("is_cuda", 0) + 1
        return bool(own.__get__(self))

    monkeypatch.setattr(Tensor, "is_cuda", property(is_cuda))


def train() -> tuple[list[object], dict[str, int]]:
    """What a few steps compute, and how often each function was called."""
    COUNTED.clear()
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    nn.init.normal_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[object] = []
    for _ in range(3):
        y = F.softmax(model(torch.ones(2, 4)).sigmoid(), -1)
        y = torch.functional.einsum("ij,ij->ij", y, y)
        seen += [y.type(), y.is_cuda, y.norm().item()]
        loss = y.pow(2).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(loss.item())
    return seen, dict(COUNTED)


@pytest.mark.parametrize("wraps", [False, True])
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_replaced_function_does_its_work_once(
    level: str, wraps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with trueup.Tracer(tmp_path / "before", level="mix"):  # torch's own functions are known from here on
        nn.Linear(1, 1)(torch.ones(1, 1)).sum().backward()
    replace(monkeypatch, wraps=wraps)
    plain = train()
    assert plain[1]["sigmoid"] == 3
    with trueup.Tracer(tmp_path / "trace", level=level):
        captured = train()
    assert captured == plain


def test_a_record_has_the_name_of_the_function_it_replaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace(monkeypatch, wraps=False)
    with trueup.Tracer(tmp_path / "trace", level="mix"):
        train()
    names = set(step_view(Trace(tmp_path / "trace"), 0, 0).tables.calls["name"])
    assert {"torch.Tensor.sigmoid", "torch.nn.functional.softmax"} <= names
    assert not [name for name in names if "replaced" in name or "locals" in name]


def test_functions_replaced_before_capture_is_imported(tmp_path: Path) -> None:
    program = """
import sys, torch
from torch import nn
own = torch.Tensor.sigmoid
torch.Tensor.sigmoid = lambda self: own(self) * 2
import trueup
def train():
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    loss = model(torch.ones(2, 4)).sigmoid().sum()
    loss.backward()
    return loss.item()
plain = train()
with trueup.Tracer(sys.argv[1], level="mix"):
    assert train() == plain
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "trace")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
