"""signoff.md: the sign-off as text, to be filed or pasted."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import trueup
from trueup.reporting.formatting import plain
from trueup.reporting.signoff import OUTCOMES, items_of

_MARKS = {"passed": "passed", "failed": "**failed**", "warning": "warning", "not shown": "*not shown*"}


def write_markdown(document: Mapping[str, Any], path: Path, *, details: Mapping[str, str]) -> Path:
    """Write the document of signoff.json; ``details``: part -> the report that part was made from."""
    made = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    lines = [
        f"# Accuracy sign-off: {OUTCOMES[document['outcome']][1]}",
        "",
        f"{document['headline']}",
        "",
        f"Made by trueup {trueup.__version__} on {made}. {document['standard']}",
        "",
        "## What was given",
        "",
        *_table(["", "place"], [[one["role"], one["path"]] for one in document["inputs"]]),
    ]
    for part in document["parts"]:
        if part["items"]:
            lines += ["", f"## {part['title']}", "", *_part(part)]
            if part["key"] in details:
                lines += ["", f"Details: [{details[part['key']]}]({details[part['key']]})"]
    lines += [*_not_shown(document), *_rest(document)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="replace")
    return path


def _part(part: Mapping[str, Any]) -> list[str]:
    rows = [
        [
            item["title"],
            item["measured"],
            item["threshold"],
            _MARKS[item["state"]]
            + (
                " (does not decide)"
                if not item["binding"] and item["state"] in ("not shown", "warning")
                else ""
            ),
            item["origin"],
        ]
        for item in part["items"]
    ]
    lines = _table(["item", "measured", "wanted", "result", "origin of the threshold"], rows)
    told = [(item["title"], item["evidence"]) for item in part["items"] if item["evidence"]]
    if told:
        lines += ["", *(f"- {plain(title)}: {plain('; '.join(evidence))}" for title, evidence in told)]
    return lines


def _not_shown(document: Mapping[str, Any]) -> list[str]:
    open_ = [item for item in items_of(document) if item["state"] == "not shown"]
    if not open_:
        return ["", "## What is not shown", "", "Nothing: every item was measured."]
    rows = [[item["title"], "yes" if item["binding"] else "no", item["how"]] for item in open_]
    return ["", "## What is not shown", "", *_table(["item", "decides", "how to show it"], rows)]


def _rest(document: Mapping[str, Any]) -> list[str]:
    conditions = [
        [one["name"], one["default"], one["state"] + ("" if one["state"] == "kept" else f": {one['actual']}")]
        for one in document["conditions"]
    ]
    return [
        "",
        "## Conditions of the standard",
        "",
        *_table(["condition", "default", "here"], conditions),
        "",
        "## To look at by hand",
        "",
        *(f"- [ ] {plain(text)}" for text in document["by_hand"]),
        *(
            ["", "## Notes", "", *(f"- {plain(note)}" for note in document["notes"])]
            if document["notes"]
            else []
        ),
        "",
        "## Signatures",
        "",
        *_table(
            ["role", "name", "decision", "date"],
            [["developer", "", "", ""], ["reviewer", "", "", ""], ["owner of the model", "", "", ""]],
        ),
    ]


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [_row(head), _row(["---"] * len(head)), *map(_row, rows)]


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    return plain(text.replace("\n", " ")).replace("|", "\\|").replace("<", "&lt;")
