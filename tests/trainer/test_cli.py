"""``trueup train`` as a person uses it: one process and several, its logs, its mistakes, its end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer

from tests.capture.programs import environment
from trueup.errors import ConfigError
from trueup_gpt.cli import command

pytestmark = [pytest.mark.torch, pytest.mark.distributed]
TP2 = "parallel_config.tensor_model_parallel_size=2"
LINE = re.compile(
    r"train: Epoch:0, Step:(\d+), Loss: (\d+\.\d{6}), Finite_grads: True, Loss_scale: 1\.0, "
    r"Learning_rate: \(\d\.\d{6}e[+-]\d\d,\d\.\d{6}e[+-]\d\d,\), Time: \d+\.\d\d ms, Grad_norm: "
)


def _command(*words: str) -> list[str]:
    sets = ["training_config.log_interval=1", "training_config.training_iters=3"]
    given = [word for one in sets for word in ("--set", one)]
    return [sys.executable, "-m", "trueup_gpt", "tiny", "--device", "cpu", *given, *words]


def _environment() -> dict[str, str]:
    return environment() | {"OMP_NUM_THREADS": "1"}


def _train(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        _command(*words),
        cwd=cwd,
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_one_process_and_two_log_the_same_losses(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    alone = _train(tmp_path / "one")
    assert alone.returncode == 0, alone.stderr
    both = _train(tmp_path / "two", "--nproc", "2", "--set", TP2)
    assert both.returncode == 0, both.stderr
    found = []
    for folder, rank in (("one", 0), ("two", 0), ("two", 1)):
        text = (tmp_path / folder / "output" / "log" / f"rank_{rank}" / "info.log").read_text()
        found.append([match.groups() for match in LINE.finditer(text)])
        assert (tmp_path / folder / "output" / "log" / f"rank_{rank}" / "error.log").read_text() == ""
    assert [step for step, _ in found[0]] == ["0", "1", "2"]
    assert found[1] == found[2]
    assert [float(loss) for _, loss in found[1]] == pytest.approx(
        [float(loss) for _, loss in found[0]], abs=1e-5
    )
    assert alone.stdout.startswith("dp 1 | pp 1 | tp 1 | sp False | vpp 1\n")
    assert both.stdout.startswith("dp 1 | pp 1 | tp 2 | sp False | vpp 1\n")
    metrics = [
        json.loads(line) for line in (tmp_path / "one" / "output" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [f"{one['loss']:.6f}" for one in metrics] == [loss for _, loss in found[0]]


def test_a_dead_process_ends_all_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "output" / "log").mkdir(parents=True)
    (tmp_path / "output" / "log" / "rank_1").write_text("in the way")
    began = time.monotonic()
    done = _train(tmp_path, "--nproc", "2", "--set", TP2, "--set", "training_config.training_iters=100000")
    assert done.returncode != 0
    assert "error: rank 1: FileExistsError" in done.stderr
    assert time.monotonic() - began < 100


def test_a_signal_saves_and_the_next_run_goes_on(tmp_path: Path) -> None:
    number = signal.SIGTERM
    endless = ("--set", "training_config.training_iters=100000")
    process = subprocess.Popen(
        _command(*endless),
        cwd=tmp_path,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    seen = 0
    while seen < 3:
        line = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr else ""
        seen += line.startswith("train:")
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert f"ended by {number.name} after step" in err
    saved = [path.name for path in (tmp_path / "output" / "checkpoints").iterdir()]
    assert len(saved) == 1
    step = int(saved[0].rpartition("_")[2])
    resumed = _train(tmp_path, "--resume", "--set", f"training_config.training_iters={step + 1}")
    assert f"resumed from output/checkpoints/{saved[0]}, step {step}" in resumed.stdout
    assert f"Step:{step}," in resumed.stdout


def test_validation_keeps_the_best(tmp_path: Path) -> None:
    sets = (
        "dataset_config.validation_share=0.1",
        "training_config.eval_interval=1",
        "training_config.eval_iters=1",
        "training_config.save_interval=3",
    )
    done = _train(tmp_path, *(word for one in sets for word in ("--set", one)))
    assert done.returncode == 0, done.stderr
    losses = [
        float(loss) for loss in re.findall(r"eval: Step:\d+, Loss: (\d+\.\d+), Perplexity", done.stdout)
    ]
    assert len(losses) == 3
    assert losses[0] > losses[2]
    names = sorted(path.name for path in (tmp_path / "output" / "checkpoints").iterdir())
    assert names == ["network_00000003", "network_best"]


def _here(*words: str) -> None:
    """The command in this process: starting another is what takes the time."""
    app = typer.Typer()
    app.command()(command)
    app([*_command()[3:], *words], standalone_mode=False)


def test_a_dry_run_shows_each_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.command()(command)
    app(["pretrain_gpt_70B", "--dry-run"], standalone_mode=False)
    shown = capsys.readouterr().out
    assert shown.startswith("68,976,648,192 parameters\n32 processes: dp 1 | pp 4 | tp 8\n")
    assert len([line for line in shown.splitlines() if re.match(r"\s+\d\s+20\s", line)]) == 4
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--set", TP2), "1 process cannot be cut into tensor 2"),
        (("--nproc", "3", "--set", TP2), "3 processes cannot be cut into tensor 2"),
        (("--device", "tpu"), "device 'tpu': expected one of cpu, cuda, npu"),
        (("--set", "dataset_config.dataset_dir=none"), "dataset_dir none is not there"),
        (("--export", "out"), "output holds no checkpoint"),
    ],
)
def test_a_mistake_says_what_is_wrong(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=re.escape(said)):
        _here(*words)


def test_what_trains_nothing_names_what_it_ignores(capsys: pytest.CaptureFixture[str]) -> None:
    command(Path("tiny"), dry_run=True, resume=True, synchronous=True)
    said = capsys.readouterr().err
    assert "--resume has no effect with --dry-run" in said
    assert "--synchronous has no effect with --dry-run" in said
    command(Path("tiny"), dry_run=True)
    assert "has no effect" not in capsys.readouterr().err
    with pytest.raises(ConfigError, match="--dry-run and --export exclude each other"):
        command(Path("tiny"), dry_run=True, export=Path("x"))


def test_a_mistake_is_one_line(tmp_path: Path) -> None:
    done = _train(tmp_path, "--set", "training_config.sead=1")
    assert done.returncode == 2
    assert done.stderr == "error: tiny: in 'training_config': unknown key 'sead'; did you mean 'seed'?\n"


def test_trueup_finds_the_command_where_it_is_installed(tmp_path: Path) -> None:
    """By its entry point: metadata of the kind an installation leaves."""
    folder = tmp_path / "trueup_gpt_test-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: trueup-gpt-test\nVersion: 1\n")
    (folder / "entry_points.txt").write_text("[trueup.commands]\ntrain = trueup_gpt.cli:command\n")
    path = os.pathsep.join([_environment()["PYTHONPATH"], str(tmp_path)])
    words = [sys.executable, "-m", "trueup", "train", "nothing.yaml"]
    done = subprocess.run(
        words,
        cwd=tmp_path,
        env=_environment() | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "nothing.yaml is not there; shipped are pretrain_gpt_13B" in done.stderr
    assert "hint: trueup train --help lists every option" in done.stderr
    assert done.returncode == 2


@pytest.mark.usefixtures("cold")
def test_help_and_import_are_light(tmp_path: Path) -> None:
    """``trueup --help`` loads the command; nothing heavy comes with it."""
    body = "import sys, trueup_gpt, trueup_gpt.cli; print(sorted({n.partition('.')[0] for n in sys.modules}))"
    words = [sys.executable, "-c", body]
    done = subprocess.run(words, cwd=tmp_path, env=_environment(), capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout.replace("'", '"')))
    assert "typer" in loaded
    assert not loaded & {"torch", "numpy", "pydantic", "yaml"}
