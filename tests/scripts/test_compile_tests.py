"""What is compiled beforehand is what pytest itself would make, and is made anew of a file that changes; what
hypothesis reads is where it looks."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import configuration
from scripts.compile_tests import compiled, known_to_hypothesis

from tests.warm import COLD

ASSERTING = "def test_it():\n    assert 1 + 1 == {}\n"


def said(folder: Path) -> str:
    words = [COLD, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)]
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd=folder).stdout


def test_pytest_takes_it_and_explains_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(ASSERTING.format(3))
    written = compiled(path)
    before = written.stat()
    assert "(1 + 1) == 3" in said(tmp_path)
    after = written.stat()
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)


def test_a_file_that_changes_is_compiled_again(tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(ASSERTING.format(3))
    before = compiled(path).read_bytes()
    assert compiled(path).read_bytes() == before
    path.write_text(ASSERTING.format(2))
    assert compiled(path).read_bytes() != before


def test_hypothesis_finds_the_constants_of_our_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configuration, "__hypothesis_home_directory", tmp_path / "kept")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "module.py").write_text("LIMIT = 987654321\n")
    known_to_hypothesis(tmp_path)
    assert any("987654321" in path.read_text() for path in (tmp_path / "kept" / "constants").iterdir())
