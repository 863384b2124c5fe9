"""Fill the page: what is read first is text of the document, what is explored are tables it carries."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from markupsafe import Markup

from trueup.reporting.formatting import count, number, plain, short_frame, short_site
from trueup.reporting.html.payload import encode_tables
from trueup.reporting.model import BEYOND, STATUS_ORDER, Report, run_facts
from trueup.reporting.templates import asset, furniture, write_page

MAX_ROWS = 250_000
"""Records one page holds; of a larger result the worst ones, and the page says how many it leaves out."""

MAX_PRECISION_ROWS = 100_000
MAX_SCALAR_ROWS = 8
GLYPHS = {
    "agree": ("✓", "The runs agree"),
    "differ": ("≠", "The runs differ"),
    "undecided": ("?", "Undecided"),
}
STATUS_GLYPHS = dict(zip(STATUS_ORDER, "◆≠▲→?∅≈=", strict=True))
SCRIPTS = ("data.js", "format.js", "table.js", "charts.js", "tree.js", "detail.js", "app.js")
LISTED = [
    "step",
    "rank",
    "status",
    "phase",
    "slot",
    "module",
    "name",
    "type",
    "site",
    "target_dtype",
    "reference_dtype",
    "target_shape",
    "reference_shape",
    "rel_l2",
    "tolerance",
    "score",
    "max_abs_diff",
    "cosine_similarity",
]
"""Columns the table and its filters read; the others are decoded when details are first opened."""


def write_html(report: Report, path: Path, *, max_rows: int = MAX_ROWS) -> None:
    """Write ``report.html``: one file, nothing loaded from elsewhere, every name in it escaped."""
    write_page(asset("page.html.j2"), _context(report, max_rows), path)


def _context(report: Report, max_rows: int) -> dict[str, Any]:
    total = report.num_records()
    records = _telling(report, total, max_rows)
    schema = records.collect_schema().names()
    precision = report.precision.sort("differs", descending=True, maintain_order=True).head(
        MAX_PRECISION_ROWS
    )
    precision_table = precision.sort("order").collect()
    tables = {
        "records": records.select(name for name in LISTED if name in schema),
        "details": records.select(name for name in schema if name not in LISTED),
        "stacks": _stacks(report, records),
    }
    if precision_table.height:
        tables["precision"] = precision_table.lazy()
    outcome = GLYPHS.get(report.verdict.outcome, GLYPHS["undecided"])
    depth = report.summary.get("depth") or []
    phases = {point.get("phase") for point in depth}
    return {
        **furniture(asset("page.css"), "\n".join(asset(name) for name in SCRIPTS)),
        "data": _embedded(report),
        "tables": list(zip(tables, encode_tables(tables.values()), strict=True)),
        "verdict": report.verdict.with_page("the records below"),
        "glyph": outcome[0],
        "verdict_word": outcome[1],
        "names": {side: plain(report.path(side)) for side in ("target", "reference")},
        "coordinates": _coordinates(report),
        "sources": _sources(report),
        "has": {
            "depth": bool(phases & {"forward", "backward"}),
            "forward": "forward" in phases,
            "backward": "backward" in phases,
            "norms": bool(report.summary.get("local_norms")),
            "precision": precision_table.height > 0,
        },
        "depth_place": _depth_place(depth),
        "compared": int(report.counts.get("compared", 0)),
        "statuses": [
            {"key": key, "label": key.replace("_", " "), "glyph": STATUS_GLYPHS[key], "count": value}
            for key, value in report.status_counts().items()
        ],
        "phases": _phases(report),
        "held": min(total, max_rows),
        "left_out": max(0, total - max_rows),
        **_precision(precision_table),
        **_scalars(report.summary.get("scalars") or []),
        "unmatched": report.unmatched(),
        "unmatched_words": _unmatched_words(report),
        **_facts(report),
        "tolerance": {"formula": "", "origin": "", "constants": {}}
        | dict(report.summary.get("tolerance") or {}),
        "notes": report.summary.get("notes") or [],
    }


def _telling(report: Report, total: int, limit: int) -> pl.LazyFrame:
    """All records in execution order or, beyond ``limit``, the worst of them in that order."""
    records = report.in_order()
    if total <= limit:
        return records
    status = pl.col("status").cast(pl.String)
    weight = pl.when(status.is_in(BEYOND)).then(0).when(status.is_in(["undecided", "unmatched"])).then(1)
    kept = records.with_row_index("_row").select("_row", weight.otherwise(2).alias("_weight"))
    rows = kept.bottom_k(limit, by=["_weight", "_row"]).select("_row").collect(engine="streaming")
    numbered = records.with_row_index("_row").join(rows.lazy(), on="_row", how="semi", maintain_order="left")
    return numbered.drop("_row").collect(engine="streaming").lazy()


def _stacks(report: Report, records: pl.LazyFrame) -> pl.LazyFrame:
    rows: list[tuple[str, int, str]] = []
    schema = records.collect_schema()
    for side in ("target", "reference"):
        name = f"{side}_stack"
        if name not in schema:
            continue
        used = records.select(pl.col(name).drop_nulls().unique()).collect()[name]
        rows += [(side, number, "\x1f".join(report.frames({name: number}, side))) for number in used]
    kinds = {"side": pl.String, "number": pl.Int64, "frames": pl.String}
    return pl.DataFrame(rows, orient="row", schema=kinds).lazy()


def _embedded(report: Report) -> Markup:
    """The small part of the result the scripts read; no ``<`` survives, so no name can end the element."""
    kept = {
        key: report.summary.get(key) for key in ("modules", "depth", "local_norms", "scalars", "tolerance")
    }
    verdict = report.verdict
    kept["verdict"] = {
        "where": verdict.where,
        "owner": verdict.owner,
        "step": verdict.step,
        "rank": verdict.rank,
        "phase": verdict.phase,
    }
    text = json.dumps(
        _speakable(kept), ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=str
    )
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _speakable(value: Any) -> Any:
    if isinstance(value, float) and value - value != 0:
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _speakable(item) for key, item in value.items()}
    return [_speakable(item) for item in value] if isinstance(value, (list, tuple)) else value


def _coordinates(report: Report) -> str:
    verdict = report.verdict
    parts = (
        verdict.phase,
        f"step {verdict.step}" if verdict.step is not None else None,
        f"rank {verdict.rank}" if verdict.rank is not None else None,
    )
    return " · ".join(part for part in parts if part)


def _sources(report: Report) -> list[tuple[str, tuple[str, str]]]:
    first = report.first() if report.verdict.where else None
    found = [(side, report.frames(first, side)) for side in ("target", "reference")]
    sources = [(side, short_frame(plain(frames[0]))) for side, frames in found if frames]
    if len(sources) == 2 and sources[0][1] == sources[1][1]:
        return [("both sides", sources[0][1])]
    return sources


def _depth_place(depth: Sequence[Mapping[str, Any]]) -> str:
    return f", step {depth[0].get('step')}, rank {depth[0].get('rank')}" if depth else ""


def _phases(report: Report) -> list[dict[str, Any]]:
    phases = []
    for name, counts in report.by_phase().items():
        total = sum(counts.get(key) or 0 for key in STATUS_ORDER)
        parts, at = [], 0.0
        for key in reversed(STATUS_ORDER):
            if counts.get(key):
                width = 1000 * counts[key] / total
                parts.append({"key": key, "x": f"{at:.2f}", "width": f"{width:.2f}"})
                at += width
        beyond = sum(counts.get(key) or 0 for key in BEYOND)
        words = f"{beyond:,} of {total:,} beyond" if beyond else f"{total:,}, none beyond"
        phases.append({"name": name, "label": name.replace("_", " "), "parts": parts, "words": words})
    return phases


def _precision(table: pl.DataFrame) -> dict[str, Any]:
    differing = int(table["differs"].sum()) if table.height else 0
    words = f"Dtypes of inputs, weights and outputs of {count(table.height, 'call')}, side by side. " + (
        "They are the same on both sides." if not differing else f"{count(differing)} differ."
    )
    return {"num_differing": differing, "precision_words": words}


def _scalars(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Scalars that differ at some step, each with its first telling steps, and the names of all others."""
    named: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        named.setdefault((str(row["name"]), int(row.get("rank", 0))), []).append(row)
    same = [one for one, series in named.items() if all(row["target"] == row["reference"] for row in series)]
    shown = [_scalar(*one, series) for one, series in named.items() if one not in same]
    apart = {scalar["name"] for scalar in shown}
    equal = ", ".join(name.replace("_", " ") for name, _ in same if name not in apart)
    return {"scalars": shown, "same_scalars": equal}


def _scalar(name: str, rank: int, series: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    beyond = [row for row in series if row.get("beyond")]
    start = max(0, series.index(beyond[0]) - 2) if beyond else 0
    shown = series[start : start + MAX_SCALAR_ROWS]
    agrees = f"within tolerance at {count(len(series), 'step')}"
    return {
        "name": name,
        "rank": rank,
        "label": name.replace("_", " ") + (f", rank {rank}" if rank else ""),
        "words": f"beyond tolerance from step {beyond[0]['step']} on" if beyond else agrees,
        "more": len(series) - len(shown),
        "drawn": len(series) > 2 and all(isinstance(row.get("target"), (int, float)) for row in series),
        "rows": [
            {
                "step": row["step"],
                "beyond": row.get("beyond"),
                "target": _measure(row.get("target")),
                "reference": _measure(row.get("reference")),
                "gap": _measure(row.get("rel_diff"), digits=3),
            }
            for row in shown
        ],
    }


def _measure(value: Any, *, digits: int = 8) -> str:
    return number(value, digits=digits) if value is None or isinstance(value, (int, float)) else plain(value)


def _unmatched_words(report: Report) -> str:
    groups, total = report.unmatched(), report.num_unmatched_groups()
    words = (
        "Every one of them lies between matched sites that agree: the same mathematics through other calls."
        if report.summary.get("bracketed")
        else "Not all of them lie between matched sites that agree."
    )
    names = Counter((short_site(str(group["name"])), str(group["side"])) for group in groups)
    often = [
        f"{name} in {count(times, 'module')} of the {side}" for (name, side), times in names.most_common(3)
    ]
    kept = f" The first {len(groups)} of {total:,} groups." if total > len(groups) else ""
    return f"{words} Most often {', '.join(often)}.{kept}" if len(groups) > 3 else words + kept


def _facts(report: Report) -> dict[str, Any]:
    facts = run_facts(report)
    differing = sum(1 for fact in facts if fact["differs"])
    words = (
        f"{count(differing, 'fact')} of the two runs {'differs' if differing == 1 else 'differ'}."
        if differing
        else "Every recorded fact of the two runs is the same."
    )
    return {"facts": facts, "facts_words": words}
