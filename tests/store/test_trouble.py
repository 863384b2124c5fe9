"""Trouble with the disk or in capture itself: said once, listed, and training goes on to the same end."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import trueup
from tests.adapters.torch.reading import Captured
from tests.warm import COLD
from trueup.adapters.torch import gradients, modules
from trueup.adapters.torch.engine import Engine
from trueup.adapters.torch.stats import Summariser
from trueup.adapters.torch.training import Training
from trueup.capture.recorder import StepRecorder
from trueup.store import RunWriter, Trace, tensors, writer

pytestmark = pytest.mark.torch


def train(steps: int = 3) -> list[Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for step in range(steps):
        model(torch.full((2, 4), float(step + 1))).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().clone() for p in model.parameters()]


def same(actual: list[Tensor]) -> bool:
    return all(torch.equal(a, e) for a, e in zip(actual, train(), strict=True))


def captured(path: Path, **options: Any) -> list[Tensor]:
    with trueup.Tracer(path, **{"level": "mix", "steps": "all", **options}):
        return train()


class Full:
    """A disk that is full after so many writes."""

    def __init__(self, original: Callable[..., Any], after: int) -> None:
        self.left = after
        self._original = original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._original(*args, **kwargs)


@pytest.mark.parametrize("after", [0, 1, 5, 40])
def test_the_disk_fills_up_with_values(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(tensors, "_write_all", Full(tensors._write_all, after))
    assert same(captured(tmp_path / "run", task="tensor"))
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1, said
    assert "No space left" in said[0]
    assert "training continues" in said[0]
    trace = Trace(tmp_path / "run")
    for step in trace.steps():
        run = Captured(tmp_path / "run", step)
        assert all(run.values(r) is not None for r in run.records)
    assert not list((tmp_path / "run").glob("**/*.writing-*"))


@pytest.mark.parametrize(("after", "kept"), [(0, []), (2, []), (4, [0]), (6, [0, 1])])
def test_the_disk_fills_up_with_tables(
    after: int, kept: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(writer, "write_table", Full(writer.write_table, after))
    assert same(captured(tmp_path / "run"))
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert list(Trace(tmp_path / "run").steps()) == kept
    assert not list((tmp_path / "run").glob("**/*.writing-*"))


@pytest.mark.parametrize("links", [True, False])
def test_tables_that_repeat_are_written_once_where_the_file_system_can_link(
    links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:
        monkeypatch.setattr(writer.os, "link", Full(writer.os.link, 0))
    assert same(captured(tmp_path / "run"))
    trace = Trace(tmp_path / "run")
    one, two = trace.read(1, 0), trace.read(2, 0)
    assert one.calls.equals(two.calls)
    assert one.stacks.equals(two.stacks)
    assert not one.summaries.equals(two.summaries)
    files = [tmp_path / "run" / f"step_00000{s}" / "rank_00000" / "calls.parquet" for s in (1, 2)]
    assert files[0].samefile(files[1]) == links


def test_the_disk_is_full_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(writer, "write_json", Full(writer.write_json, 0))
    assert same(captured(tmp_path / "run"))
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_real_disk_of_one_mebibyte(tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("no small file system can be mounted here")
    try:
        program = f"""
import torch, trueup
from torch import nn
trueup.Tracer({str(place / "run")!r}, level="mix", task="tensor", steps="all").start()
model = nn.Linear(128, 128)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(8):
    model(torch.randn(64, 128)).sum().backward(); optimizer.step(); optimizer.zero_grad()
print("end", flush=True)
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
        for step in Trace(place / "run").steps():
            run = Captured(place / "run", step)
            assert all(run.values(r) is not None for r in run.records)
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_files_that_may_not_grow(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("""
import torch
from torch import nn
model = nn.Linear(128, 128)
for step in range(3):
    model(torch.randn(64, 128)).sum().backward()
print("end", flush=True)
""")
    capture = [COLD, "-m", "trueup", "capture", "--task", "tensor", "-o", str(tmp_path / "run")]
    done = subprocess.run(
        ["sh", "-c", 'ulimit -f 20; exec "$@"', "-", *capture, "--", COLD, str(program)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (2, "end\n"), done.stderr
    why = "step 0 could not be written: [Errno 27] File too large"
    first, second, third = done.stderr.splitlines()
    assert first == f"trueup: {why}. Capture is disabled, training continues."
    assert second == f"trueup: nothing captured: {why}"
    assert third.startswith("trueup: next: make room there")


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "file").write_text("in the way")
    assert same(captured(tmp_path / "file" / "run"))
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "cannot be written" in said[0]


def test_a_folder_that_holds_another_run(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "run"
    captured(path)
    before = {p: p.read_bytes() for p in path.glob("**/*") if p.is_file()}
    assert same(captured(path))
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "already holds a run" in said[0]
    assert {p: p.read_bytes() for p in path.glob("**/*") if p.is_file()} == before


def test_overwriting_leaves_nothing_of_the_run_before(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "run"
    captured(path)
    (path / "step_000001" / "rank_00005").mkdir()
    (path / "step_000007" / "rank_00000.writing-123").mkdir(parents=True)
    captured(path, steps="1", overwrite=True)
    assert Trace(path).steps() == {1: [0]}
    assert [line["step"] for line in Trace(path).scalars(0)] == [0, 1, 2]
    assert not (path / "step_000007").exists()
    assert capsys.readouterr().err == ""


# -- failures of our own -----------------------------------------------


def broken(*_: Any, **__: Any) -> Any:
    raise LookupError("broken on purpose")


OURS = {
    "summary": (Summariser, "row"),
    "parameters": (Training, "root"),
    "batch": (Training, "_note_batch"),
    "loss": (Training, "loss"),
    "after backward": (Training, "after_backward"),
    "parameter call": (Engine, "parameter_call"),
    "before update": (Training, "before_update"),
    "after update": (Training, "after_update"),
    "module enter": (modules, "_enter"),
    "module leave": (modules, "_leave"),
    "edges": (gradients, "edges"),
    "output hooks": (gradients, "at_outputs"),
    "record": (Engine, "tensor"),
    "columns": (StepRecorder, "columns"),
    "tables": (writer, "write_table"),
    "finish": (RunWriter, "finish_step"),
    "store values": (StepRecorder, "store_values"),
}


@pytest.mark.parametrize("what", OURS)
def test_our_own_failures_are_listed_and_training_goes_on(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    expected = train()
    home, name = OURS[what]
    monkeypatch.setattr(home, name, broken)
    actual = captured(tmp_path / "run", task="tensor")
    assert all(torch.equal(a, e) for a, e in zip(actual, expected, strict=True))
    facts = Trace(tmp_path / "run").rank_facts(0)
    assert facts["num_failures"] > 0
    assert "broken on purpose" in facts["failures"][0]["error"]
    assert len(facts["failures"]) <= 50
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "Training continues" in said[0]
    monkeypatch.undo()
    assert same(captured(tmp_path / "next"))
    assert list(Trace(tmp_path / "next").steps()) == [0, 1, 2]
    assert Trace(tmp_path / "next").rank_facts(0)["num_failures"] == 0
