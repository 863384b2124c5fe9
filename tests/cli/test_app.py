"""The command line as a whole: help, mistakes, exit statuses."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

import pytest

from tests.capture.programs import environment, python, run_trueup
from trueup import __version__
from trueup.cli import app, main


def test_help_names_every_verb(tmp_path: Path) -> None:
    result = run_trueup("--help", cwd=tmp_path)
    assert result.returncode == 0
    for verb in ("capture", "check-run", "compare", "inspect", "export", "seed-all"):
        assert f" {verb} " in result.stdout
        assert run_trueup(verb, "--help", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("verb", sorted(app.USAGE))
def test_help_is_complete_at_80_columns(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
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
        (["inspect"], "RUN is missing: trueup inspect RUN"),
        (["inspect", "nope"], "no such trace: nope"),
        (["inspect", "x", "--step", "one"], "--step: expected an integer (got 'one')"),
        (["inspect", "x", "--limit", "0"], "--limit: expected a number from 1 (got 0)"),
        (["match", "a"], "REFERENCE is missing: trueup match"),
        (["compare", "a", "b", "-o", ""], "-o is empty; is it a variable of the shell that is not set?"),
        (["compare", "a", ""], "an argument is empty"),
        (
            ["compare", "a", "b", "--tolerance-factor", "inf"],
            "--tolerance-factor: expected a finite number above 0",
        ),
        (["inspect", "x", "--find", " "], "--find: expected a part of a name"),
        (["compare"], "TARGET and REFERENCE are missing"),
        (["compare", "a"], "REFERENCE is missing"),
        (["compare", "a", "b", "--xlsx"], "--xlsx needs a folder to write to"),
        (["compare", "a", "b", "--target-step", "1"], "--target-step and --reference-step go together"),
        (
            ["compare", "a", "b", "--tolerance-factor", "0"],
            "--tolerance-factor: expected a finite number above 0",
        ),
        (["compare", "a", "b", "--reference-rank", "1"], "--target-rank and --reference-rank go together"),
        (["compare", "a", "b", "--merge", "--ranks", "0"], "--merge uses all ranks"),
        (["compare", "a", "b", "--no-merge", "--target-layout", "l.yaml"], "a layout has no effect"),
        (
            ["compare", "a", "b", "--steps", "2-1"],
            "--steps: expected numbers and ascending ranges, such as 0,1,5-8 (got '2-1')",
        ),
        (["compare", "a", "b", "--steps", "0-99999999"], "--steps: expected all, or at most 1000000 numbers"),
        (["compare", "a", "b", "-f", "jax"], "--framework: expected one of: pytorch, mindspore (got 'jax')"),
        (["compare", "-i", "nope.json"], "no such file: nope.json"),
        (["compare", "a", "-i", "nope.json"], "TARGET and --input exclude each other"),
        (["export", "a"], "DIR is missing: trueup export RUN DIR"),
        (["export", "a", "b", "--format", "x"], "--format: expected one of: msprobe"),
        (["export", "a", "b", "--per", "row"], "--per has no effect without --format batches"),
        (
            ["export", "a", "b", "--format", "batches", "--per", "x"],
            "--per: expected one of: microbatch, row",
        ),
        (["export", "a", "b", "--format", "megatron"], "no such trace: a"),
        (["seed-all", "--seed", "x"], "--seed"),
        (["check-run"], "a trace or a command is missing"),
        (["check-run", "nope"], "nope is neither the folder of a trace nor a command"),
        (["check-run", "--only", "nope", "--", "true"], "--only: expected one of: labels"),
        (["check-run", "--again", "x", "--", "true"], "--again has no effect without a trace"),
        (["check-run", ".", "--seed", "3"], "--seed has no effect with a trace"),
        (["check-run", ".", "--steps", "0-3"], "--steps has no effect with a trace"),
        (["check-run", "--steps", "x", "--", "true"], "--steps: expected"),
        (["check-run", "--", "true"], "nothing to check: nothing captured"),
        (["capture"], "-o is missing: trueup capture -o RUN"),
        (["capture", "-o", "r"], "no command to run"),
        (
            ["capture", "-o", "r", "--level", "L7", "--", "true"],
            "--level: expected one of: L0, L1, mix (got 'L7')",
        ),
        (["capture", "-o", "r", "--task", "x", "--", "true"], "--task: expected one of: statistics, tensor"),
        (["capture", "-o", "r", "--steps", "x", "--", "true"], "--steps: expected"),
        (["capture", "-o", "r", "--ranks", "-1", "--", "true"], "--ranks"),
        (["capture", "-o", "r", "--scope", "a", "--", "true"], "--scope: expected"),
        (["capture", "-o", "r", "--scope", "a,b,c", "--", "true"], "--scope: expected"),
        (["capture", "-o", "r", "--list", ",", "--", "true"], "--list: expected names"),
        (["capture", "-o", "r", "--data-mode", "x", "--", "true"], "--data-mode: expected"),
        (["capture", "-o", "r", "--preset", "x", "--", "true"], "--preset: expected one of: diagnose"),
        (
            ["capture", "-o", "r", "--seed", "-1", "--", "true"],
            "--seed: expected a number from 0 to 4294967295",
        ),
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
    def broken(*_: object) -> None:
        raise ValueError("inside")

    monkeypatch.setattr(app, "rewritten", broken)
    assert app.run(["compare", "a", "b"]) == 2
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert "internal error in trueup: ValueError: inside" in said


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


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), OSError("Detail: [errno 28] No space left on device")]
)
def test_a_full_disk_is_named(error: OSError, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever library says it, with the place that was to be written."""
    from trueup.cli.app import _failed

    for argv in (["compare", "a", "b", "-o", "out"], ["export", "a", "out", "--format", "grads"]):
        assert _failed(error, argv, argv[0]) == 2
        first, hint = capsys.readouterr().err.splitlines()
        assert first.startswith("error: no space left on the disk of out: ")
        assert hint.startswith("hint: make room")
