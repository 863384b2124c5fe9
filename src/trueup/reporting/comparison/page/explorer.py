"""Parts of a comparison's page that a person explores, and the tables they read.

A table travels in the page as ``payload`` encodes it, and is decoded when it is first read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import polars as pl

from trueup.reporting.comparison.page.payload import encode_tables
from trueup.reporting.comparison.result import EXCEEDING, SIDES, STATUSES, ComparisonResult
from trueup.reporting.document import Block, Custom, Section
from trueup.reporting.formatting import count

MAX_ROWS = 250_000
"""records one page holds; of a larger result the worst ones, and the page says how many it leaves out"""
MAX_PRECISION_ROWS = 100_000
_PACKAGE = "trueup.reporting.comparison.page"
_SCRIPTS = ("data.js", "format.js", "table.js", "charts.js", "tree.js", "detail.js", "explorer.js")
_LISTED = (
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
)
"""columns the table and its filters read; the others are decoded when details are first opened"""
_DEPTH = (
    "Relative L2 error of every module output, in execution order{place}. The band is the tolerance; points "
    "on the lowest line show no difference. Select a point to see its records."
)


def _part(name: str, **context: object) -> Custom:
    return Custom(package=_PACKAGE, template="explorer.html.j2", context={"part": name, **context})


def counts_of_phases(result: ComparisonResult) -> Custom:
    """Records by status and phase."""
    phases = [_phase(name, counts) for name, counts in result.by_phase.items()]
    return _part("counts", statuses=_statuses(result), phases=phases)


def _statuses(result: ComparisonResult) -> list[dict[str, object]]:
    marks = [(key, STATUSES[key], n) for key, n in result.status_counts.items()]
    return [{"key": key, "label": mark.words, "glyph": mark.glyph, "count": n} for key, mark, n in marks]


def _phase(name: str, counts: Mapping[str, int]) -> dict[str, object]:
    total = sum(counts.get(key) or 0 for key in STATUSES)
    parts, at = [], 0.0
    for key in (key for key in reversed(STATUSES) if counts.get(key)):
        width = 1000 * counts[key] / total
        parts.append({"key": key, "x": f"{at:.2f}", "width": f"{width:.2f}"})
        at += width
    exceeding = sum(counts.get(key) or 0 for key in EXCEEDING)
    words = f"{exceeding or 'none'} of {total:,} exceed{'s' if exceeding == 1 else ''} tolerance"
    return {"name": name, "label": name.replace("_", " "), "parts": parts, "words": words}


def depth_charts(result: ComparisonResult) -> Section:
    """Errors of module outputs along execution."""
    depth = result.depth
    known = {point.get("phase") for point in depth}
    phases = [phase for phase in ("forward", "backward") if phase in known]
    place = f", step {depth[0].get('step')}, rank {depth[0].get('rank')}" if depth else ""
    return Section(
        title="Error by module",
        key="depth",
        nav="Error by module",
        lead=_DEPTH.format(place=place),
        blocks=(_part("depth", phases=phases),) if phases else (),
    )


def record_explorer(result: ComparisonResult, limit: int) -> Section:
    """All records with a module tree, filters and details; beyond ``limit`` the worst of them."""
    left_out = result.num_records - limit
    held = f"This page has the {count(limit, 'worst record')}; {left_out:,} more are in result.parquet."
    explorer = Custom(
        package=_PACKAGE,
        template="explorer.html.j2",
        context={"part": "records", "statuses": _statuses(result)},
        styles=("explorer.css",),
        scripts=_SCRIPTS,
        data=lambda: _data(result, limit),
    )
    lead = held if left_out > 0 else ""
    return Section(title="Records", key="records", nav="Records", lead=lead, blocks=(explorer,))


def gradient_table(result: ComparisonResult) -> Section:
    """Norms of the gradients of both sides, by weight."""
    blocks = (_part("gradients"),) if result.part("local_norms") else ()
    return Section(title="Gradients by weight", key="gradients", nav="Gradients", blocks=blocks)


def precision_table(num_calls: int, num_differing: int) -> tuple[Block, ...]:
    """Dtypes of both sides by call, where there are some."""
    return (_part("precision", differing=num_differing),) if num_calls else ()


def _data(result: ComparisonResult, limit: int) -> Iterator[tuple[str, str, str]]:
    """What the scripts of the page read."""
    records = _worst(result, limit)
    schema = records.collect_schema().names()
    precision = result.precision.sort("differs", descending=True, maintain_order=True)
    kept = precision.head(MAX_PRECISION_ROWS).sort("order").collect()
    tables = {
        "records": records.select(name for name in _LISTED if name in schema),
        "details": records.select(name for name in schema if name not in _LISTED),
        "stacks": _stacks(result, records),
        **({"precision": kept.lazy()} if kept.height else {}),
    }
    yield "report", "application/json", _document(result)
    for name, text in zip(tables, encode_tables(tables.values()), strict=True):
        yield f"table-{name}", "text/plain", text


def _worst(result: ComparisonResult, limit: int) -> pl.LazyFrame:
    """All records in execution order or, beyond ``limit``, the worst of them in that order."""
    records = result.in_order
    if result.num_records <= limit:
        return records
    status = pl.col("status").cast(pl.String)
    weight = pl.when(status.is_in(EXCEEDING)).then(0).when(status.is_in(["undecided", "unmatched"])).then(1)
    numbered = records.with_row_index("_row")
    worst = numbered.select("_row", weight.otherwise(2).alias("_weight")).bottom_k(
        limit, by=["_weight", "_row"]
    )
    rows = worst.select("_row").collect(engine="streaming")
    kept = numbered.join(rows.lazy(), on="_row", how="semi", maintain_order="left")
    return kept.drop("_row").collect(engine="streaming").lazy()


def _stacks(result: ComparisonResult, records: pl.LazyFrame) -> pl.LazyFrame:
    rows: list[tuple[str, int, str]] = []
    schema = records.collect_schema()
    for side in SIDES:
        name = f"{side}_stack"
        if name in schema:
            used = records.select(pl.col(name).drop_nulls().unique()).collect()[name]
            rows += [(side, number, "\x1f".join(result.stack(side, number))) for number in used]
    kinds = {"side": pl.String, "number": pl.Int64, "frames": pl.String}
    return pl.DataFrame(rows, orient="row", schema=kinds).lazy()


def _document(result: ComparisonResult) -> str:
    """The small part of the result the scripts read; no ``<`` survives, so no name can end the element."""
    verdict, origin = result.verdict, result.part("tolerance")
    kept = {
        **{name: result.part(name) for name in ("modules", "depth", "local_norms")},
        "tolerance": origin,
        "verdict": {name: getattr(verdict, name) for name in ("where", "owner", "step", "rank", "phase")},
    }
    text = json.dumps(
        _speakable(kept), ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=str
    )
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _speakable(value: object) -> object:
    """JSON has no infinities: they are words, as in result.json."""
    if isinstance(value, float) and value - value != 0:
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _speakable(item) for key, item in value.items()}
    return [_speakable(item) for item in value] if isinstance(value, (list, tuple)) else value
