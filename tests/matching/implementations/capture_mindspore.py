"""Captures of the MindSpore implementations, in this process; dumps of graph mode, each in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.matching.implementations.sizes import ALL_SIZES
from tests.matching.implementations.train_mindspore import train
from trueup import Tracer

ROOT = Path(__file__).parents[3]


def captured(folder: Path, name: str, *, sizes: str, change: str | None = None, task: str = "tensor") -> Path:
    """Two steps of one implementation."""
    path = folder / f"{name}_{sizes}_{change}_{task}"
    with Tracer(path, framework="mindspore", level="mix", task=task, steps="0-1"):
        train(name, sizes=ALL_SIZES[sizes], change=change)
    return path


def dumped(folder: Path, *, sizes: str, change: str | None = None) -> Path:
    """MindSpore's own dump of two steps in graph mode."""
    path = folder / f"dump_{sizes}_{change}"
    config = folder / f"dump_{sizes}_{change}.json"
    flags = ["--kind", "full", "--path", str(path), "--device-target", "CPU", "--iteration", "0|1"]
    _run("-m", "trueup", "dump-config", *flags, "-o", str(config))
    program = ["-m", "tests.matching.implementations.train_mindspore", "mindspore", "--graph"]
    options = ["--sizes", sizes, *(["--change", change] if change else [])]
    _run(*program, *options, MINDSPORE_DUMP_CONFIG=str(config))
    return path


def _run(*command: str, **environment: str) -> None:
    made = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=os.environ | environment, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
