"""The Python way in: which model is the main root, and who decides where the trace goes."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import torch
from torch import nn

import trueup
from trueup.capture import session
from trueup.errors import ConfigError
from trueup.store import Trace

pytestmark = pytest.mark.torch


def train(model: nn.Module, steps: int = 1) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def module_names(root: Path, step: int) -> set[str]:
    calls = Trace(root).read(step, 0).calls
    return set(calls.filter(calls["kind"].cast(pl.String) == "module")["name"].cast(pl.String))


def test_the_model_given_is_the_main_root_whatever_trained_before(tmp_path: Path) -> None:
    other, model = nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    tracer = trueup.Tracer(tmp_path / "run", steps="all")
    tracer.start()
    train(other)
    tracer.start(model)
    train(model)
    tracer.close()
    assert module_names(tmp_path / "run", 1) == {"", "0", "1"}


def test_a_program_under_trueup_capture_writes_where_the_command_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = trueup.Tracer(tmp_path / "outside")
    outside.start()
    monkeypatch.setenv(session.FROM_OUTSIDE, "{}")
    inside = trueup.Tracer(tmp_path / "inside")
    with pytest.warns(UserWarning, match="runs under 'trueup capture'"):
        inside.start()
    train(nn.Linear(4, 4))
    inside.close()
    monkeypatch.delenv(session.FROM_OUTSIDE)
    outside.close()
    assert list(Trace(tmp_path / "outside").steps()) == [0]
    assert not (tmp_path / "inside").exists()


def test_an_unknown_option_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="levle"):
        trueup.Tracer(tmp_path, levle="L1")
