"""What a capture is said to cost, beside what it then costs."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.capture.programs import environment, run_trueup, write
from trueup.capture.estimating import Estimate, estimate
from trueup.capture.options import CaptureOptions, Level, StepSet, Task
from trueup.capture.presets import PRESETS
from trueup.errors import ConfigError
from trueup.store import Trace

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
import torch
from bugzoo.models.gpt import GPT, GPTConfig, batch, loss_of

config = GPTConfig(vocab_size=256, num_layers=4, hidden_size=64, num_heads=4, seq_length=32, dropout=0.0)
torch.manual_seed(0)
with torch.device(sys.argv[1]):
    model = GPT(config)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(int(sys.argv[2])):
        inputs, labels = (one.to(sys.argv[1]) for one in batch(config, step=step, size=2))
        optimizer.zero_grad()
        loss = loss_of(model, inputs, labels)
        loss.backward()
        optimizer.step()
        if sys.argv[1] == "cpu":
            print("loss", step, loss.item().hex(), flush=True)
"""
DIAGNOSE = PRESETS["diagnose"](CaptureOptions(output=Path("run")))
TENSOR = replace(DIAGNOSE, store_values_of=frozenset(), task=Task.TENSOR, level=Level.MIX)
WORDS = {"diagnose": ["--preset", "diagnose"], "tensor": ["--task", "tensor", "--level", "mix"]}


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("program") / "train.py", PROGRAM)


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "src")]))


def estimated(
    options: CaptureOptions, script: Path, folder: Path, *, device: str = "cpu", steps: int = 8
) -> Estimate:
    command = [sys.executable, str(script), device, str(steps)]
    return estimate(replace(options, output=folder / "run"), command)


def captured(script: Path, folder: Path, *words: str) -> tuple[Trace, int]:
    """A capture of two steps, and its bytes on disk."""
    done = run_trueup(
        "capture", "-o", "real", *words, "--", sys.executable, script, "cpu", "2", cwd=folder,
        env=environment(PYTHONPATH=str(ROOT)),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    trace = Trace(folder / "real")
    return trace, sum(p.stat().st_size for p in trace.path.rglob("*") if p.is_file())


@pytest.mark.parametrize(("name", "options"), [("diagnose", DIAGNOSE), ("tensor", TENSOR)])
def test_an_estimate_is_what_the_capture_takes(
    name: str, options: CaptureOptions, script: Path, tmp_path: Path
) -> None:
    found = estimated(options, script, tmp_path)
    trace, num_bytes = captured(script, tmp_path, *WORDS[name])
    assert abs(found.num_bytes / num_bytes - 1) < 0.05
    assert [cost.num_tensors for cost in (found.first[0], found.later[0])] == [
        len(trace.read(step, 0).summaries) for step in (0, 1)
    ]
    assert None not in (found.seconds_on, found.seconds_off)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["real"]  # the estimate has left nothing


def test_smaller_captures_are_as_small_as_said(script: Path, tmp_path: Path) -> None:
    found = estimated(DIAGNOSE, script, tmp_path)
    for words in (("--scope layers.0 layers.1",), ("--no-optimizer",), ("--no-backward",), ("--steps 0",)):
        said = next(choice.num_bytes for choice in found.choices if choice.words == words)
        folder = tmp_path / words[0]
        folder.mkdir()
        _, num_bytes = captured(script, folder, *WORDS["diagnose"], *words[0].split())
        assert abs(said / num_bytes - 1) < 0.2, words


def test_on_the_meta_device_the_same_comes_out(script: Path, tmp_path: Path) -> None:
    found = estimated(DIAGNOSE, script, tmp_path, device="meta")
    _, num_bytes = captured(script, tmp_path, *WORDS["diagnose"])
    assert abs(found.num_bytes / num_bytes - 1) < 0.2


def test_what_does_not_fit_comes_with_advice_that_does(script: Path, tmp_path: Path) -> None:
    found = estimated(DIAGNOSE, script, tmp_path)
    assert found.advice is None
    tight = replace(found, options=replace(found.options, max_bytes=found.num_bytes * 2 // 3))
    assert tight.advice is not None
    assert tight.advice.num_bytes <= tight.room_bytes
    assert replace(found, options=replace(found.options, max_bytes=1)).advice is None


def test_a_program_that_does_not_train_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no step was captured"):
        estimate(replace(DIAGNOSE, output=tmp_path / "run"), [sys.executable, "-c", "pass"])


def test_a_trace_keeps_to_its_size(script: Path, tmp_path: Path) -> None:
    _, whole = captured(script, tmp_path, *WORDS["diagnose"])
    (tmp_path / "less").mkdir()
    trace, num_bytes = captured(script, tmp_path / "less", *WORDS["diagnose"], "--max-bytes", str(whole // 2))
    assert num_bytes < whole // 2 + 150_000  # facts of the run, tables of the step under way
    assert any("--max-bytes" in limit for limit in trace.rank_facts(0)["limits"])
    first = trace.read(0, 0).summaries
    assert first["chunk"].is_not_null().any()
    assert first["digest"].is_not_null().all()  # statistics of all tensors are there


def test_ranks_are_sampled_evenly() -> None:
    options = CaptureOptions(output=Path("run"), sample_ranks=3)
    assert sorted(options.ranks_of(8)) == [0, 2, 5]
    assert sorted(options.ranks_of(2)) == [0, 1]
    chosen = replace(options, sample_ranks=None, ranks=StepSet(((1, 2),)))
    assert sorted(chosen.ranks_of(8)) == [1, 2]
