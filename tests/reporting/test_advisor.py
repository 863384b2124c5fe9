"""The page of advice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from trueup.reporting import write_reports
from trueup.reporting.comparison.advice import (
    advice_report,
    causes_of,
    differing_phases,
    without_consequences,
)
from trueup.reporting.comparison.result import PHASE_ORDER, read_result
from trueup.reporting.render import write
from trueup.types.codes import NextCode, SuspectCode
from trueup.types.reason import reason


def advice(folder: Path, tmp_path: Path) -> list[str]:
    written = write_reports(folder, output=tmp_path, formats={"advisor"})["advisor"]
    return written.read_text(encoding="utf-8").splitlines()


def test_the_first_suspect_is_where_the_error_starts(small: Path, tmp_path: Path) -> None:
    lines = advice(small, tmp_path)
    assert "   1. layers.2.ln1 · F.layer_norm[0] · output.0  forward, norm" in lines
    assert any("eps" in line for line in lines)
    assert not any("2. " in line for line in lines), "the loss and the gradients only follow from it"


@pytest.mark.parametrize("name", ["small", "agreeing", "hostile"])
def test_it_always_ends_in_something_to_do(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    lines = advice(request.getfixturevalue(name), tmp_path)
    assert any(line.split() == ["target", "runs/target"] for line in lines)
    assert lines[lines.index("   Next step") + 1].strip()
    assert not any("\x1b" in line or line != line.rstrip() for line in lines)


def test_every_role_and_phase_has_usual_causes() -> None:
    assert causes_of("norm", "forward", set()).code is SuspectCode.NORM
    assert causes_of("norm", "backward", set()).code is SuspectCode.BACKWARD
    assert causes_of("unheard of", "forward", set()).code is SuspectCode.OTHER
    known = {causes_of("", phase, set()).code for phase in PHASE_ORDER if phase != "forward"}
    assert len(known) == len(PHASE_ORDER) - 1
    assert SuspectCode.OTHER not in known


def test_a_call_at_the_root_is_in_no_module() -> None:
    rows = [{"phase": "forward", "module": module} for module in (None, "layers.0", "layers", None)]
    assert without_consequences(rows) == [rows[0], rows[1]], "what is around a suspect only follows from it"


@pytest.mark.parametrize(
    ("phase", "differing", "earlier"),
    [
        ("backward", {"backward"}, 0),
        ("backward", {"forward", "backward"}, 1),
        ("backward", {"loss"}, 1),
        ("optimizer", {"forward", "optimizer"}, 0),
        ("optimizer", {"param_grad"}, 1),
    ],
)
def test_a_check_that_rests_on_earlier_phases_knows_which_differ(
    phase: str, differing: set[str], earlier: int
) -> None:
    assert causes_of("", phase, differing).number("earlier_phase_differs") == earlier


def test_the_differing_phases_are_those_of_the_records(small: Path, agreeing: Path) -> None:
    assert "forward" in differing_phases(read_result(small))
    assert differing_phases(read_result(agreeing)) == set()


@pytest.mark.parametrize("page", [None, Path("o/report.html")])
def test_what_to_do_next_is_a_whole_line_to_copy(small: Path, tmp_path: Path, page: Path | None) -> None:
    target = "runs/" + "long-" * 30
    following = reason(NextCode.READ_REPORT, target=target, reference="R", step=0)
    result = replace(read_result(small), summary={"verdict": {"next_reason": following.to_json()}})
    path = write(advice_report(result, page=page), tmp_path / "advice.txt")
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    tail = lines[lines.index("Next step") + 1 :]
    if page is None:
        assert tail[0] == f"trueup compare {target} R --steps 0 -o OUT"
    else:
        assert str(page) in tail[0]
