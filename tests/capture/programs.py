"""Small training programs, and ways to run them as a person would."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import trueup

SOURCE = Path(trueup.__file__).parent.parent
TIMEOUT_SECONDS = 120

TRAIN = """
import sys
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(int(sys.argv[1]) if len(sys.argv) > 1 else 3):
    loss = model(torch.randn(5, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", step, loss.item().hex(), flush=True)
"""


def environment(**extra: str) -> dict[str, str]:
    """This process's environment, with trueup importable and no capture under way."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TRUEUP_", "PYTHON"))}
    path = extra.pop("PYTHONPATH", "")
    return {**kept, "PYTHONPATH": os.pathsep.join(p for p in (path, str(SOURCE)) if p), **extra}


def run(
    *words: str | Path, cwd: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=dict(env) if env is not None else environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )


def python(
    *words: str | Path, cwd: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run this Python."""
    return run(sys.executable, *words, cwd=cwd, env=env)


def run_trueup(
    *words: str | Path, cwd: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    return python("-m", "trueup", *words, cwd=cwd, env=env)


def write(path: Path, text: str) -> Path:
    """Write a program and return where it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
