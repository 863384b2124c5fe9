"""Where nothing can be written, a command says so before it begins."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trueup.cli.app import run
from trueup.cli.places import NamedPlace, unwritable, written_into_read

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


def _trace(folder: Path) -> Path:
    (folder / "step_000000").mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("argv", "what"),
    [
        (["compare", "T", "R", "-o", "T"], "a folder of its own (got T, which is TARGET"),
        (["compare", "T", "R", "-o", "other/../R/"], "which is REFERENCE"),
        (["diagnose", "T", "R", "-o", "T/step_000000/x"], "outside the trace"),
        (["diagnose", "T", "R", "-o", "R/scalars"], "outside the trace"),
        (["diagnose", "T", "R", "-o", "out", "--replayed", "out"], "which is --replayed"),
        (["accept", "T", "R", "-o", "R"], "which is REFERENCE"),
        (["accept", "-o", "logs", "--curves", "logs", "b.log"], "which is --curves"),
        (["curves", "logs", "-r", "b.log", "-o", "logs"], "which is TARGET"),
        (["check", "logs", "b.log", "-o", "logs"], "which is TARGET"),
        (["check", "b.log,logs", "b.log", "-o", "logs"], "which is TARGET"),
        (["check", "a", "b.log", "--data", "T", "-o", "T"], "which is --data"),
        (["check-run", "T", "-o", "T"], "which is TRACE"),
        (["mismatch", "T", "-o", "T"], "which is TOKENS"),
        (["monitor", "T", "--tensorboard", "T"], "which is RUN"),
        (["noise", "--reference", "R", "--keep", "R", "--", "true"], "which is --reference"),
        (["replay", "--reference", "R", "-o", "R", "--overwrite", "--", "true"], "which is --reference"),
        (["replay", "--reference", "R", "--target", "T", "-o", "T", "--overwrite", "--", "true"], "--target"),
        (["replay", "--reference", "T/noise/run", "-o", "T", "--overwrite", "--", "true"], "would remove"),
        (["export", "T", "T/step_000001"], "outside the trace"),
        (["convert-weights", "a.safetensors", "b.safetensors", "--like", "b.safetensors"], "which is --like"),
        (["convert-weights", "a", "w.ckpt", "--save-plan", "w.ckpt"], "another place than DST"),
        (["match", "T", "R", "--map", "m.yaml", "-o", "m.yaml"], "which is --map"),
    ],
)
def test_what_is_read_is_not_written(
    argv: list[str],
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("T", "R", "T/noise/run", "out"):
        _trace(tmp_path / name)
    for folder in ("logs", "other"):
        (tmp_path / folder).mkdir()
    for file in ("a.safetensors", "b.safetensors", "m.yaml", "b.log"):
        (tmp_path / file).write_text("x")
    before = sorted(tmp_path.rglob("*"))
    assert run(argv) == 2
    assert what in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_what_lies_apart_is_written(tmp_path: Path) -> None:
    target, file = _trace(tmp_path / "runs" / "t"), tmp_path / "m.yaml"
    file.touch()

    def problem(written: Path, read: Path, *, overwrite: bool = False) -> str | None:
        sides = (NamedPlace(place="-o", path=written), NamedPlace(place="TARGET", path=read))
        return written_into_read(sides[:1], sides[1:], overwrite=overwrite)

    for place in (tmp_path / "out", target / "reports", tmp_path / "runs", tmp_path / "runs" / "t2"):
        assert problem(place, target) is None
        assert problem(place, target, overwrite=True) is None
    assert problem(file, file, overwrite=True) is None  # match --map M -o M --overwrite: read, then written
    assert problem(target, target, overwrite=True) is not None
