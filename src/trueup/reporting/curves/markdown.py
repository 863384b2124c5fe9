"""acceptance.md: the acceptance report as text, to be attached to a migration's sign-off."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import trueup

_OUTCOME = {"agree": "ACCEPTED", "differ": "NOT ACCEPTED", "undecided": "UNDECIDED"}
_MARKS = {"met": "met", "not met": "**not met**", "warning": "warning", "undecided": "undecided"}


def write_markdown(document: Mapping[str, Any], path: Path) -> Path:
    """Write the report of every target."""
    parts = [_entry(entry) for entry in document["comparisons"]]
    made = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    head = f"# Accuracy acceptance report\n\nMade by trueup {trueup.__version__} on {made}.\n"
    path.write_text("\n".join([head, *parts]), encoding="utf-8", errors="replace")
    return path


def _entry(entry: Mapping[str, Any]) -> str:
    judgement = entry["judgement"]
    lines = [
        f"## {_cell(entry['target']['name'])}: {_OUTCOME[entry['outcome']]}\n",
        f"{judgement['headline']}.\n",
        *_table(["run", "log", "format", "steps"], _sides(entry)),
        "",
        *(f"- {alignment['sentence']}" for alignment in entry["alignments"][:1]),
        *(f"- {note}" for note in entry["notes"]),
        "\n### The standard\n",
        *_table(
            ["criterion", "measured", "wanted", "result", "origin"],
            [
                [one["title"], one["value"], one["threshold"], _MARKS[one["status"]], one["origin"]]
                for one in entry["criteria"]
            ],
        ),
        f"\n{entry['standard']}\n",
        "### Conditions\n",
        *_table(
            ["condition", "default", "here"],
            [
                [
                    one["name"],
                    one["default"],
                    one["state"] + ("" if one["state"] == "kept" else f": {one['actual']}"),
                ]
                for one in entry["conditions"]
            ],
        ),
        "\n### Beyond the standard\n",
        *(f"- {text}" for text in (*judgement["reasons"], *judgement["remarks"])),
    ]
    norms = entry["statistics"]["local_norms"]
    if norms:
        rows = [[r["name"], f"{r['target']:.6g}", f"{r['reference']:.6g}"] for r in norms["rows"]]
        lines += [
            f"\n### Local norms, step {norms['step']}\n",
            *_table(["weight", "target", "reference"], rows),
        ]
    if judgement["advice"] or entry["next"]:
        lines += ["\n### Next\n", *(f"- {text}" for text in judgement["advice"])]
        lines += [f"- {one['purpose']}: `{one['line']}`" for one in entry["next"]]
    lines += [
        "\n### Sign-off\n",
        *_table(["role", "name", "date"], [["developer", "", ""], ["reviewer", "", ""]]),
    ]
    return "\n".join(lines) + "\n"


def _sides(entry: Mapping[str, Any]) -> list[list[str]]:
    sides = [("target", entry["target"]), *(("reference", one) for one in entry["references"])]
    return [
        [role, side["name"], side["format"], f"{side['first_step']:,} to {side['last_step']:,}"]
        for role, side in sides
    ]


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [_row(head), _row(["---"] * len(head)), *map(_row, rows)]


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")
