"""Processes that share an output folder: each is captured, and none takes the place of another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.capture.programs import TRAIN, environment, run, run_trueup, write
from trueup.capture import claim
from trueup.importers.opening import open_trace
from trueup.store import Trace
from trueup.store.layout import other_traces

PYTHON = sys.executable

BESIDE = f"""
import os, subprocess, sys
both = [
    subprocess.Popen(
        [{PYTHON!r}, "train.py", steps],
        env={{**os.environ, "MASTER_ADDR": "localhost", "MASTER_PORT": port, "TRUEUP_ROLE": role,
              "RANK": rank, "WORLD_SIZE": world}},
    )
    for role, port, world, steps in (("actor", "29511", "2", "3"), ("critic", "29512", "1", "4"))
    for rank in map(str, range(int(world)))
]
sys.exit(max(process.wait() for process in both))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "train.py", TRAIN)
    return tmp_path


def numbers_of_steps(path: Path) -> dict[int, int]:
    """Rank -> how many steps it wrote the scalars of."""
    trace = Trace(path)
    return {
        rank: len(trace.scalars(rank))
        for rank in sorted({r for there in trace.steps().values() for r in there})
    }


@pytest.mark.torch
def test_two_groups_at_a_time_are_two_traces(folder: Path) -> None:
    write(folder / "launch.py", BESIDE)
    captured = run_trueup("capture", "-o", "run", "--steps", "all", "--", PYTHON, "launch.py", cwd=folder)
    assert captured.returncode == 0, captured.stderr
    (other,) = other_traces(folder / "run")
    found = [numbers_of_steps(folder / "run"), numbers_of_steps(other)]
    assert sorted(found, key=len) == [{0: 4}, {0: 3, 1: 3}]
    assert other.name.startswith(("actor-", "critic-"))
    assert open_trace(other).manifest["beside"]["role"] == other.name.partition("-")[0]
    assert str(other.relative_to(folder)) in captured.stderr
    shown = run_trueup("inspect", "run", cwd=folder)
    assert other.name in shown.stdout.replace("\n", "")
    again = run_trueup("capture", "-o", "run", "--overwrite", "--", PYTHON, "train.py", cwd=folder)
    assert again.returncode == 0
    assert other_traces(folder / "run") == []


@pytest.mark.torch
def test_one_program_after_the_other_in_one_command(folder: Path) -> None:
    both = f"{PYTHON} train.py 2 && {PYTHON} train.py 3"
    captured = run_trueup("capture", "-o", "run", "--", "sh", "-c", both, cwd=folder)
    assert captured.returncode == 0, captured.stderr
    (other,) = other_traces(folder / "run")
    assert [numbers_of_steps(path) for path in (folder / "run", other)] == [{0: 2}, {0: 3}]


@pytest.mark.torch
def test_two_debuggers_at_a_time_in_one_folder(folder: Path) -> None:
    body = TRAIN.replace(
        "for step in",
        "import trueup, time\ndebugger = trueup.PrecisionDebugger(dump_path='run')\nfor step in",
    )
    body = body.replace("    loss = model", "    debugger.start()\n    loss = model").replace(
        "    print(", "    debugger.stop(); debugger.step()\n    time.sleep(0.5)\n    print("
    )
    write(folder / "debugged.py", body)
    jobs = [
        subprocess.Popen([PYTHON, "debugged.py", number], cwd=folder, env=environment())
        for number in ("5", "6")
    ]
    assert [job.wait(timeout=120) for job in jobs] == [0, 0]
    (other,) = other_traces(folder / "run")
    steps = sorted(len(Trace(path).steps()) for path in (folder / "run", other))
    assert steps == [5, 6]


@pytest.mark.torch
def test_a_run_that_has_ended_is_not_added_to(folder: Path) -> None:
    body = TRAIN.replace("for step in", "import trueup; trueup.Tracer('run').start()\nfor step in")
    write(folder / "traced.py", body)
    assert run(PYTHON, "traced.py", cwd=folder).returncode == 0
    again = run(PYTHON, "traced.py", "5", cwd=folder)
    assert again.returncode == 0
    assert "already holds a run" in again.stderr
    assert numbers_of_steps(folder / "run") == {0: 3}
    assert other_traces(folder / "run") == []


def test_the_ranks_of_a_group_share_a_folder_and_another_group_does_not(tmp_path: Path) -> None:
    try:
        assert not claim.is_in_use(tmp_path)
        assert claim.claim(tmp_path, 0, "a", may_continue=False)
        assert claim.is_in_use(tmp_path)
        assert claim.claim(tmp_path, 1, "a", may_continue=False)
        assert not claim.claim(tmp_path, 1, "a", may_continue=False)
        assert not claim.claim(tmp_path, 2, "b", may_continue=True)
    finally:
        claim.release()
    assert not claim.is_in_use(tmp_path)
    write(tmp_path / "ranks" / "rank_00000.json", "{}")
    assert not claim.claim(tmp_path, 1, "b", may_continue=False)
    try:
        assert claim.claim(tmp_path, 1, "b", may_continue=True)
    finally:
        claim.release()


def test_names_of_groups() -> None:
    actor = {"MASTER_ADDR": "h", "MASTER_PORT": "1"}
    assert claim.group_of(2, actor) == claim.group_of(2, dict(actor))
    assert claim.group_of(2, actor) != claim.group_of(2, {**actor, "MASTER_PORT": "2"})
    assert claim.group_of(2, {"TRUEUP_LAUNCH_ID": "x"}) == claim.group_of(2, {"TRUEUP_LAUNCH_ID": "x"})
    places = list(claim.places(Path("run"), 3, "g", {"TRUEUP_ROLE": "the critic/0"}))
    assert places[0] == Path("run")
    assert places[1].parent == Path("run/processes")
    assert places[1].name.startswith("the-critic-0-")
    assert len(set(places)) == 3
