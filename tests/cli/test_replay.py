"""``trueup replay``: from a command to the line that made the error."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.capture.programs import run_trueup, write
from trueup.cli import app

pytestmark = pytest.mark.torch

TRAIN = """
import sys
import torch
from torch import nn


class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x):
        hidden = torch.tanh(self.up(x))
        hidden = hidden * FACTOR
        return x + self.down(hidden)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), Half(), nn.LayerNorm(8, eps=EPS), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(2):
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(step))
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs, and references with values of modules, of everything, and of nothing."""
    folder = tmp_path_factory.mktemp("replays")
    good = TRAIN.replace("FACTOR", "2.0").replace("EPS", "1e-5")
    write(folder / "good.py", good)
    write(folder / "bad.py", TRAIN.replace("FACTOR", "2.02").replace("EPS", "1e-3"))
    for name, options in (
        ("modules", ["--preset", "diagnose"]),
        ("everything", ["--level", "mix", "--task", "tensor", "--steps", "0"]),
        ("statistics", ["--steps", "0"]),
    ):
        made = run_trueup("capture", "-o", name, *options, "--", sys.executable, "good.py", cwd=folder)
        assert made.returncode == 0, made.stderr
    return folder


def test_two_faults_and_their_lines(runs: Path) -> None:
    done = run_trueup(
        *("replay", "--reference", "modules", "-o", "l0", "--json", "--", sys.executable, "bad.py"), cwd=runs
    )
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert {o["module"] for o in found["origins"]} == {"1", "2"}
    half = next(o for o in found["origins"] if o["module"] == "1")
    assert half["source"].startswith("bad.py:")
    assert found["step"] == 0
    assert found["equal"] > found["replaced"] > 0
    assert found["schema_version"] == 2
    assert len(half["evidence"]) == len(half["evidence_reasons"]) > 0
    assert [one["code"] for one in half["counter_evidence_reasons"]] == ["replay.bit_identical"]
    assert all(one["reason"] and one["reason_reason"]["code"] for one in found["left"])
    assert (runs / "l0" / "free" / "manifest.json").exists()
    assert (runs / "l0" / "step_000000" / "rank_00000" / "forced.parquet").exists()


def test_refined_to_the_call(runs: Path) -> None:
    done = run_trueup(
        *("replay", "--reference", "everything", "-o", "fine", "--", sys.executable, "bad.py"), cwd=runs
    )
    assert done.returncode == 1, done.stderr
    line = 1 + TRAIN.splitlines().index("        hidden = hidden * FACTOR")
    assert f"bad.py:{line}" in done.stdout
    assert "1, Tensor.mul, output.0" in done.stdout
    assert "F.layer_norm" in done.stdout


def test_the_reference_s_own_program_has_none(runs: Path) -> None:
    done = run_trueup(
        *("replay", "--reference", "modules", "-o", "same", "--", sys.executable, "good.py"), cwd=runs
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no module" in done.stdout


def test_a_free_run_of_one_s_own_and_noise(runs: Path) -> None:
    assert run_trueup("capture", "-o", "own", "--", sys.executable, "bad.py", cwd=runs).returncode == 0
    words = ("replay", "--reference", "modules", "--target", "own", "--no-refine")
    benign = run_trueup(*words[:3], "-o", "benign", "--", sys.executable, "good.py", cwd=runs)
    assert benign.returncode == 0, benign.stderr
    done = run_trueup(
        *words, "--noise-replay", "benign", "-o", "given", "--json", "--", sys.executable, "bad.py", cwd=runs
    )
    assert done.returncode == 1, done.stderr
    assert {o["module"] for o in json.loads(done.stdout)["origins"]} == {"1", "2"}
    assert not (runs / "given" / "free").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-o", "x", "--", sys.executable, "bad.py"], "--reference"),
        (["--reference", "modules", "--", sys.executable, "bad.py"], "-o OUT"),
        (["--reference", "modules", "-o", "x"], "the command is missing"),
        (["--reference", "nowhere", "-o", "x", "--", sys.executable, "bad.py"], "no such trace"),
        (["--reference", "statistics", "-o", "x", "--", sys.executable, "bad.py"], "--preset diagnose"),
        (["--reference", "modules", "--level", "mix", "-o", "x", "--", "p"], "--level mix --task tensor"),
        (["--reference", "modules", "--steps", "7", "-o", "x", "--", sys.executable, "bad.py"], "step"),
        (
            ["--reference", "modules", "--level", "L9", "-o", "x", "--", "p"],
            "--level: expected one of: L0, L1, mix",
        ),
        (["--reference", "modules", "--noise-replay", "own", "-o", "x", "--", "p"], "no replay"),
    ],
)
def test_bad_use(
    runs: Path,
    words: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(runs)
    assert app.run(["replay", *words]) == 2
    assert message in capsys.readouterr().err
