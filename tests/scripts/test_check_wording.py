"""The wording check finds what it should, where it should."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts import check_wording


def found(folder: Path, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    monkeypatch.setattr(check_wording, "ROOT", folder)
    (folder / name).write_text(text)
    phrases = [(re.compile(r"\bis wanted\b", re.IGNORECASE), "expected ...")]
    return [(one.line, one.phrase) for one in check_wording.matches([name], phrases)]


def test_text_of_python_is_checked_and_names_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = 'is_wanted = 1\n# a number is wanted\nx = f"{is_wanted} is wanted"\n"""\nDocs: is wanted."""\n'
    assert found(tmp_path, "a.py", source, monkeypatch) == [
        (2, "is wanted"),
        (3, "is wanted"),
        (5, "is wanted"),
    ]


def test_pages_are_checked_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(tmp_path, "a.md", "one\n\nA file Is Wanted here\n", monkeypatch) == [(3, "Is Wanted")]
    assert found(tmp_path, "b.md", "expected a file\n", monkeypatch) == []
