"""signoff.html: the document a person files, in one file that loads nothing from elsewhere."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from trueup.reporting.formatting import plain
from trueup.reporting.signoff import CURVES, OUTCOMES, STATES, items_of
from trueup.reporting.templates import asset, furniture, write_page

_HERE = "trueup.reporting.signoff"
_TONES = {"accepted": "agree", "refused": "differ", "undecided": "undecided"}


def write_html(document: Mapping[str, Any], path: Path, *, details: Mapping[str, str]) -> Path:
    """Write the document of signoff.json; ``details``: part -> the report that part was made from, relative
    to the page. The picture of the long run, where there is one beside it, goes in whole."""
    context = _context(document, details, path.parent / CURVES / "curves.png")
    return write_page(asset("signoff.html.j2", _HERE), context, path)


def _context(document: Mapping[str, Any], details: Mapping[str, str], picture: Path) -> dict[str, Any]:
    style = asset("page.css") + asset("diagnosis.css") + asset("checklist.css") + asset("signoff.css", _HERE)
    glyph, word = OUTCOMES[document["outcome"]]
    return {
        **furniture(style, asset("diagnosis.js")),
        "made": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "tone": _TONES[document["outcome"]],
        "glyph": glyph,
        "word": word,
        "headline": plain(document["headline"]),
        "counts": [
            (STATES[state][1], number, state.replace(" ", "-"))
            for state, number in document["counts"].items()
        ],
        "inputs": [(plain(one["role"]), plain(one["path"])) for one in document["inputs"]],
        "parts": [_part(part, details) for part in document["parts"] if part["items"]],
        "open": [_item(item) for item in items_of(document) if item["state"] == "not shown"],
        "conditions": document["conditions"],
        "by_hand": [plain(text) for text in document["by_hand"]],
        "notes": [plain(note) for note in document["notes"]],
        "standard": document["standard"],
        "picture": _embedded(picture) if "long_run" in details else "",
    }


def _part(part: Mapping[str, Any], details: Mapping[str, str]) -> dict[str, Any]:
    return {
        "key": part["key"],
        "title": part["title"],
        "details": details.get(part["key"], ""),
        "rows": [_item(item) for item in part["items"]],
    }


def _item(item: Mapping[str, Any]) -> dict[str, Any]:
    glyph, word = STATES[item["state"]]
    return {
        "title": plain(item["title"]),
        "style": item["state"].replace(" ", "-"),
        "glyph": glyph,
        "word": word,
        "binding": item["binding"],
        "measured": plain(item["measured"]),
        "threshold": plain(item["threshold"]),
        "origin": plain(item["origin"]),
        "evidence": [plain(sentence) for sentence in item["evidence"]],
        "how": plain(item["how"]),
    }


def _embedded(picture: Path) -> str:
    """The picture as a data address; nothing where there is none."""
    if not picture.is_file():
        return ""
    return "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode()
