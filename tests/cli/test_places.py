"""Where nothing can be written, a command says so before it begins."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trueup.cli.app import run
from trueup.cli.places import unwritable

DIRECTORIES = ("check", "accept", "compare", "diagnose", "curves", "check-run", "replay", "capture")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "x")
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("file", "which is a file"),
        ("file/sub", "file is a file"),
        ("link", "a link to"),
        ("/dev/null", "which is a device"),
        ("/dev/null/x", "/dev/null is a device"),
        ("a" * 300, "File name too long"),
    ],
)
def test_no_folder(name: str, what: str, place: Path) -> None:
    assert what in str(unwritable(place / name, folder=True))


@pytest.mark.parametrize("name", ["folder", "folder/new", "new/er/folder"])
def test_a_folder(name: str, place: Path) -> None:
    assert unwritable(place / name, folder=True) is None


@pytest.mark.parametrize(
    ("name", "fits"), [("file", True), ("new", True), ("/dev/null", True), ("folder", False)]
)
def test_a_file(name: str, fits: bool, place: Path) -> None:
    assert (unwritable(place / name, folder=False) is None) is fits


def test_a_folder_that_is_read_only(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "read-only" in str(unwritable(place / "folder" / "new", folder=True))


@pytest.mark.parametrize("verb", DIRECTORIES)
def test_every_command_says_it(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = {
        "check": ["a", "b"],
        "compare": ["a", "b"],
        "diagnose": ["a", "b"],
        "curves": ["a", "--reference", "b"],
    }
    followed = ["--", "true"] if verb in ("replay", "capture") else []
    reference = ["--reference", "r"] if verb == "replay" else []
    given = words.get(verb, ["a"] if verb == "check-run" else [])
    assert run([verb, *given, *reference, "-o", "/dev/null", *followed]) == 2
    assert "--output: expected a folder" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["match", "dump-config"])
def test_one_file(verb: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["a", "b"] if verb == "match" else ["--kind", "full", "--path", "/d"]
    assert run([verb, *words, "-o", str(place / "folder")]) == 2
    assert "--output: expected the name of a file" in capsys.readouterr().err
