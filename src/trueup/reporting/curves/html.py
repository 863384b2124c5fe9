"""curves.html: one file that loads nothing from elsewhere, with plots to zoom into."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from trueup._optional import require
from trueup.curves.comparison import CurveComparison
from trueup.reporting.curves.panels import Panel, axis_range, panels
from trueup.reporting.formatting import plain
from trueup.reporting.templates import asset, content_hash, furniture, write_page

_HERE = "trueup.reporting.curves"
MAX_DRAWN = 8
"""Targets whose curves are drawn, those that differ first; all are listed."""
_OUTCOME = {
    "agree": ("✓", "Accepted"),
    "differ": ("≠", "The runs differ"),
    "undecided": ("?", "Undecided"),
}
_STATUS = {"met": "✓", "not met": "✕", "warning": "!", "undecided": "?"}
_ORDER = {"differ": 0, "undecided": 1, "agree": 2}


def write_html(comparisons: Sequence[CurveComparison], document: Mapping[str, Any], path: Path) -> Path:
    """Write the page.

    Raises:
        ConfigError: plotly is not installed.
    """
    plotly = require("plotly.offline", purpose="the page of the curves").get_plotlyjs()
    plotly = plotly.replace("</script", "<\\/script")
    style = asset("page.css") + asset("diagnosis.css") + asset("curves.css", _HERE)
    script = asset("diagnosis.js") + "\n" + asset("curves.js", _HERE)
    pairs = sorted(
        zip(comparisons, document["comparisons"], strict=True), key=lambda pair: _ORDER[pair[1]["outcome"]]
    )
    context = {
        **furniture(style, script),
        "plotly": Markup(plotly),
        "plotly_hash": content_hash(plotly),
        "runs": [
            _run(comparison, entry, index < MAX_DRAWN) for index, (comparison, entry) in enumerate(pairs)
        ],
        "left_out": max(0, len(pairs) - MAX_DRAWN),
    }
    return write_page(asset("curves.html.j2", _HERE), context, path)


def _run(comparison: CurveComparison, entry: Mapping[str, Any], drawn: bool) -> dict[str, Any]:
    glyph, word = _OUTCOME[entry["outcome"]]
    judgement = entry["judgement"]
    return {
        "outcome": entry["outcome"],
        "glyph": glyph,
        "word": word,
        "target": plain(entry["target"]["name"]),
        "references": [plain(one["name"]) for one in entry["references"]],
        "headline": plain(judgement["headline"]),
        "case": judgement["case"].replace("_", " "),
        "reasons": [plain(text) for text in judgement["reasons"]],
        "remarks": [plain(text) for text in judgement["remarks"]],
        "advice": [plain(text) for text in judgement["advice"]],
        "commands": [(plain(one["line"]), plain(one["purpose"])) for one in entry["next"]],
        "criteria": [one | {"glyph": _STATUS[one["status"]]} for one in entry["criteria"]],
        "conditions": entry["conditions"],
        "local_norms": entry["statistics"]["local_norms"],
        "around": entry.get("around"),
        "notes": [plain(note) for note in entry["notes"]],
        "standard": entry["standard"],
        "sides": [
            _side("target", entry["target"]),
            *(_side("reference", one) for one in entry["references"]),
        ],
        "figures": Markup(_figures(comparison)) if drawn else "",
    }


def _side(role: str, side: Mapping[str, Any]) -> dict[str, str]:
    steps = f"{side['first_step']:,} to {side['last_step']:,}"
    every = f", every {side['interval']}" if side["interval"] > 1 else ""
    return {"role": role, "name": plain(side["name"]), "format": side["format"], "steps": steps + every}


def _figures(comparison: CurveComparison) -> str:
    """The panels as JSON that can stand in a script element."""
    text = json.dumps([_figure(panel) for panel in panels(comparison)], allow_nan=False)
    return text.replace("<", "\\u003c")


def _figure(panel: Panel) -> dict[str, Any]:
    band = None
    if panel.band is not None:
        x, low, high = panel.band
        band = {"x": _numbers(x), "low": _numbers(low), "high": _numbers(high), "name": panel.band_name}
    return {
        "key": panel.key,
        "title": panel.title,
        "notes": panel.notes,
        "x_title": panel.x_title,
        "y_title": panel.y_title,
        "bars": panel.bars,
        "zero": panel.zero,
        "range": axis_range(panel),
        "band": band,
        "marks": [{"step": step, "what": what} for step, what in panel.marks],
        "lines": [
            {"name": line.name, "role": line.role, "x": _numbers(line.x), "y": _numbers(line.y)}
            for line in panel.lines
        ],
    }


def _numbers(values: Any) -> list[float | None]:
    """Six digits each, null where a number is missing."""
    array = np.asarray(values)
    if array.dtype.kind in "iu":
        return [int(value) for value in array]
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in array.tolist()]
