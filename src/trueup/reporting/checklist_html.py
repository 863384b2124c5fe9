"""checklist.html: every row of a check with its reason, and both schedules drawn, in one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from trueup.reporting.checklist_drawing import schedule_drawing
from trueup.reporting.checklist_model import SEVERITY, STATUS, ordered, place, shown, sources, telling
from trueup.reporting.formatting import count, plain
from trueup.reporting.templates import asset, furniture, write_page

_OUTCOME = {
    "agree": ("✓", "The configurations agree"),
    "differ": ("≠", "The configurations differ"),
    "undecided": ("?", "Undecided"),
}
_LONGEST_VALUE = 160


def write_html(document: Mapping[str, Any], path: Path) -> Path:
    """Write the page of a check (the document of checklist.json); nothing is loaded from elsewhere."""
    return write_page(asset("checklist.html.j2"), _context(document), path)


def _context(document: Mapping[str, Any]) -> dict[str, Any]:
    style = asset("page.css") + asset("diagnosis.css") + asset("checklist.css")
    glyph, word = _OUTCOME[document["outcome"]]
    both = document["reference"] is not None
    drawings = [
        (name, Markup(drawing))
        for name, quantity in (("Learning rate", "learning_rate"), ("Weight decay", "weight_decay"))
        if (drawing := schedule_drawing(document["schedules"], quantity))
    ]
    return {
        **furniture(style, asset("diagnosis.js")),
        "both": both,
        "names": {side: plain((document[side] or {}).get("name", "")) for side in ("target", "reference")},
        "outcome": document["outcome"],
        "glyph": glyph,
        "word": word if both else "Held against the recommendations",
        "headline": plain(document["headline"]),
        "glance": _glance(document),
        "sections": [
            s for key, title in document["sections"].items() if (s := _section(key, title, document))
        ],
        "drawings": drawings,
        "schedule_words": _schedule_words(document),
        "todo": _todo(document),
        "notes": [
            plain(n) for side in ("target", "reference") for n in (document[side] or {}).get("notes", [])
        ],
        "unread": [plain(key) for key in document["unread"]],
    }


def _glance(document: Mapping[str, Any]) -> list[dict[str, str]]:
    facts = []
    for side in ("target", "reference"):
        for file in (document[side] or {}).get("documents", []):
            also = f"{file['title']}, {count(file['num_settings'], 'setting')}"
            facts.append({"name": side.capitalize(), "value": plain(file["path"]), "also": also})
    counts = document["counts"]
    words = [f"{counts[key]} {words}" for key, (_, words) in STATUS.items() if counts.get(key)]
    facts.append({"name": "Rows", "value": count(len(document["rows"])), "also": ", ".join(words)})
    for side, verdict in document["versions"].items():
        together = {True: "belong together", False: "do not belong together", None: "unknown"}[
            verdict["together"]
        ]
        facts.append(
            {"name": f"Versions of the {side}", "value": together, "also": plain(verdict["sentence"])}
        )
    return facts


def _section(key: str, title: str, document: Mapping[str, Any]) -> dict[str, Any] | None:
    rows = ordered([row for row in document["rows"] if row["section"] == key and row["status"] != "by_hand"])
    if not rows:
        return None
    loud, quiet = [r for r in rows if telling(r)], [r for r in rows if not telling(r)]
    both = document["reference"] is not None
    return {
        "key": key,
        "title": title,
        "words": "" if loud else "nothing differs that matters",
        "loud": [_row(row, both=both) for row in loud],
        "quiet": [_row(row, both=both) for row in quiet],
        "quiet_words": _quiet_words(quiet),
    }


def _quiet_words(rows: Sequence[Mapping[str, Any]]) -> str:
    counted = {key: sum(row["status"] == key for row in rows) for key in STATUS}
    return ", ".join(f"{number} {STATUS[key][1]}" for key, number in counted.items() if number)


def _row(row: Mapping[str, Any], *, both: bool) -> dict[str, Any]:
    glyph, words = STATUS[row["status"]]
    cells = [row["target"], row["reference"]] if both else [row["target"]]
    return {
        "glyph": glyph,
        "status": f"{words}: {SEVERITY[row['severity']]}" if telling(row) else words,
        "style": f"loud {row['severity']}" if telling(row) else "",
        "key": row["key"],
        "about": plain(row["about"]),
        "cells": [_cell(cell, helped=telling(row)) for cell in cells],
        "reason": plain(row["reason"]) if row["status"] not in ("framework_default", "different") else "",
        "why": plain(row["why"]),
        "advice": plain(row["advice"]),
        "source": plain(sources(row)),
    }


def _cell(cell: Mapping[str, Any] | None, *, helped: bool) -> dict[str, Any]:
    if cell is None:
        return {"value": "", "place": "", "set_with": "", "default": False}
    return {
        "value": shown(cell["value"], longest=_LONGEST_VALUE),
        "place": plain(place(cell)),
        "set_with": plain(cell["set_with"]) if helped and cell["origin"] != "set" else "",
        "default": cell["origin"] in ("default", None),
    }


def _schedule_words(document: Mapping[str, Any]) -> str:
    found = document["schedules"]
    if document["reference"] is None:
        return "What the optimizer uses at every step, computed from the configuration."
    if found["same"] is None:
        missing = [
            f"the {side} ({found[side]['missing']})"
            for side in ("target", "reference")
            if found[side]["missing"]
        ]
        return f"The learning rate cannot be computed for {' and '.join(missing)}." if missing else ""
    if found["same"]:
        return "What the optimizer uses at every step, computed from both configurations: the same."
    return (
        "What the optimizer uses at every step, computed from both configurations. The learning rates part "
        f"at step {found['first_step_apart']}, by up to {found['learning_rate_gap']:.2%} of the peak."
    )


def _todo(document: Mapping[str, Any]) -> list[dict[str, str]]:
    items = [
        {"words": plain(row["reason"]), "command": plain(row["advice"])}
        for row in document["rows"]
        if row["status"] == "by_hand"
    ]
    checked = [
        row["key"] for row in document["rows"] if row["status"] == "not_configurable" and row["advice"]
    ]
    if checked:
        words = f"Not configurable on one side, so to be seen in a comparison: {', '.join(checked)}."
        items.insert(
            0, {"words": words, "command": "trueup compare TARGET REFERENCE -o OUT  (its precision table)"}
        )
    return items
