"""curves.html: one file that loads nothing from elsewhere, with plots to zoom into."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

import trueup
from trueup._optional import require
from trueup.curves.comparison import CurveComparison
from trueup.reporting.curves.panels import Panel, axis_range, panels
from trueup.reporting.formatting import plain

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
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    html = "trueup.reporting.html"
    style = "".join(_asset(html, name) for name in ("page.css", "diagnosis.css"))
    style += _asset("trueup.reporting.curves", "curves.css")
    script = '(() => {\n"use strict";\n' + _asset(html, "diagnosis.js") + "\n"
    script += _asset("trueup.reporting.curves", "curves.js") + "})();\n"
    pairs = sorted(
        zip(comparisons, document["comparisons"], strict=True), key=lambda pair: _ORDER[pair[1]["outcome"]]
    )
    context = {
        "style": Markup(style),
        "script": Markup(script),
        "script_hash": _hash(script),
        "plotly": Markup(plotly.replace("</script", "<\\/script")),
        "plotly_hash": _hash(plotly.replace("</script", "<\\/script")),
        "version": trueup.__version__,
        "runs": [
            _run(comparison, entry, index < MAX_DRAWN) for index, (comparison, entry) in enumerate(pairs)
        ],
        "left_out": max(0, len(pairs) - MAX_DRAWN),
    }
    text = environment.from_string(_asset("trueup.reporting.curves", "curves.html.j2")).render(context)
    path.write_text(text, encoding="utf-8", errors="replace")
    return path


def _asset(package: str, name: str) -> str:
    return (files(package) / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


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
