"""Models nobody here wrote: captured whole, the same twice, and a planted fault charged to its owner."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

pytest.importorskip("transformers")

import trueup
from tests.adapters.torch.reading import Captured
from tests.capture.programs import environment
from tests.scripts import train_hf
from trueup.comparing.run import compare

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

SCRIPT = Path(train_hf.__file__)
MODELS = sorted(train_hf.MODELS)


def _eps(model: Any) -> None:
    model.model.layers[1].input_layernorm.variance_epsilon = 1e-4


def _gelu(model: Any) -> None:
    model.transformer.h[1].mlp.act = nn.GELU()


def _scale(model: Any) -> None:
    model.model.layers[0].self_attn.scaling *= 1.01


FAULTS: dict[str, tuple[Callable[[Any], None], str]] = {
    "llama": (_eps, "model.layers.1.input_layernorm"),
    "gpt2": (_gelu, "transformer.h.1.mlp.act"),
    "qwen2_moe": (_scale, "model.layers.0.self_attn"),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[float]]]:
    """One run of each model through the command line, and the losses it printed."""
    folder = tmp_path_factory.mktemp("hf")
    found = {}
    for name in MODELS:
        command = [sys.executable, "-m", "trueup", "capture", "--level", "mix", "--steps", "all"]
        command += ["-o", str(folder / name), "--", sys.executable, str(SCRIPT), name]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        found[name] = folder / name, [float.fromhex(word) for word in done.stdout.split()]
    return found


@pytest.mark.parametrize("name", MODELS)
def test_captured_whole_and_the_same_bits(name: str, runs: dict[str, tuple[Path, list[float]]]) -> None:
    path, losses = runs[name]
    called: set[str] = set()

    def watch(model: Any) -> None:
        for inner, module in model.named_modules():
            module.register_forward_hook(lambda *_, inner=inner: called.add(inner) and None)

    assert train_hf.train(name, watch) == losses
    run = Captured(path, 2)
    assert list(run.trace.steps()) == [0, 1, 2]
    assert run.facts["num_failures"] == 0, run.facts["failures"]
    modules = {c["name"] for c in run.calls if c["kind"] == "module"}
    assert called <= modules
    assert len(called) > 25
    for module in called:
        slots = run.slots(module, "forward", kind="module")
        assert [s for s in slots if s.startswith("output")], module
    assert {r["reason"] for r in run.records if r["summary"] is None} <= {"uninitialised memory"}
    assert [line["loss"] for line in run.trace.scalars(0)] == losses
    trained = [p["fqn"] for p in run.facts["parameters"] if p["tied_to"] is None]
    for fqn in trained:
        assert set(run.slots(fqn, "param_grad")) == {"local", "accumulated", "clipped"}, fqn
        assert "state.exp_avg" in run.slots(fqn, "optimizer"), fqn


@pytest.mark.parametrize("name", MODELS)
def test_the_same_again(name: str, runs: dict[str, tuple[Path, list[float]]], tmp_path: Path) -> None:
    with trueup.Tracer(tmp_path / "again", level="mix", steps="all"):
        train_hf.train(name)
    for step in range(3):
        first, second = (Captured(path, step).digests() for path in (runs[name][0], tmp_path / "again"))
        assert first == second
    assert compare(tmp_path / "again", runs[name][0]).exit_code == 0


@pytest.mark.parametrize("name", MODELS)
def test_a_fault_is_charged_to_its_owner(
    name: str, runs: dict[str, tuple[Path, list[float]]], tmp_path: Path
) -> None:
    fault, owner = FAULTS[name]
    with trueup.Tracer(tmp_path / "faulty", level="mix", steps="all"):
        assert train_hf.train(name, fault) != runs[name][1]
    comparison = compare(tmp_path / "faulty", runs[name][0])
    assert comparison.exit_code == 1
    verdict = comparison.summary["verdict"]
    assert verdict["owner"] == owner, verdict
