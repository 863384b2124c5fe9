"""``trueup noise`` of a MindSpore program: repeats, and inputs and weights changed by rounding."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trueup.comparing.noise import NoiseProfile
from trueup.comparing.run import compare

pytestmark = [pytest.mark.mindspore, pytest.mark.slow]
PROGRAM = Path(__file__).with_name("programs") / "seeded.py"


def trueup(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "trueup", *words, "--", sys.executable, str(PROGRAM)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


def test_noise_is_measured_and_used(tmp_path: Path) -> None:
    said = trueup(tmp_path, "noise", "-k", "1")
    assert "plain reruns: " in said
    assert "rerun 2 of 2: changed by rounding, seed 0" in said
    trueup(tmp_path, "capture", "-o", "again")
    comparison = compare(tmp_path / "again", tmp_path / "reference")
    assert comparison.summary["verdict"]["outcome"] == "agree"
    moved = NoiseProfile.read(tmp_path / "reference").table["perturbed"].fill_nan(None).drop_nulls()
    assert 0 < moved.max() < 1e-5
