"""The workbook: msprobe's sheet of records with our columns after them, the verdict, and the precision table.

The rows of the large sheet are written as XML text made a column at a time, because XlsxWriter's cell by cell
way takes most of a minute for 150,000 records; XlsxWriter does everything else. Strings are inline, never
formulas.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import xlsxwriter
from xlsxwriter.worksheet import Worksheet

from trueup.reporting.formatting import plain
from trueup.reporting.model import Report, run_facts
from trueup.reporting.xlsx_columns import INTEGER, PERCENT, TEXT, Column, columns

MAX_SHEET_ROWS = 1_048_575
"""Records a sheet holds under its heading; more go to further sheets."""

BATCH_ROWS = 16_384
LONGEST_TEXT = 32_767
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_UNSPEAKABLE = "[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\ufffe\\uffff]"
_COLOURS = {
    "different": ("#FBE3DB", "#8F2A10"),
    "undecided": ("#FBF0D2", "#6B4700"),
    "unmatched": ("#ECE8F5", "#4B4168"),
}
_LOUD = {"origin": "different", "amplified": "different", "propagated": "different"}


def write_xlsx(report: Report, path: Path, *, max_sheet_rows: int = MAX_SHEET_ROWS) -> None:
    """Write the workbook; a result longer than a sheet continues on the next one."""
    options = {
        "constant_memory": True,
        "strings_to_formulas": False,
        "strings_to_urls": False,
        "strings_to_numbers": False,
        "nan_inf_to_errors": False,
    }
    with xlsxwriter.Workbook(str(path), options) as book:
        look = _Look(book)
        columns_ = _columns(report)
        total = report.num_records()
        for number, start in enumerate(range(0, max(total, 1), max_sheet_rows)):
            name = "compare_result" if number == 0 else f"compare_result_{number + 1}"
            _write_records(book, look, report, columns_, name, start, min(max_sheet_rows, total - start))
        _write_summary(book.add_worksheet("verdict"), look, report)
        _write_precision(book.add_worksheet("precision"), look, report.precision.collect())


class _Look:
    """Formats of the workbook, by what they are for."""

    def __init__(self, book: Any) -> None:
        self.head = book.add_format(
            {"bold": True, "bg_color": "#1F2A37", "font_color": "#FFFFFF", "valign": "vcenter"}
        )
        self.bold = book.add_format({"bold": True, "valign": "top"})
        self.title = book.add_format({"bold": True, "font_size": 15})
        self.wrap = book.add_format({"text_wrap": True, "valign": "top"})
        self.percent = book.add_format({"num_format": "0.0000%"})
        self.rows: dict[tuple[str, bool], Any] = {}
        for status, (background, colour) in _COLOURS.items():
            shade = {"bg_color": background, "font_color": colour}
            self.rows[status, False] = book.add_format(shade)
            self.rows[status, True] = book.add_format(shade | {"num_format": "0.0000%"})

    def style(self, status: str | None, *, percent: bool) -> int:
        """Number of the cell format of a row of this status; 0 is the plain one."""
        cell_format = self.rows.get((status or "", percent)) or (self.percent if percent else None)
        return 0 if cell_format is None else int(cell_format._get_xf_index())


class _RecordSheet(Worksheet):  # type: ignore[misc]
    """A worksheet whose rows after the heading are XML text, given in pieces."""

    pieces: Iterator[str] = iter(())

    def _write_optimized_sheet_data(self) -> None:
        self._xml_start_tag("sheetData")
        self.row_data_fh.seek(0)
        self.fh.write(self.row_data_fh.read())
        self.row_data_fh.close()
        for piece in self.pieces:
            self.fh.write(piece)
        self._xml_end_tag("sheetData")


def _columns(report: Report) -> list[Column]:
    evidence = report.records.select((pl.col("evidence").cast(pl.String) == "values").any()).collect().item()
    types = {
        str(module["fqn"]): str(module["type"])
        for module in report.summary.get("modules") or []
        if module.get("type")
    }
    frameworks = {
        side: str(report.manifest(side).get("framework") or "pytorch") for side in ("target", "reference")
    }
    return columns(
        report.records.collect_schema(),
        with_values=bool(evidence),
        frameworks=frameworks,
        types=types,
        stacks=(report.summary.get("stacks") or {}).get("target") or [],
    )


def _write_records(
    book: Any, look: _Look, report: Report, columns_: list[Column], name: str, start: int, num: int
) -> None:
    sheet = book.add_worksheet(name, worksheet_class=_RecordSheet)
    for index, column in enumerate(columns_):
        sheet.set_column(
            index,
            index,
            max(column.width, len(column.title) * 0.9),
            look.percent if column.kind == PERCENT else None,
        )
    sheet.set_row(0, 24)
    for index, column in enumerate(columns_):
        sheet.write_string(0, index, column.title, look.head)
    sheet._write_single_row()
    sheet.freeze_panes(1, 1)
    sheet.autofilter(0, 0, max(num, 1), len(columns_) - 1)
    sheet.dim_rowmax, sheet.dim_colmax = num, len(columns_) - 1
    sheet.pieces = _pieces(report, look, columns_, start, num)


def _pieces(report: Report, look: _Look, columns_: list[Column], start: int, num: int) -> Iterator[str]:
    """XML of the rows, some thousands at a time; a cell takes the next free place, so none is numbered."""
    status = pl.col("status").cast(pl.String).replace(_LOUD)
    styles = {
        percent: status.replace_strict(
            list(_COLOURS),
            [f' s="{look.style(key, percent=percent)}"' for key in _COLOURS],
            default=f' s="{look.style(None, percent=True)}"' if percent else "",
            return_dtype=pl.String,
        )
        for percent in (False, True)
    }
    cells = [_cell(column, styles[column.kind == PERCENT]) for column in columns_]
    row = pl.concat_str(pl.lit("<row>"), *cells, pl.lit("</row>")).alias("row")
    ordered = report.in_order()
    for begin in range(start, start + num, BATCH_ROWS):
        size = min(BATCH_ROWS, start + num - begin)
        yield "".join(ordered.slice(begin, size).select(row).collect()["row"])


def _cell(column: Column, style: pl.Expr) -> pl.Expr:
    empty = pl.concat_str(pl.lit("<c"), style, pl.lit("/>"))
    if column.kind == TEXT:
        return pl.when(column.value.is_null()).then(empty).otherwise(_inline(style, _safe(column.value)))
    value = column.value.cast(pl.Int64 if column.kind == INTEGER else pl.Float64)
    text = value.cast(pl.String)
    number = pl.concat_str(pl.lit("<c"), style, pl.lit("><v>"), text, pl.lit("</v></c>"))
    return (
        pl.when(value.is_null())
        .then(empty)
        .when(value.is_finite())
        .then(number)
        .otherwise(_inline(style, text))
    )


def _inline(style: pl.Expr, text: pl.Expr) -> pl.Expr:
    return pl.concat_str(
        pl.lit("<c"),
        style,
        pl.lit(' t="inlineStr"><is><t xml:space="preserve">'),
        text,
        pl.lit("</t></is></c>"),
    )


def _safe(text: pl.Expr) -> pl.Expr:
    short = text.str.slice(0, LONGEST_TEXT).str.replace_all(_UNSPEAKABLE, "\ufffd")
    return short.str.replace_many(list(_ESCAPES), list(_ESCAPES.values()))


def _write_summary(sheet: Any, look: _Look, report: Report) -> None:
    verdict = report.verdict
    sheet.set_column(0, 0, 24)
    sheet.set_column(1, 2, 72)
    sheet.write_string(0, 0, plain(verdict.headline), look.title)
    facts: list[tuple[str, str]] = [
        ("outcome", verdict.outcome),
        ("where", verdict.where or "–"),
        ("module", verdict.owner or "–"),
        ("phase", verdict.phase or "–"),
        ("step, rank", f"{_or_dash(verdict.step)}, {_or_dash(verdict.rank)}"),
        ("confidence", "–" if verdict.confidence is None else str(verdict.confidence)),
        *(("evidence", sentence) for sentence in verdict.evidence),
        ("before it", verdict.before or "–"),
        *(("next", line) for line in (verdict.next, verdict.next_note) if line),
        ("compared", f"{report.counts.get('compared', 0):,}"),
        *((status.replace("_", " "), f"{number:,}") for status, number in report.status_counts().items()),
        *(
            ("tolerance", str(value))
            for key, value in (report.summary.get("tolerance") or {}).items()
            if key == "formula"
        ),
        *(("note", str(note)) for note in report.summary.get("notes") or []),
    ]
    row = 2
    for key, value in facts:
        sheet.write_string(row, 0, key, look.bold)
        sheet.write_string(row, 1, plain(value)[:LONGEST_TEXT], look.wrap)
        row += 1
    row += 1
    for index, title in enumerate(("run", "target", "reference")):
        sheet.write_string(row, index, title, look.head)
    for fact in run_facts(report):
        row += 1
        shade = look.rows["different", False] if fact["differs"] else None
        for index, key in enumerate(("name", "target", "reference")):
            sheet.write_string(row, index, plain(fact[key])[:LONGEST_TEXT], shade)


def _or_dash(value: int | None) -> str:
    return "–" if value is None else str(value)


def _write_precision(sheet: Any, look: _Look, table: pl.DataFrame) -> None:
    for index, name in enumerate(table.columns):
        sheet.set_column(index, index, 10 if name in ("order", "role", "differs") else 28)
        sheet.write_string(0, index, name, look.head)
    sheet.freeze_panes(1, 0)
    sheet.autofilter(0, 0, max(table.height, 1), len(table.columns) - 1)
    differs = table.columns.index("differs")
    for row, values in enumerate(table.head(MAX_SHEET_ROWS).iter_rows(), start=1):
        shade = look.rows["different", False] if values[differs] else None
        for index, value in enumerate(values):
            if isinstance(value, str):
                sheet.write_string(row, index, plain(value)[:LONGEST_TEXT], shade)
            elif value is not None:
                sheet.write(row, index, value, shade)
