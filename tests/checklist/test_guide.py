"""docs/guide.md shows every row of the guide's checklist, with the output that a person sees today."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.checklist.rows import ROWS
from trueup.checklist.check import EXTRA_ROWS
from trueup.checklist.rules import rules

DOCS = Path(__file__).parents[2] / "docs"
CHECKLIST = (
    "network structure",
    "moe structure",
    "optimizer",
    "weights",
    "mixed precision",
    "parallel strategy",
    "other",
)
TITLES = (
    *("dump of graph mode", "overflow", "weight conversion and comparison"),
    *("aligning parameters", "weight conversion", "the same data at every step", "fixed randomness"),
    *("step 1 losses", "correspondence of layers", "local norms of step 1", "optimizer computation"),
    *("weights not updated", "benchmark error confirmation", "loss diffusion", "later stages"),
    *("scenario expansion", "indicators and default configuration", "case with real programs"),
)
"""titles of the guide's sections, in its order"""


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    """The module that writes the page."""
    return runpy.run_path(str(DOCS / "make_guide.py"))


def test_the_page_is_what_the_commands_print(made: dict[str, Any]) -> None:
    assert (DOCS / "guide.md").read_text(encoding="utf-8") == made["page"](), "run python docs/make_guide.py"


def test_every_row_of_the_guide_is_on_the_page(made: dict[str, Any]) -> None:
    shown = {name.strip() for rows in made["SECTIONS"].values() for row, _ in rows for name in row.split(",")}
    wanted = {row for section in CHECKLIST for row in ROWS[section]} - {"Regularization function"}
    assert wanted <= shown


def test_rows_name_what_the_check_has(made: dict[str, Any]) -> None:
    known = {rule.key for file in rules().values() for rule in file} | EXTRA_ROWS
    assert {key for rows in made["SECTIONS"].values() for _, keys in rows for key in keys.split()} <= known


def test_rows_have_output(made: dict[str, Any]) -> None:
    page = (DOCS / "guide.md").read_text(encoding="utf-8")
    blocks = [block for block in page.split("```console\n")[2:] if block.startswith("$ trueup check ex")]
    assert len(blocks) > 50
    assert all(len(block.partition("```")[0].splitlines()) > 5 for block in blocks)


def test_every_stage_of_the_guide_is_on_the_page(made: dict[str, Any]) -> None:
    """Its table of contents after the checklist, and 002's standard."""
    asked = [one for rows in made["CHAPTERS"].values() for one in rows]
    rows = " ".join(one.row.casefold() for one in asked)
    for title in TITLES:
        assert title in rows, title
    page = (DOCS / "guide.md").read_text(encoding="utf-8")
    for one in asked:
        section = page.partition(f"### {one.row}\n")[2].partition("\n##")[0]
        assert section.count("$ trueup ") == len(one.commands), one.row
        assert not one.shown or all(len(block) > 100 for block in section.split("$ trueup ")[1:]), one.row
        assert "No such option" not in section
        assert "Traceback" not in section
