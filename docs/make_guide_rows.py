"""Writes docs/guide-rows.md: rows of the guide and of the dump article, with command, test and state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

DOCS = Path(__file__).parent
ROWS, PAGE = DOCS / "guide_rows.yaml", DOCS / "guide-rows.md"
STATES = ("works", "in part", "missing")
CASES = "tests/checklist/test_fresh_rows.py::test_row"
HEAD = """# Rows of the guide and of the dump article

Written by `python docs/make_guide_rows.py` from `guide_rows.yaml`. Rows are in our own words. Documents: 000,
004 and 002 are the first, second and third edition of the accuracy guide, 002 the one with the accuracy
standard; 001 is the article on dumps. A row *works* where its test proves it; a test checks that every test
and command named here exists.

Tests named `test_row[...]` are in `tests/checklist/test_fresh_rows.py`: a pair of configurations of their
own, one change a case, against Megatron's log and against its script, with either side as target.
[guide.md](guide.md) shows the output of each row.
"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One recommendation, step, option or output that the documents promise."""

    section: str
    documents: tuple[str, ...]
    text: str
    command: str
    tests: tuple[str, ...]
    state: str
    note: str


def rows() -> Iterator[Row]:
    """Every row, in the order of the documents."""
    for section in yaml.safe_load(ROWS.read_text(encoding="utf-8")):
        for row in section["rows"]:
            cases = [f"{CASES}[{name}]" for name in row.get("cases", "").split()]
            yield Row(
                section=section["section"],
                documents=tuple(str(row.get("documents", section["documents"])).split()),
                text=row["row"],
                command=row.get("command", section["command"]),
                tests=(*cases, *row.get("tests", "").split()),
                state=row.get("state", STATES[0]),
                note=row.get("note", ""),
            )


def page() -> str:
    """The complete page."""
    found = list(rows())
    counts = Counter(row.state for row in found)
    states = ", ".join(f"{counts[state]} {state}" for state in STATES)
    parts = [HEAD, f"{len(found)} rows: {states}.\n"]
    for section in dict.fromkeys(row.section for row in found):
        parts.append(
            f"## {section}\n\n| row | documents | command | proved by | state |\n|---|---|---|---|---|"
        )
        parts += [_line(row) for row in found if row.section == section]
        parts.append("")
    return "\n".join(parts)


def _line(row: Row) -> str:
    tests = ", ".join(f"`{_short(test)}`" for test in row.tests)
    state = f"{row.state}: {row.note}" if row.note else row.state
    command = f"`{row.command}`".replace("|", "\\|")
    text = row.text.replace("|", "\\|")
    return f"| {text} | {' '.join(row.documents)} | {command} | {tests} | {state} |"


def _short(test: str) -> str:
    """A test without the path that all cases share."""
    return test.removeprefix("tests/checklist/test_fresh_rows.py::").removeprefix("tests/")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
