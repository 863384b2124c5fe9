"""The page of advice."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
import yaml

from trueup.reporting.advisor import _check, _differing_phases, _spread, write_advisor
from trueup.reporting.advisor import advice as advice_lines
from trueup.reporting.model import Verdict, report_from


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


CHECK = {"agreeing": ["forward", "loss"], "say": "the forward pass agrees", "otherwise": "it differs already"}


@pytest.mark.parametrize(
    ("differing", "said"),
    [
        ({"backward"}, "the forward pass agrees"),
        ({"forward", "backward"}, "it differs already"),
        ({"loss"}, "it differs already"),
    ],
)
def test_a_check_that_rests_on_agreeing_phases_knows_which_differ(differing: set[str], said: str) -> None:
    assert _check(CHECK, differing) == said
    assert _check("compare the masks", differing) == "compare the masks"


def test_the_differing_phases_are_those_of_the_records(small: Path, agreeing: Path) -> None:
    assert "forward" in _differing_phases(report_from(small))
    assert _differing_phases(report_from(agreeing)) == set()


def test_no_check_claims_that_another_phase_agrees_without_a_guard() -> None:
    document = yaml.safe_load((files("trueup.reporting") / "advice.yaml").read_text(encoding="utf-8"))
    for check in (check for rule in document["rules"] for check in rule["check"]):
        if isinstance(check, str):
            assert " agree" not in check
        else:
            assert set(check) == {"agreeing", "say", "otherwise"}


@pytest.mark.parametrize("written", [False, True])
def test_what_to_do_next_is_a_whole_line_to_copy(small: Path, *, written: bool) -> None:
    said = {"next": "trueup compare T R -o OUT", "next_note": "then read report.html at this site"}
    report = replace(report_from(small), verdict=Verdict(**said))
    lines = list(advice_lines(report, Path("o/report.html") if written else None))
    tail = (
        ["  read o/report.html at this site"] if written else [f"  {said['next']}", f"  {said['next_note']}"]
    )
    assert lines[lines.index("NEXT") + 1 :] == tail
