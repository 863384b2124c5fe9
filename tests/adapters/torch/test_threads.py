"""Programs that train, or only call models, in threads of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.adapters.torch.reading import Captured, capture
from tests.models.gpt import GPT, GPTConfig, batch, loss_of

pytestmark = pytest.mark.torch

TINY = GPTConfig(vocab_size=32, num_layers=2, hidden_size=16, num_heads=2, seq_length=8)
STEPS = 3


def linear(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh())


def training(model: nn.Module, losses: list[float] | None = None) -> Iterator[None]:
    """Trains some steps, a piece (forward, backward, optimizer) at a time."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        loss = model(torch.ones(4, 8)).square().sum()
        if losses is not None:
            losses.append(loss.item())
        yield
        loss.backward()
        yield
        optimizer.step()
        optimizer.zero_grad()
        yield


def in_turn(pool: ThreadPoolExecutor, pieces: Iterator[None]) -> None:
    """The next piece, in the pool's thread, while this one is at work: it does not wait in ``result``."""
    piece = pool.submit(next, pieces, None)
    while not piece.done():
        time.sleep(1e-4)
    piece.result()


def sites(run: Captured) -> list[tuple[Any, ...]]:
    return [(c["name"], c["parent"], c["ordinal"], c["mode"]) for c in run.calls]


def test_a_model_trained_in_a_thread_of_the_program(tmp_path: Path) -> None:
    def train() -> None:
        torch.manual_seed(0)
        model = GPT(TINY)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(2):
            loss_of(model, *batch(TINY, step=step)).backward()
            optimizer.step()
            optimizer.zero_grad()

    def in_thread() -> None:
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()

    runs = [capture(tmp_path / f.__name__, f, step=1) for f in (train, in_thread)]
    assert runs[0].digests() == runs[1].digests() != []
    assert any(c["kind"] == "api" for c in runs[1].calls)


def test_several_threads_at_once(tmp_path: Path) -> None:
    models = [nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)) for _ in range(4)]
    inputs = [torch.full((64, 64), float(i + 1)) for i in range(4)]

    def program() -> None:
        threads = [
            threading.Thread(target=lambda m=m, x=x: [m(x) for _ in range(10)])
            for m, x in zip(models, inputs, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    run = capture(tmp_path / "run", program)
    names = ["", "Sequential", "Sequential#1", "Sequential#2"]
    found = sorted(
        {(r["summary"]["maximum"], name) for name in names for r in run.find(name, "forward", "input.0")}
    )
    assert [maximum for maximum, _ in found] == [1.0, 2.0, 3.0, 4.0]
    for name in names:
        (value,) = {r["summary"]["maximum"] for r in run.find(name, "forward", "input.0")}
        model = next(m for m, x in zip(models, inputs, strict=True) if x[0, 0] == value)
        x = inputs[int(value) - 1]
        for record in run.find(name, "forward", "output.0"):
            torch.testing.assert_close(run.values(record), model(x))
        assert len(run.find(name, "forward", "output.0")) == 10


@pytest.mark.parametrize("step", range(STEPS))
@pytest.mark.parametrize("lead", [2, 3])
def test_two_threads_that_train_models_of_their_own(step: int, lead: int, tmp_path: Path) -> None:
    """One is the run, as if it were alone; the other is left alone once it turns out to train too."""
    losses: dict[str, list[float]] = {"alone": [], "other alone": [], "run": [], "other": []}

    def alone() -> None:
        for _ in training(linear(0), losses["alone"]):
            pass

    def both() -> None:
        pieces = training(linear(0), losses["run"])
        others = training(linear(1), losses["other"])
        with ThreadPoolExecutor(1) as pool:
            for _ in range(lead):
                next(pieces)
            for _ in pieces:
                in_turn(pool, others)
            for _ in range(lead):
                in_turn(pool, others)

    first = capture(tmp_path / "alone", alone, step=step)
    second = capture(tmp_path / "both", both, step=step)
    for _ in training(linear(1), losses["other alone"]):
        pass
    assert losses["run"] == losses["alone"]
    assert losses["other"] == losses["other alone"]
    assert list(second.trace.steps()) == list(range(STEPS))
    assert second.facts["num_failures"] == 0
    assert any("trains weights of its own beside the run" in limit for limit in second.facts["limits"])
    told = ("losses", "microbatches", "learning_rate", "tokens", "batch_size")
    lines = (
        [{key: line.get(key) for key in told} for line in run.trace.scalars(0)] for run in (first, second)
    )
    assert next(lines) == next(lines)
    if step > 1:
        assert sites(second) == sites(first)
        assert second.digests() == first.digests() != []
    else:
        assert set(first.digests()) <= set(second.digests())


def test_a_pool_in_which_any_worker_takes_the_next_step(tmp_path: Path) -> None:
    def alone() -> None:
        for _ in training(linear(0)):
            pass

    def pooled() -> None:
        pieces = training(linear(0))
        with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
            for number in range(3 * STEPS):
                in_turn((one, two)[number // 3 % 2], pieces)

    runs = [capture(tmp_path / program.__name__, program, step=1) for program in (alone, pooled)]
    assert [list(run.trace.steps()) for run in runs] == [[0, 1, 2]] * 2
    assert runs[0].digests() == runs[1].digests() != []
    assert not runs[1].facts["limits"]


def test_forward_and_backward_in_threads_of_their_own(tmp_path: Path) -> None:
    def alone() -> None:
        for _ in training(linear(0)):
            pass

    def apart() -> None:
        pieces = training(linear(0))
        with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
            for number in range(3 * STEPS):
                in_turn((one, two)[number % 3 > 0], pieces)

    runs = [capture(tmp_path / program.__name__, program, step=1) for program in (alone, apart)]
    assert [list(run.trace.steps()) for run in runs] == [[0, 1, 2]] * 2
    assert runs[0].digests() == runs[1].digests() != []
    assert not runs[1].facts["limits"]


@pytest.mark.parametrize("late", [0.0, 0.03])
def test_another_model_in_another_thread_once_the_first_is_gone(late: float, tmp_path: Path) -> None:
    def program() -> None:
        for _ in training(linear(0)):
            pass

        def train() -> None:
            for _ in training(linear(1)):
                pass

        thread = threading.Thread(target=train)
        thread.start()
        time.sleep(late)  # the other thread may be the faster one
        thread.join()

    run = capture(tmp_path / "run", program, step=4)
    assert list(run.trace.steps()) == list(range(2 * STEPS))
    assert run.find("", "forward", "output.0")
    assert not run.facts["limits"]
