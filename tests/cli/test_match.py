"""``trueup match``: tables, map, JSON and exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trueup.cli import app

pytestmark = pytest.mark.torch


def test_one_program_needs_no_look(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    map_file = tmp_path / "map.yaml"
    sides = [str(runs / "target"), str(runs / "reference")]
    assert app.run(["match", *sides, "-o", str(map_file)]) == 0
    shown = capsys.readouterr().out
    assert "Modules" in shown
    assert "Uncertain" not in shown
    assert "--map" in shown
    assert map_file.read_text().startswith("version: 1")
    map_file.write_text("edited by a person")
    assert app.run(["match", *sides, "-o", str(map_file)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert map_file.read_text() == "edited by a person"
    assert app.run(["match", *sides, "-o", str(map_file), "--overwrite"]) == 0
    assert map_file.read_text().startswith("version: 1")


def test_json(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["match", str(runs / "target"), str(runs / "reference"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["across"] is False
    assert found["modules"][0]["confidence"] == 1.0


def test_a_map_that_is_not_there(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("match", "compare"):
        sides = [str(runs / "target"), str(runs / "reference")]
        assert app.run([verb, *sides, "--map", "none.yaml"]) == 2
        assert "none.yaml" in capsys.readouterr().err
