"""The page of advice."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest
import yaml

from trueup.reporting.advisor import _spread, write_advisor
from trueup.reporting.model import report_from


def advice(folder: Path, tmp_path: Path) -> str:
    write_advisor(report_from(folder), tmp_path / "advisor.txt")
    return (tmp_path / "advisor.txt").read_text(encoding="utf-8")


def test_the_first_suspect_is_where_the_error_starts(small: Path, tmp_path: Path) -> None:
    text = advice(small, tmp_path)
    assert "1. layers.2.ln1 · F.layer_norm[0] · output.0   [forward, norm]" in text
    assert "epsilon" in text
    assert "2. " not in text, "the loss and the gradients only inherit it"


@pytest.mark.parametrize("name", ["small", "agreeing", "hostile"])
def test_it_always_ends_in_something_to_do(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    text = advice(request.getfixturevalue(name), tmp_path)
    assert text.startswith("trueup: advice on runs/target against runs/reference\n")
    assert text.split("NEXT\n")[1].strip()
    assert "\x1b" not in text


def test_rules_are_whole_and_the_last_holds_always() -> None:
    document = yaml.safe_load((files("trueup.reporting") / "advice.yaml").read_text(encoding="utf-8"))
    for rule in document["rules"]:
        assert set(rule) == {"phases", "roles", "causes", "check"}
        assert isinstance(rule["causes"], str)
        assert rule["check"]
    assert document["rules"][-1]["phases"] == document["rules"][-1]["roles"] == []


def test_a_call_at_the_root_is_in_no_module() -> None:
    rows = [{"phase": "forward", "module": module} for module in (None, "layers.0", "layers", None)]
    assert _spread(rows) == [rows[0], rows[1]], "what is around a suspect only follows from it"
