"""``trueup noise`` as a person runs it: reruns, a profile beside the trace, and a comparison that uses it."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch

import trueup
from tests.capture.programs import TRAIN, run, run_trueup, write
from trueup.comparing.noise import NoiseProfile
from trueup.diagnosing.noise import NoiseOptions
from trueup.errors import ConfigError
from trueup.store import Trace

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a captured run and its profile; the reruns were kept."""
    folder = tmp_path_factory.mktemp("noise")
    write(folder / "train.py", TRAIN)
    program = [sys.executable, "train.py"]
    assert run_trueup("capture", "-o", "reference", "-q", "--", *program, cwd=folder).returncode == 0
    made = run_trueup(
        "noise", "-k", "2", "--reference", "reference", "--keep", "kept", "--", *program, cwd=folder
    )
    assert made.returncode == 0, made.stderr
    assert "rerun 3 of 3: changed by rounding, seed 1" in made.stderr
    assert "plain reruns: " in made.stderr
    return folder


def test_without_a_reference_the_program_is_captured_first(tmp_path: Path) -> None:
    write(tmp_path / "train.py", TRAIN)
    made = run_trueup("noise", "-k", "1", "--repeats", "0", "--", sys.executable, "train.py", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert "captured first, into reference" in made.stderr
    assert NoiseProfile.read(tmp_path / "reference").num_runs == 1
    assert "labels" in Trace(tmp_path / "reference").manifest["options"]["store_values_of"]


def test_the_profile_lies_beside_the_trace(measured: Path) -> None:
    profile = NoiseProfile.read(measured / "reference")
    facts = json.loads((measured / "reference" / "noise" / "profile.json").read_text())
    assert (profile.num_runs, facts["num_repeats"], facts["num_perturbed"]) == (3, 1, 2)
    assert facts["run_id"] == Trace(measured / "reference").manifest["run_id"]
    assert (profile.table["repeat"] == 0).all(), "one thread, one kernel: a repeat is bit for bit"
    moved = profile.table.filter(profile.table["phase"] == "forward")["perturbed"]
    assert 0 < moved.max() < 1e-5  # type: ignore[operator]
    options = [Trace(path).manifest["options"]["perturb"] for path in sorted((measured / "kept").iterdir())]
    assert sorted(options, key=str) == [0, 1, None]


def test_compare_uses_it_and_says_so(measured: Path, tmp_path: Path) -> None:
    write(measured / "other.py", TRAIN.replace("nn.GELU()", 'nn.GELU(approximate="tanh")'))
    captured = run_trueup(
        "capture", "-o", tmp_path / "target", "-q", "--", sys.executable, "other.py", cwd=measured
    )
    assert captured.returncode == 0
    sides = [str(tmp_path / "target"), "reference"]
    for more, said in (
        ([], "measured noise, 3 reruns"),
        (["--noise", "reference/noise"], "measured noise, 3 reruns"),
        (["--no-noise"], "gives a better one"),
    ):
        shown = run_trueup("compare", *sides, *more, "-o", tmp_path / "out", cwd=measured)
        assert shown.returncode == 1, shown.stderr
        assert said in " ".join(shown.stdout.split())
        result = json.loads((tmp_path / "out" / "result.json").read_text())
        assert said in result["tolerance"]["origin"]
        assert said in (tmp_path / "out" / "report.html").read_text()
        assert result["verdict"]["owner"] == "1"
    both = run_trueup("compare", *sides, "--no-noise", "--noise", "reference", cwd=measured)
    assert both.returncode == 2
    assert "--noise and --no-noise exclude each other" in both.stderr


def test_an_arbiter_on_the_command_line(measured: Path, tmp_path: Path) -> None:
    exact = TRAIN.replace("torch.manual_seed(0)\n", "torch.manual_seed(0)\n", 1)
    exact = exact.replace("nn.Linear(8, 1))", "nn.Linear(8, 1)).double()")
    write(measured / "exact.py", exact.replace("torch.randn(5, 4)", "torch.randn(5, 4).double()"))
    made = run_trueup(
        "capture", "-o", tmp_path / "exact", "-q", "--", sys.executable, "exact.py", cwd=measured
    )
    assert made.returncode == 0
    kept = next(path for path in (measured / "kept").iterdir() if "perturbed" in path.name)
    shown = run_trueup(
        "compare", kept, "reference", "--arbiter", tmp_path / "exact", "-o", tmp_path / "out", cwd=measured
    )
    assert shown.returncode == 0, shown.stdout
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["arbiter"]["less_accurate"]["neither"] > 0
    assert result["arbiter"]["sentence"] in result["notes"]


def test_a_program_that_fails_is_said(measured: Path, tmp_path: Path) -> None:
    shutil.copytree(measured / "reference", tmp_path / "reference", ignore=shutil.ignore_patterns("noise"))
    write(tmp_path / "broken.py", "raise SystemExit(3)")
    words = ["noise", "--reference", "reference", "--", sys.executable, "broken.py"]
    failed = run_trueup(*words, cwd=tmp_path)
    assert failed.returncode == 2
    assert "a rerun of the reference's program failed" in failed.stderr
    assert not (tmp_path / "reference" / "noise").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--", "python", "train.py"], "reference is there already"),
        (["--reference", "reference"], "the command is missing"),
        (["--reference", "nowhere", "--", "python", "train.py"], "no such trace"),
        (
            ["-k", "0", "--repeats", "0", "--reference", "reference", "--", "python"],
            "expected at least one rerun",
        ),
    ],
)
def test_bad_use_is_one_line(measured: Path, words: list[str], said: str) -> None:
    shown = run_trueup("noise", *words, cwd=measured)
    assert shown.returncode == 2
    assert said in shown.stderr
    assert "Traceback" not in shown.stderr


def test_at_least_one_rerun() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        NoiseOptions(num_perturbed=0, num_repeats=0)


# -- a program that calls Tracer itself ------------------------------------------

OWN_TRACER = TRAIN.replace(
    "optimizer = ", "import trueup\n\ntracer = trueup.Tracer('own', steps='0')\noptimizer = "
).replace("    loss = ", "    if step == 1:\n        tracer.start(model)\n    loss = ")
"""its first training step is none of the trace's"""


def test_a_program_s_own_tracer_is_measured_from_where_it_starts(tmp_path: Path) -> None:
    write(tmp_path / "train.py", OWN_TRACER)
    program = [sys.executable, "train.py"]
    assert run(*program, cwd=tmp_path).returncode == 0
    made = run_trueup("noise", "-k", "1", "--reference", "own", "--", *program, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    profile = NoiseProfile.read(tmp_path / "own")
    assert (profile.table["repeat"] == 0).all(), "the rerun's step 0 is the trace's, not the program's first"
    assert Trace(tmp_path / "own").manifest["options"]["tracer"] == 0
    write(tmp_path / "plain.py", TRAIN)
    words = ["noise", "-k", "1", "--reference", "own", "--", sys.executable, "plain.py"]
    lost = run_trueup(*words, cwd=tmp_path)
    assert lost.returncode == 2
    assert "made by a trueup.Tracer inside its program" in lost.stderr


def seeded(*, seed: int = 0) -> None:
    """A whole training in this process."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.randn(5, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_reruns_in_the_process_that_trained(tmp_path: Path) -> None:
    with trueup.Tracer(tmp_path / "run"):
        seeded()
    for tracer in trueup.noise_reruns(tmp_path / "run", perturbed=2):
        assert not (tmp_path / "run" / "noise").exists()
        with tracer:
            seeded()
    profile = NoiseProfile.read(tmp_path / "run", of_run=Trace(tmp_path / "run").manifest)
    assert profile.num_runs == 3
    assert (profile.table["repeat"] == 0).all()
    assert profile.table["perturbed"].max() > 0  # type: ignore[operator]


def test_a_rerun_of_another_training_is_no_noise(tmp_path: Path) -> None:
    with trueup.Tracer(tmp_path / "run"):
        seeded()
    reruns = trueup.noise_reruns(tmp_path / "run")
    next(reruns)
    with pytest.raises(ConfigError, match="left no trace"):
        next(reruns)
    reruns = trueup.noise_reruns(tmp_path / "run")
    with next(reruns):
        seeded(seed=1)
    with pytest.raises(ConfigError, match="begins with other weights"):
        next(reruns)
    assert not (tmp_path / "run" / "noise").exists()
