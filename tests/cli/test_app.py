"""The command line as a whole: help, mistakes, exit statuses."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

import pytest
import typer

from tests.capture.programs import environment, python, run_trueup
from trueup import __version__
from trueup.cli import app, main


def test_help_names_every_verb(tmp_path: Path) -> None:
    result = run_trueup("--help", cwd=tmp_path)
    assert result.returncode == 0
    for verb in ("capture", "check-run", "compare", "inspect", "export", "seed-all"):
        assert f" {verb} " in result.stdout
        assert run_trueup(verb, "--help", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("verb", sorted(typer.main.get_command(app.app).commands))  # type: ignore[attr-defined]
def test_help_is_whole_at_80_columns(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with mock.patch.dict(os.environ, COLUMNS="80", TERMINAL_WIDTH="80"):
        assert app.run([verb, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Options" in shown
    assert "…" not in shown


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["--version"]) == 0
    assert capsys.readouterr().out == f"trueup {__version__}\n"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["frob"], "No such command 'frob'"),
        (["--nope"], "No such option: --nope"),
        (["inspect"], "Missing argument 'RUN'"),
        (["inspect", "nope"], "no such trace: nope"),
        (["inspect", "x", "--step", "one"], "--step one: a whole number is wanted"),
        (["inspect", "x", "--limit", "0"], "--limit 0: a number from 1 is wanted"),
        (["match", "a"], "Missing argument 'REFERENCE'"),
        (["compare", "a", "b", "-o", ""], "-o is empty; is it a variable of the shell that is not set?"),
        (["compare", "a", ""], "an argument is empty"),
        (["compare", "a", "b", "--tolerance-factor", "inf"], "--tolerance-factor inf: a number above 0"),
        (["inspect", "x", "--find", " "], "--find is empty"),
        (["compare"], "TARGET and REFERENCE are missing"),
        (["compare", "a"], "REFERENCE is missing"),
        (["compare", "a", "b", "--xlsx"], "--xlsx needs a folder to write to"),
        (["compare", "a", "b", "--target-step", "1"], "--target-step and --reference-step go together"),
        (["compare", "a", "b", "--tolerance-factor", "0"], "--tolerance-factor 0: a number above 0"),
        (["compare", "a", "b", "--reference-rank", "1"], "--target-rank and --reference-rank go together"),
        (["compare", "a", "b", "--merge", "--ranks", "0"], "--merge takes all ranks"),
        (["compare", "a", "b", "--no-merge", "--target-layout", "l.yaml"], "a layout has no effect"),
        (["compare", "a", "b", "--steps", "2-1"], "--steps: '2-1'"),
        (["compare", "a", "b", "--steps", "0-99999999"], "more than 1000000 numbers"),
        (["compare", "a", "b", "-f", "jax"], "pytorch or mindspore is wanted"),
        (["compare", "-i", "nope.json"], "no such file: nope.json"),
        (["compare", "a", "-i", "nope.json"], "not both"),
        (["export", "a"], "Missing argument 'DIR'"),
        (["export", "a", "b", "--format", "x"], "--format 'x'"),
        (["export", "a", "b", "--per", "row"], "--per goes with --format batches"),
        (["export", "a", "b", "--format", "batches", "--per", "x"], "--per 'x': one of microbatch, row"),
        (["export", "a", "b", "--format", "megatron"], "no such trace: a"),
        (["seed-all", "--seed", "x"], "--seed"),
        (["check-run"], "a trace or a command is missing"),
        (["check-run", "nope"], "nope is neither the folder of a trace nor a command"),
        (["check-run", "--only", "nope", "--", "true"], "--only 'nope': there is labels"),
        (["check-run", "--again", "x", "--", "true"], "--again goes with a trace"),
        (["check-run", "--steps", "x", "--", "true"], "--steps: 'x'"),
        (["check-run", "--", "true"], "nothing to check: nothing captured"),
        (["capture"], "say where the trace is to go"),
        (["capture", "-o", "r"], "no command to run"),
        (["capture", "-o", "r", "--level", "L7", "--", "true"], "--level 'L7': one of L0, L1, mix"),
        (["capture", "-o", "r", "--task", "x", "--", "true"], "--task 'x': one of statistics, tensor"),
        (["capture", "-o", "r", "--steps", "x", "--", "true"], "--steps: 'x'"),
        (["capture", "-o", "r", "--ranks", "-1", "--", "true"], "--ranks"),
        (["capture", "-o", "r", "--scope", "a", "--", "true"], "--scope 'a'"),
        (["capture", "-o", "r", "--scope", "a,b,c", "--", "true"], "--scope 'a,b,c'"),
        (["capture", "-o", "r", "--list", ",", "--", "true"], "--list is empty"),
        (["capture", "-o", "r", "--data-mode", "x", "--", "true"], "--data-mode 'x'"),
        (["capture", "-o", "r", "--preset", "x", "--", "true"], "--preset 'x': there is diagnose"),
        (["capture", "-o", "r", "--seed", "-1", "--", "true"], "--seed -1"),
        (["capture", "-o", "r", "--seed", "x", "--", "true"], "--seed"),
        (["capture", "-o", "r", "--config", "none.json", "--", "true"], "no such file: none.json"),
        (["capture", "-o", "r", "--", "no-such-command"], "no such command"),
    ],
)
def test_a_mistake_is_one_line_a_hint_and_status_2(
    argv: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert app.run(argv) == 2
    said = capsys.readouterr()
    assert said.out == ""
    error, hint = said.err.splitlines()
    assert error.startswith("error: ")
    assert message in error
    assert hint.startswith("hint: ")
    assert list(tmp_path.iterdir()) == []


def test_a_fault_of_our_own_never_looks_like_a_difference(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(**_: object) -> None:
        raise ValueError("inside")

    monkeypatch.setattr(app, "app", broken)
    assert app.run(["compare", "a", "b"]) == 2
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert "a fault in trueup itself: ValueError: inside" in said


def test_a_traceback_on_request(tmp_path: Path) -> None:
    plain = run_trueup("inspect", "nope", cwd=tmp_path)
    asked = run_trueup("inspect", "nope", cwd=tmp_path, env=environment(TRUEUP_DEBUG="1"))
    assert "Traceback" not in plain.stderr
    assert "Traceback" in asked.stderr


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    body = """
import subprocess, sys
process = subprocess.Popen([sys.executable, "-m", "trueup", "capture", "--help"], stdout=subprocess.PIPE)
process.stdout.close()
print(process.wait())
"""
    result = python("-c", body, cwd=tmp_path)
    assert result.stdout in ("0\n", "1\n")
    assert "Traceback" not in result.stderr


def test_an_interruption_while_verbs_are_imported_is_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(argv: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(app, "run", interrupted)
    with pytest.raises(SystemExit) as ended:
        main(["compare"])
    assert ended.value.code == 130
    assert capsys.readouterr() == ("", "")
