"""A disk that is slower than the program: the step waits, memory does not grow, and a person is told."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.store.test_trouble import captured, same
from trueup.capture import session
from trueup.store import Trace, tensors
from trueup.types import pieces


class Slow:
    """Writes, later; notes how much waits meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.most_waiting = 0
        self._write, self._seconds = tensors._write_all, seconds
        monkeypatch.setattr(tensors, "_write_all", self)
        whole = tensors._Drain._write_later

        def noted(drain: Any, *args: Any) -> None:
            whole(drain, *args)
            self.most_waiting = max(self.most_waiting, drain._waiting_bytes)

        monkeypatch.setattr(tensors._Drain, "_write_later", noted)

    def __call__(self, file: Any, data: Any) -> None:
        time.sleep(self._seconds)
        self._write(file, data)


def test_memory_is_bounded_and_the_program_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Slow(monkeypatch, 0.002)
    monkeypatch.setattr(tensors, "WAITING_BYTES", 500)
    writer, start = tensors.ChunkWriter(tmp_path), time.monotonic()
    for number in range(50):
        writer.write(str(number), "uint8", (100,), memoryview(bytes(100)))
    assert time.monotonic() - start > 0.05
    writer.close()
    assert 0 < disk.most_waiting <= 500
    assert writer.waited_seconds > 0.05


def test_a_step_that_takes_long_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Slow(monkeypatch, 0.002)
    monkeypatch.setattr(tensors, "PROGRESS_SECONDS", 0.01)
    told: list[tuple[int, int]] = []
    writer = tensors.ChunkWriter(tmp_path, lambda written, waiting: told.append((written, waiting)))
    for number in range(50):
        writer.write(str(number), "uint8", (100,), memoryview(bytes(100)))
    writer.close()
    assert len(told) > 3
    assert told == sorted(told)
    assert told[-1][0] <= 5000


@pytest.mark.torch
def test_a_person_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Slow(monkeypatch, 0.002)
    monkeypatch.setattr(session, "_SLOW_SECONDS", 0.01)
    monkeypatch.setattr(session, "_PROGRESS_BYTES", 0)
    monkeypatch.setattr(tensors, "PROGRESS_SECONDS", 0.01)
    assert same(captured(tmp_path / "run", task="tensor"))
    limits = Trace(tmp_path / "run").rank_facts(0)["limits"]
    assert sum("disk is slower" in limit for limit in limits) == 1
    said = capsys.readouterr().err
    assert said.count("disk is slower") == 1
    assert "of values written" in said


@pytest.mark.torch
def test_a_quick_disk_is_not_called_slow(tmp_path: Path) -> None:
    captured(tmp_path / "run", task="tensor")
    assert not Trace(tmp_path / "run").rank_facts(0)["limits"]


class Stuck:
    """Takes no more after so many writes, until it is released."""

    def __init__(self, after: int) -> None:
        self.left, self.released, self._write = after, threading.Event(), tensors._write_all

    def __call__(self, file: Any, data: Any) -> None:
        self.left -= 1
        if self.left < 0:
            self.released.wait(30)
        self._write(file, data)


@pytest.mark.torch
@pytest.mark.parametrize("after", [1, 20, 60])
def test_a_disk_that_takes_nothing_any_more_does_not_stop_the_program(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = Stuck(after)
    monkeypatch.setattr(tensors, "_write_all", disk)
    monkeypatch.setattr(tensors, "WAITING_BYTES", 500)
    monkeypatch.setattr(pieces, "STUCK_SECONDS", 0.2)
    start = time.monotonic()
    assert same(captured(tmp_path / "run", task="tensor"))
    assert time.monotonic() - start < 20
    disk.released.set()
    assert "taken no values for" in capsys.readouterr().err


@pytest.mark.torch
def test_a_ring_that_gets_nothing_back_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from trueup.adapters.torch.device.values import Ring

    monkeypatch.setattr(pieces, "STUCK_SECONDS", 0.05)
    ring = Ring(256)
    first, empty, second = ring.take(100), ring.take(0), ring.take(64)
    assert len({first, empty, second}) == 3
    with pytest.raises(OSError, match="taken no values"):
        ring.take(64)
    ring.give(second)
    ring.give(empty)
    ring.give(first)
    assert ring.take(256) == 0
