"""The command line: a program watched without an edit, then shown."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from trueup.cli.app import run
from trueup.store.layout import whole_steps

pytestmark = pytest.mark.torch

PROGRAM = """
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.AdamW(net.parameters())
for step in range(6):
    loss = (net(torch.randn(4, 8)) * (float("nan") if step == 3 else 1)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run with a NaN at step 3, and what trueup said of it."""
    folder = tmp_path_factory.mktemp("watched")
    program = folder / "train.py"
    program.write_text(PROGRAM)
    import subprocess

    command = [sys.executable, "-m", "trueup", "capture", "--monitor", "--monitor-modules", "ReLU"]
    done = subprocess.run(
        [*command, "-o", str(folder / "run"), "--", sys.executable, str(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "run", done.stderr


def test_the_alarm_is_said_at_once_and_again_at_the_end(watched: tuple[Path, str]) -> None:
    folder, said = watched
    assert said.count("ALARM step 3 NaN: loss NaN") == 1
    assert "ALARM step 3: NaN: loss NaN" in said
    assert "next: trueup monitor" in said
    assert 4 in whole_steps(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["options"]["observer"]["settings"]["modules"] == ["ReLU"]


def test_it_is_shown(watched: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["monitor", str(watched[0])]) == 1
    said = capsys.readouterr().out
    for word in ("loss", "gradient norm", "0.weight", "2.bias", "output of", "dead units", "NaN: loss NaN"):
        assert word in said


def test_json_and_tensorboard(
    watched: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["monitor", str(watched[0]), "--json"]) == 1
    state = json.loads(capsys.readouterr().out)
    assert state["steps"] == 6
    assert state["alarms"][0]["step"] == 3
    assert run(["monitor", str(watched[0]), "--tensorboard", str(tmp_path / "board")]) == 0
    assert list((tmp_path / "board").glob("events.out.tfevents.*"))


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["monitor"], "RUN is missing"),
        (["monitor", "nowhere"], "no such run"),
        (["monitor", "."], "holds no run"),
        (
            ["capture", "-o", "x", "--monitor-every", "2", "--", "python", "x.py"],
            "--monitor-every has no effect without --monitor",
        ),
        (
            ["capture", "-o", "x", "--on-alarm", "true", "--", "python", "x.py"],
            "--on-alarm has no effect without --monitor",
        ),
        (["capture", "-o", "x", "--monitor-config", "none.yaml", "--", "python", "x.py"], "none.yaml"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str],
    word: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == 2
    said = capsys.readouterr().err
    assert word in said
    assert "Traceback" not in said


def test_a_wrong_key_of_the_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "monitor.yaml"
    file.write_text("every: 2\nrules: {spike_sigma: 3}\n")
    command = ["capture", "-o", str(tmp_path / "x"), "--monitor-config", str(file), "--", "python", "x.py"]
    assert run(command) == 2
    assert "rules: unknown option 'spike_sigma'" in capsys.readouterr().err


def test_a_rank_that_is_not_there(watched: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["monitor", str(watched[0]), "--rank", "7"]) == 2
    assert "has ranks 0" in capsys.readouterr().err
