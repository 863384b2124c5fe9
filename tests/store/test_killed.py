"""``kill -9`` at any moment costs at most the step in progress."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.adapters.torch.reading import Captured
from trueup.store import Trace

pytestmark = [pytest.mark.torch, pytest.mark.slow]

NUM_KILLS = 18  # at least; more, up to the second number, until one has met a step in the middle of it
MAX_KILLS = 60

PROGRAM = """
import os, sys, torch, trueup
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
optimizer = torch.optim.AdamW(model.parameters())
while True:
    # one import, many runs: each child is killed in its turn
    word = sys.stdin.readline().split()
    if not word:
        break
    pid = os.fork()
    if pid == 0:
        trueup.Tracer(word[0], level="mix", task="tensor", steps="all").start()
        step = 0
        while True:
            loss = model(torch.full((32, 64), float(step + 1))).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
    print(pid, flush=True)
    os.waitpid(pid, 0)
    print("gone", flush=True)
"""


def test_every_earlier_step_is_whole(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        kill_many(server, tmp_path)


def kill_many(server: subprocess.Popen[str], tmp_path: Path) -> None:
    rng = random.Random(0)
    assert server.stdin is not None
    assert server.stdout is not None
    torn = found = 0
    for i in range(MAX_KILLS):
        if i >= NUM_KILLS and torn:
            break
        run = tmp_path / f"run{i}"
        server.stdin.write(f"{run}\n")
        server.stdin.flush()
        pid = int(server.stdout.readline())
        # every phase: before the folder is there, in a step, while tables are written, between steps
        if i >= 3:
            wait_for(run / f"step_{i % 4:06d}")
        time.sleep(rng.uniform(0.0, 0.1))
        os.kill(pid, signal.SIGKILL)
        assert server.stdout.readline() == "gone\n"
        if not (run / "manifest.json").exists():
            continue
        found += check(run)
        torn += any(run.glob("step_*/*.writing-*"))
    server.stdin.close()
    assert server.wait(timeout=30) == 0
    assert found > NUM_KILLS
    assert torn > 0, "no kill met a step in the middle of it"


def wait_for(path: Path) -> None:
    for _ in range(2000):
        if path.exists():
            return
        time.sleep(0.005)
    raise AssertionError(f"{path} never came")


def check(run: Path) -> int:
    trace = Trace(run)
    steps = trace.steps()
    assert list(steps) == list(range(len(steps)))
    for step in steps:
        captured = Captured(run, step)
        for record in captured.records:
            assert record["summary"] is not None
            captured.values(record)
        x = captured.value("", "forward", "input.0")
        assert torch.equal(x, torch.full((32, 64), float(step + 1)))
        assert captured.find("2.weight", "optimizer", "param")
    lines = [line["step"] for line in trace.scalars(0)]
    assert lines == list(range(len(lines)))
    assert len(steps) <= len(lines) <= len(steps) + 1
    return len(steps)


def test_a_torn_step_is_noticed(tmp_path: Path) -> None:
    """The check above can fail: a table cut short is no whole step."""
    from tests.adapters.torch.reading import capture

    def program() -> None:
        model = torch.nn.Linear(64, 8)
        model(torch.full((32, 64), 1.0)).sum().backward()

    capture(tmp_path / "run", program)
    table = tmp_path / "run" / "step_000000" / "rank_00000" / "records.parquet"
    table.write_bytes(table.read_bytes()[:-20])
    with pytest.raises(Exception, match=r"records\.parquet"):
        check(tmp_path / "run")
