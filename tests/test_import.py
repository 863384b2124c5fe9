"""Importing trueup is free: quick, touches no framework, patches nothing, reads no environment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.capture.programs import environment, python

pytestmark = pytest.mark.usefixtures("cold")

IMPORT_SECONDS = 0.15
HELP_SECONDS = 0.4
SLACK = 2.0
"""a shared machine is slower at times; the benchmark holds the bare figures"""
HEAVY = {
    "torch",
    "mindspore",
    "numpy",
    "polars",
    "pyarrow",
    "pydantic",
    "rich",
    "typer",
    "safetensors",
    "plotly",
}


def test_import_is_quick_and_light(tmp_path: Path) -> None:
    body = """
import json, sys, time
before = set(sys.modules)
start = time.process_time()
import trueup
seconds = time.process_time() - start
print(json.dumps([seconds, sorted(set(sys.modules) - before)]))
"""
    measured = [json.loads(python("-c", body, cwd=tmp_path).stdout) for _ in range(3)]
    assert min(seconds for seconds, _ in measured) < IMPORT_SECONDS
    loaded = {name.partition(".")[0] for name in measured[0][1]}
    assert "trueup" in loaded
    assert not loaded & HEAVY


def test_import_changes_nothing_of_the_program(tmp_path: Path) -> None:
    body = """
import os, sys, signal, threading, warnings, atexit, torch
def state():
    tensor, module = torch.Tensor, torch.nn.Module
    return (dict(os.environ), list(sys.path), list(sys.meta_path), signal.getsignal(2), sys.excepthook,
            threading.active_count(), list(warnings.filters), atexit._ncallbacks(),
            module.__call__, tensor.backward, torch.get_num_threads(), torch.get_rng_state().sum().item())
before = state()
import trueup
assert state() == before
from trueup import Tracer, PrecisionDebugger, seed_all
assert state()[-4:] == before[-4:]
print("same")
"""
    result = python("-W", "error", "-c", body, cwd=tmp_path)
    assert result.stdout == "same\n", result.stderr


def test_import_reads_no_environment(tmp_path: Path) -> None:
    body = """
import os
class Watched(dict):
    def __getitem__(self, key): seen.append(key); return dict.__getitem__(self, key)
    def get(self, key, default=None): seen.append(key); return dict.get(self, key, default)
import importlib, typing
seen = []
os.environ = Watched(os.environ)
import trueup
print(seen)
"""
    assert python("-c", body, cwd=tmp_path).stdout == "[]\n"


def test_help_is_quick_and_light(tmp_path: Path) -> None:
    body = """
import os, subprocess, sys, time
def once():
    start = sum(os.times()[2:4])
    subprocess.run([sys.executable, "-m", "trueup", "--help"], check=True, stdout=subprocess.DEVNULL)
    return sum(os.times()[2:4]) - start
print(min(once() for _ in range(4)))
"""
    assert float(python("-c", body, cwd=tmp_path).stdout) < HELP_SECONDS * SLACK
    loaded = python(
        "-X", "importtime", "-m", "trueup", "capture", "--help", cwd=tmp_path, env=environment()
    ).stderr
    names = {line.rpartition("|")[2].strip().partition(".")[0] for line in loaded.splitlines() if "|" in line}
    assert "typer" in names
    assert not names & {"torch", "mindspore", "polars", "pyarrow", "numpy", "safetensors"}


def test_every_public_name_is_there(tmp_path: Path) -> None:
    import trueup

    classes = {"Tracer", "PrecisionDebugger", "ReplayDataset"}
    assert set(trueup.__all__) >= classes | {
        "compare_curves",
        "declare_layout",
        "read_curve",
        "seed_all",
        "__version__",
    }
    for name in trueup.__all__:
        assert getattr(trueup, name) is not None
    result = python("-c", "import trueup; trueup.tracer", cwd=tmp_path)
    assert "has no attribute 'tracer'" in result.stderr
