"""Gradients that a program gathers for masters of its weights: how often each microbatch counts in them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from trueup.diagnosing.diagnosis import Diagnosis
from trueup.diagnosing.pipeline import diagnose
from trueup.diagnosing.stages.master_gradients import _counted
from trueup.types.codes import StagesCode as Stages
from trueup.types.finding import Stage
from trueup.types.status import Outcome

PROGRAM = """
import sys
import torch

kind, dtype = sys.argv[1], getattr(torch, sys.argv[2])
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4)).to(dtype)
weights = list(model.parameters())
copies = [weight.detach().float().clone().requires_grad_() for weight in weights]
optimizer = torch.optim.AdamW(copies, lr=1e-3)

def gather(last):
    if kind == "at the end" and not last or kind == "last alone" and not last:
        if kind == "last alone":
            model.zero_grad()
        return
    for weight, copy in zip(weights, copies):
        part = weight.grad.detach().float().clone()
        copy.grad = part if copy.grad is None else copy.grad + part
        if kind != "not cleared":
            weight.grad = None

for step in range(2):
    for microbatch in range(3):
        (model(torch.randn(8, 16).to(dtype)).float().square().mean() / 3).backward()
        gather(microbatch == 2)
    torch.nn.utils.clip_grad_norm_(copies, 0.1)
    optimizer.step()
    with torch.no_grad():
        for weight, copy in zip(weights, copies):
            weight.copy_(copy)
    model.zero_grad()
    optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gathered")
    (folder / "program.py").write_text(PROGRAM, encoding="utf-8")
    for kind in ("each", "at the end", "not cleared", "last alone"):
        for dtype in ("float32",) if kind == "last alone" else ("float32", "bfloat16"):
            command = [sys.executable, "-m", "trueup", "capture", "-o", str(folder / f"{kind} {dtype}")]
            options = ["--preset", "diagnose", "--", sys.executable, str(folder / "program.py"), kind, dtype]
            subprocess.run([*command, *options], check=True, capture_output=True)
    return folder


def diagnosed(runs: Path, target: str, reference: str) -> Diagnosis:
    return diagnose(runs / target, runs / reference, output=runs / f"{target} against {reference}")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_microbatches_that_are_gathered_again_are_counted(runs: Path, dtype: str) -> None:
    """What a program does not clear after it took it, it takes again with the next microbatch."""
    found = diagnosed(runs, f"not cleared {dtype}", f"each {dtype}").findings[0]
    assert (found.stage, found.headline.code) == (Stage.REDUCTION, Stages.WEIGHTED)
    counts = found.evidence[0]
    assert counts.code is Stages.MASTER_COUNTS
    assert (counts.place("target"), counts.place("reference")) == (("3", "2", "1"), ("1", "1", "1"))


@pytest.mark.slow
def test_microbatches_that_never_reach_a_master_are_named(runs: Path) -> None:
    found = diagnosed(runs, "last alone float32", "each float32").findings[0]
    assert found.headline.code is Stages.LACKS_MICROBATCHES
    assert found.headline.place("microbatches") == ("0", "1")


@pytest.mark.slow
def test_when_a_program_gathers_is_its_own_affair(runs: Path) -> None:
    """In float32 one sum is the other to rounding, whatever backward left in the weights of the model."""
    diagnosis = diagnosed(runs, "at the end float32", "each float32")
    assert not diagnosis.findings
    assert diagnosis.outcome is Outcome.AGREE


def test_a_gradient_of_something_else_is_no_sum() -> None:
    """A sum that bfloat16 rounded a few times is one; gradients of another weight leave nearly all over."""
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=256) for _ in range(3)]
    total = 0.25 * (2 * parts[0] + parts[1] + parts[2])
    noisy = total * (1 + rng.uniform(-(2**-8), 2**-8, 256))
    exact = _counted("m", noisy, parts)
    assert exact is not None
    assert np.allclose(exact.counts, (2, 1, 1), rtol=0.02)
    assert _counted("m", rng.normal(size=256), parts) is None
    assert _counted("m", total, [parts[0], None, parts[2]]) is None
