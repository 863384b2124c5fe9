"""An option without its value, or given twice, is one error line and a hint; the rest of ``wrong_arguments``
takes minutes and is run by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.wrong_arguments import answer, refused_lines
from trueup.cli.app import USAGE, run

DONE = {
    "check-run": ["repeat", "--only", ","],
    "check": ["a", "b", "--ignore", " "],
    "accept": ["a", "b", "-o", "out", "--assume", ",,"],
    "compare-weights": ["a", "b", "--rtol", "inf"],
    "diagnose": ["a", "b", "-o", "out", "--budget", "-1"],
    "noise": ["--repeats", "99999999999999999999999", "--", "true"],
    "curves": ["a", "-r", "b", "--offset", "99999999999999999999999"],
    "convert-weights": ["a", "b", "--pad-vocab", "1000000000"],
    "monitor": ["a", "--tensorboard", "/dev/null"],
}


@pytest.mark.parametrize("verb", sorted(USAGE))
def test_options_twice_and_without_a_value(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for argv in [*refused_lines(verb)][sorted(USAGE).index(verb) % 3 :: 3]:  # all of them: wrong_arguments
        given = answer(argv)
        assert (given.status, given.problem) == (2, ""), given
        first, hint = given.said.splitlines()[:2]
        named = any(word in first for word in argv if word.startswith("-"))
        assert (first[:7], hint[:6], named) == ("error: ", "hint: ", True), given
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("verb", "words"), DONE.items())
def test_values_that_are_none(
    verb: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = answer((verb, *words))
    flag = next(word for word in words if word.startswith("--"))
    assert given.status == 2
    assert given.said.startswith(f"error: {flag}: expected "), given.said


def test_what_may_be_repeated_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for argv in (
        ["compare", "a", "b", "-q", "-q"],
        ["capture", "--list", "a", "--list", "b", "-o", "r", "--", "none"],
    ):
        assert run(argv) == 2
        assert "no such" in capsys.readouterr().err
    assert run(["compare", "a", "b", "--html", "--no-html"]) == 2
    assert "--html and --no-html" in capsys.readouterr().err
