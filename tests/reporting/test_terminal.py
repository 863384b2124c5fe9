"""The one screen, drawn at fixed widths."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from trueup.reporting import print_summary, write_reports
from trueup.reporting.comparison.result import read_result, to_json
from trueup.types.codes import NextCode
from trueup.types.reason import reason


def drawn(folder: Path, width: int, *, colour: bool = False, reports: dict[str, Path] | None = None) -> str:
    stream = io.StringIO()
    console = Console(
        file=stream, width=width, force_terminal=colour, color_system="truecolor" if colour else None
    )
    print_summary(folder, console, reports=reports)
    return stream.getvalue()


EXPECTED = """
 ✗ The runs part in layers.2.ln1, in the forward pass of step 0.

   location    layers.2.ln1 · torch.nn.functional.layer_norm[0] · output.0
               step 0 · rank 0 · forward
   source      both model.py:61 forward  F.layer_norm(x, (256,), self.weight, self.bias, self.eps)
   confidence  likely
   evidence    its output differs by 3.10e-03 relative (L2), 1,292 times the tolerance of 2.4e-06
               every input of this call is bit-equal in both runs
               the error stays in every later layer and in 31 of 34 weight gradients
   preceding   61 records ran before it in this step: 61 bit-equal, 0 within rounding.

   first to exceed tolerance                   phase     rel L2  tolerance  × tolerance
 ≠ layers.2.ln1 · F.layer_norm[0] · output.0   forward   3.1e-3     2.4e-6       1,292×
 ≠ layers.2.ln1 · input.0                      forward   3.1e-3     2.4e-6       1,292×
"""


def test_the_screen_at_100_columns(small: Path) -> None:
    screen = drawn(small, 100, reports={"html": small / "report.html"})
    lines = [line.rstrip() for line in screen.splitlines()]
    assert lines[: len(EXPECTED.splitlines())] == EXPECTED.splitlines()
    assert len(lines) <= 30
    assert any(line.startswith("   next step   trueup replay") for line in lines)
    assert any("report.html" in line for line in lines)


@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize("name", ["small", "agreeing", "hostile"])
def test_no_line_is_wider_than_the_terminal(name: str, width: int, request: pytest.FixtureRequest) -> None:
    screen = drawn(request.getfixturevalue(name), width)
    assert max(map(len, screen.splitlines())) <= width
    assert not any(line.rstrip().endswith(tuple("◆≠▲→∅≈=")) for line in screen.splitlines())  # a mark alone
    assert len(screen.splitlines()) <= (34 if width == 80 else 30)


def test_colour_adds_nothing_but_colour(small: Path) -> None:
    plain = drawn(small, 100)
    assert "\x1b[" not in plain
    assert "\x1b[" in drawn(small, 100, colour=True)


def test_agreement_is_short_and_names_no_place(agreeing: Path) -> None:
    screen = drawn(agreeing, 100)
    assert "✓" in screen
    assert "location" not in screen
    assert "exceed" not in screen


def test_markup_in_names_is_text(hostile: Path) -> None:
    assert "[/red]" not in drawn(hostile, 100)
    summary = dict(read_result(hostile).summary)
    assert summary["verdict"]["outcome"] == "differ"


def test_json_names_verdict_and_site_first(small: Path) -> None:
    summary = dict(read_result(small).summary)
    summary["scalars"] = [{"target": float("inf"), "reference": float("nan")}]
    text = to_json(summary)
    document = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert next(iter(document)) == "verdict"
    assert list(document["verdict"])[:2] == ["outcome", "where"]
    assert text.index('"outcome"') < text.index('"where"') < 120


def test_render_prints_only_to_a_console(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = write_reports(small, output=tmp_path, formats={"advisor"})
    assert capsys.readouterr().out == ""
    assert [path.suffix for path in written.values()] == [".txt"]


def test_the_first_notes_are_shown_and_the_others_counted(small: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(small, tmp_path / "noted"))
    summary = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    summary["layouts"] = ["target: 2 ranks as whole tensors."]
    summary["notes"] = [*summary["layouts"], *(f"what is missing, {n}, [red]" for n in range(5)), "x" * 999]
    (folder / "result.json").write_text(json.dumps(summary), encoding="utf-8")
    screen = drawn(folder, 100)
    assert "note        what is missing, 0, [red]" in screen
    assert "what is missing, 2" in screen
    assert "what is missing, 3" not in screen
    assert "and 3 more" in screen
    assert screen.count("2 ranks as whole") == 1, "layouts have lines of their own"
    summary["notes"] = ["x" * 999]
    (folder / "result.json").write_text(json.dumps(summary), encoding="utf-8")
    assert sum("xxx" in line for line in drawn(folder, 100).splitlines()) == 3


def with_verdict(folder: Path, tmp_path: Path, **changed: object) -> Path:
    """The result with another verdict."""
    copied = shutil.copytree(folder, tmp_path / "changed")
    summary = json.loads((copied / "result.json").read_text(encoding="utf-8"))
    summary["verdict"] |= changed
    (copied / "result.json").write_text(json.dumps(summary), encoding="utf-8")
    return copied


def test_a_command_ends_its_line_and_its_note_is_on_the_next(small: Path, tmp_path: Path) -> None:
    command = "trueup capture --steps 0 -o RUN -- python train.py"
    folder = with_verdict(small, tmp_path, next=command, next_note="on both sides")
    lines = [line.rstrip() for line in drawn(folder, 100).splitlines()]
    at = lines.index(f"   next step   {command}")
    assert lines[at + 1].strip() == "On both sides"


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("code", [NextCode.READ_REPORT, NextCode.READ_UNDECIDED])
def test_the_report_that_was_written_is_named_not_to_be_made_again(
    small: Path, tmp_path: Path, code: NextCode, *, written: bool
) -> None:
    following = reason(code, target="T", reference="R", step=0)
    folder = with_verdict(small, tmp_path, next="trueup compare", next_reason=following.to_json())
    page = Path("out/report.html")
    screen = drawn(folder, 100, reports={"html": page} if written else {})
    assert ("next step   Read out/report.html" in screen) is written
    assert ("trueup compare T R" in screen) is not written


def test_the_unmatched_example_is_not_cut(small: Path, tmp_path: Path) -> None:
    folder = with_verdict(small, tmp_path)
    summary = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    reason = (
        "no counterpart: the target calls torch.Tensor.__getitem__, torch.Tensor.flatten here, and no other"
    )
    summary["unmatched"][0]["reason"] = reason
    (folder / "result.json").write_text(json.dumps(summary), encoding="utf-8")
    screen = " ".join(drawn(folder, 80).split())
    assert reason in screen
