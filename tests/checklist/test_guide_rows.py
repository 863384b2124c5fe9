"""docs/guide-rows.md: every test, case and command that it names is there, and every case serves a row."""

from __future__ import annotations

import ast
import runpy
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.checklist.fresh import CASES
from trueup.cli.app import run

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ARTICLE = "trueup -f pytorch compare -i compare.json -o OUT -s"
"""msprobe's own form, which no help lists: tests/cli/test_compare.py runs it"""
DOCUMENTS = {"000", "001", "002", "004"}


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    """The module that writes the page."""
    return runpy.run_path(str(DOCS / "make_guide_rows.py"))


@cache
def _functions(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_the_page_is_what_the_rows_say(made: dict[str, Any]) -> None:
    written = (DOCS / "guide-rows.md").read_text(encoding="utf-8")
    assert written == made["page"](), "run python docs/make_guide_rows.py"


def test_every_row_is_whole(made: dict[str, Any]) -> None:
    rows = list(made["rows"]())
    assert len(rows) >= 165
    for row in rows:
        assert row.tests, row.text
        assert row.state in made["STATES"], row.text
        assert set(row.documents) <= DOCUMENTS, row.text
        assert (row.state == "works") is not bool(row.note), row.text
    names = [(row.section, row.text) for row in rows]
    assert len(set(names)) == len(names)


def test_every_test_that_is_named_exists(made: dict[str, Any]) -> None:
    for row in made["rows"]():
        for test in row.tests:
            path, _, name = test.partition("::")
            assert name.partition("[")[0] in _functions(path), test


def test_every_case_serves_a_row_and_every_row_s_case_exists(made: dict[str, Any]) -> None:
    named = {
        test.partition("[")[2].rstrip("]") for row in made["rows"]() for test in row.tests if "[" in test
    }
    known = {case.name for case in CASES}
    assert named == known


def test_every_command_and_option_exists(made: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    commands = {row.command for row in made["rows"]()} - {ARTICLE, "PrecisionDebugger(config_path=...)"}
    assert len(commands) > 20
    for command in sorted(commands):
        name, verb, *words = shlex.split(command.partition(" -- ")[0])
        assert name == "trueup"
        assert run([verb, "--help"]) == 0, command
        shown = capsys.readouterr().out
        for option in (word for word in words if word.startswith("-")):
            assert f"{option} " in shown or f"{option}," in shown, (command, option)
