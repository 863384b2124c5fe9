"""Noise of a MindSpore reference: its program is run again, as it was and changed by rounding."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import trueup
from trueup.cli import app
from trueup.comparing.noise import NoiseProfile
from trueup.comparing.run import compare

pytestmark = pytest.mark.mindspore
ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "adapters" / "mindspore" / "programs" / "plain.py"


def test_a_profile_is_measured_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.adapters.mindspore.loops import classic_optimizer

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    reference = tmp_path / "reference"
    with trueup.Tracer(reference, framework="mindspore", steps="0-1"):
        classic_optimizer()
    words = ["noise", "-k", "1", "--reference", reference, "--keep", tmp_path / "kept"]
    assert app.run([*map(str, words), "--", sys.executable, str(PROGRAM)]) == 0, capsys.readouterr().err
    said = " ".join(capsys.readouterr().err.split())
    assert "rerun 2 of 2: changed by rounding, seed 0" in said
    assert "came out bit for bit" in said
    profile = NoiseProfile.read(reference)
    assert (profile.table["repeat"] == 0).all()
    for phase in ("forward", "param_grad", "optimizer"):
        moved = profile.table.filter(profile.table["phase"] == phase)["perturbed"]
        assert 0 < moved.median() < 1e-4, phase  # type: ignore[operator]
    (changed,) = (tmp_path / "kept").glob("perturbed-*")
    result = compare(changed, reference)
    assert result.exit_code == 0
    assert "measured noise, 2 reruns" in result.summary["tolerance"]["origin"]
