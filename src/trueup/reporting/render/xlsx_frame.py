"""Sheets of a table as large as a result.

Rows are written as XML text made a column at a time, because XlsxWriter's cell by cell way takes most of a
minute for 150,000 records; XlsxWriter does everything else. Strings are inline, never formulas.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
import xlsxwriter
from xlsxwriter.format import Format
from xlsxwriter.worksheet import Worksheet

from trueup.reporting.document import Frame, FrameColumn, Tone

MAX_SHEET_ROWS = 1_048_575
"""Rows a sheet holds under its heading; more go to further sheets."""
BATCH_ROWS = 16_384
LONGEST_TEXT = 32_767
SHADES = {
    Tone.GOOD: ("#E3F0EA", "#245247"),
    Tone.BAD: ("#FBE3DB", "#8F2A10"),
    Tone.WARN: ("#FBF0D2", "#6B4700"),
    Tone.QUIET: ("#ECE8F5", "#4B4168"),
}
"""background and ink of a row of this tone"""
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_UNSPEAKABLE = "[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\ufffe\\uffff]"


class _RowSheet(Worksheet):  # type: ignore[misc]
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


def write_frame(
    book: xlsxwriter.Workbook, head: Format, frame: Frame, name: str, max_sheet_rows: int | None = None
) -> None:
    """Write every row of the frame; ``name_2`` and so on where one sheet does not hold them."""
    room = max_sheet_rows or MAX_SHEET_ROWS
    percent = book.add_format({"num_format": "0.0000%"})
    styles = {
        kind: _styles(book, frame, percent=kind == "percent", plain=percent) for kind in ("", "percent")
    }
    for number, start in enumerate(range(0, max(frame.num_rows, 1), room)):
        sheet = book.add_worksheet(name if number == 0 else f"{name}_{number + 1}", worksheet_class=_RowSheet)
        num = min(room, frame.num_rows - start)
        for index, column in enumerate(frame.columns):
            width = max(column.width, len(column.title) + 3)  # bold, beside the button of the filter
            sheet.set_column(index, index, width, percent if column.kind == "percent" else None)
        sheet.set_row(0, 24)
        for index, column in enumerate(frame.columns):
            sheet.write_string(0, index, column.title, head)
        sheet._write_single_row()
        sheet.freeze_panes(1, 1)
        sheet.autofilter(0, 0, max(num, 1), len(frame.columns) - 1)
        sheet.dim_rowmax, sheet.dim_colmax = num, len(frame.columns) - 1
        sheet.pieces = _pieces(frame, styles, start, num)


def _styles(book: xlsxwriter.Workbook, frame: Frame, *, percent: bool, plain: Format) -> pl.Expr:
    """The style attribute of a row's cells, by its shade."""
    extra = {"num_format": "0.0000%"} if percent else {}
    numbers = {}
    for value, tone in frame.shades.items():
        background, ink = SHADES[tone]
        number = book.add_format({"bg_color": background, "font_color": ink} | extra)._get_xf_index()
        numbers[value] = f' s="{number}"'
    return frame.shade.replace_strict(
        list(numbers),
        list(numbers.values()),
        default=f' s="{plain._get_xf_index()}"' if percent else "",
        return_dtype=pl.String,
    )


def _pieces(frame: Frame, styles: dict[str, pl.Expr], start: int, num: int) -> Iterator[str]:
    """XML of the rows, some thousands at a time; a cell takes the next free place, so none is numbered."""
    cells = [_cell(column, styles["percent" if column.kind == "percent" else ""]) for column in frame.columns]
    row = pl.concat_str(pl.lit("<row>"), *cells, pl.lit("</row>")).alias("row")
    for begin in range(start, start + num, BATCH_ROWS):
        size = min(BATCH_ROWS, start + num - begin)
        yield "".join(frame.frame.slice(begin, size).select(row).collect()["row"])


def _cell(column: FrameColumn, style: pl.Expr) -> pl.Expr:
    empty = pl.concat_str(pl.lit("<c"), style, pl.lit("/>"))
    if column.kind == "text":
        return pl.when(column.value.is_null()).then(empty).otherwise(_inline(style, _safe(column.value)))
    value = column.value.cast(pl.Int64 if column.kind == "integer" else pl.Float64)
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
