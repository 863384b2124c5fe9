"""A document as a workbook: one sheet a section. Texts are never formulas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xlsxwriter
from xlsxwriter.chart import Chart
from xlsxwriter.format import Format
from xlsxwriter.worksheet import Worksheet

from trueup.reporting.document import (
    Block,
    Cell,
    Document,
    Facts,
    Frame,
    On,
    Paragraph,
    Plot,
    Plots,
    Row,
    Section,
    Table,
    Tasks,
    Tone,
    Value,
    visible,
    words,
)
from trueup.reporting.formatting import plain
from trueup.reporting.render.xlsx_frame import LONGEST_TEXT, SHADES, write_frame

_NUMBER_WIDTH = 16
_CHART = {"width": 900, "height": 340}


def write(document: Document, path: Path, *, max_sheet_rows: int | None = None) -> Path:
    """Write the workbook; a frame longer than a sheet continues on the next one."""
    options = {
        "constant_memory": any(isinstance(block, Frame) for block in _inside(document.blocks)),
        "strings_to_formulas": False,
        "strings_to_urls": False,
        "strings_to_numbers": False,
        "nan_inf_to_errors": False,
    }
    with xlsxwriter.Workbook(str(path), options) as book:
        book_ = _Book(book)
        for block in visible(document.blocks, On.BOOK):
            if isinstance(block, Section):
                book_.section(block, document.headline, max_sheet_rows)
    return path


def _inside(blocks: Sequence[Block]) -> list[Block]:
    found: list[Block] = []
    for block in blocks:
        found += [block, *(_inside(block.blocks) if isinstance(block, Section) else [])]
    return found


class _Book:
    """A workbook being written, with its formats."""

    def __init__(self, book: xlsxwriter.Workbook) -> None:
        self.book = book
        self.head = book.add_format(
            {"bold": True, "bg_color": "#1F2A37", "font_color": "#FFFFFF", "valign": "vcenter"}
        )
        self.title = book.add_format({"bold": True, "font_size": 15})
        self.bold = book.add_format({"bold": True, "valign": "top"})
        self.wrap = book.add_format({"text_wrap": True, "valign": "top"})
        self.shades = {
            tone: book.add_format({"bg_color": back, "font_color": ink, "text_wrap": True, "valign": "top"})
            for tone, (back, ink) in SHADES.items()
        }

    def section(self, section: Section, headline: str, max_sheet_rows: int | None) -> None:
        """One sheet; of a frame as many as it needs."""
        blocks = visible(section.blocks, On.BOOK)
        frame = next((block for block in blocks if isinstance(block, Frame)), None)
        if frame is not None:
            write_frame(self.book, self.head, frame, _name(section), max_sheet_rows)
            return
        sheet, at = self.book.add_worksheet(_name(section)), 0
        if not isinstance(blocks[0], (Table, Plots)):
            sheet.write_string(0, 0, plain(headline), self.title)
            sheet.set_column(0, 0, 24)
            sheet.set_column(1, 2, 60)
            at = 2
        for block in blocks:
            at = self._block(sheet, block, at) + (0 if isinstance(block, Paragraph) else 1)

    def _block(self, sheet: Worksheet, block: Block, at: int) -> int:
        """Write a block from row ``at`` on; the row after it."""
        if isinstance(block, Table):
            return self._table(sheet, block, at)
        if isinstance(block, Plots):
            charts = [self._plot(sheet, plot, at) for plot in block.items]
            for number, chart in enumerate(charts):
                sheet.insert_chart(at + 1 + 18 * number, sheet.dim_colmax + 2, chart)
        if isinstance(block, Facts):
            for row in (row for row in block.rows if On.BOOK in row.on):
                for line in row.lines:
                    sheet.write_string(at, 0, row.label, self.bold)
                    note = f" ({row.note})" if row.note else ""
                    sheet.write_string(at, 1, plain(words(line) + note)[:LONGEST_TEXT], self.wrap)
                    at += 1
        if isinstance(block, (Paragraph, Tasks)):
            for line in (block.line,) if isinstance(block, Paragraph) else block.lines:
                sheet.write_string(at, 0, plain(words(line)))
                at += 1
        return at

    def _table(self, sheet: Worksheet, table: Table, at: int) -> int:
        marked = any(row.mark for row in table.rows)
        chosen = [i for i, column in enumerate(table.columns) if On.BOOK in column.on]
        heads = [*(["result"] if marked else []), *(table.columns[i].title for i in chosen)]
        widths = [*([22] if marked else []), *(table.columns[i].width or 28 for i in chosen)]
        for column, (title, width) in enumerate(zip(heads, widths, strict=True)):
            sheet.write_string(at, column, title, self.head)
            if at == 0:
                sheet.set_column(column, column, width)
        if at == 0:
            sheet.freeze_panes(1, 2 if marked else 1)
            sheet.autofilter(0, 0, max(1, len(table.rows)), len(heads) - 1)
        for row in table.rows:
            at += 1
            self._row(sheet, row, chosen, at, marked=marked)
        return at + 1

    def _row(self, sheet: Worksheet, row: Row, chosen: Sequence[int], at: int, *, marked: bool) -> None:
        shade = self.shades.get(row.mark.tone if row.mark else Tone.BAD) if row.loud or row.mark else None
        look = shade if row.loud and shade is not None else self.wrap
        if row.mark is not None:
            sheet.write_string(at, 0, row.mark.words, shade or self.wrap)
        for column, i in enumerate(chosen, start=int(marked)):
            self._cell(sheet, at, column, row.cells[i], look)

    def _cell(self, sheet: Worksheet, at: int, column: int, given: Value | Cell, look: Format) -> None:
        cell = given if isinstance(given, Cell) else Cell(value=given)
        value = cell.value
        if isinstance(value, (int, float)) and math.isfinite(value):
            sheet.write_number(at, column, value, look)
        elif value is not None:
            lines = [str(value) if isinstance(value, float) else words(value)]
            lines += [words(line) for line in cell.under] if On.BOOK in cell.on else []
            text = "\n".join(plain(line) for line in lines if line)
            sheet.write_string(at, column, text[:LONGEST_TEXT], look)

    def _plot(self, sheet: Worksheet, plot: Plot, at: int) -> Chart:
        """Write the numbers in columns; the chart to put beside them."""
        left = sheet.dim_colmax + 2 if sheet.dim_colmax else 0
        sheet.write_string(at, left, plot.x_title, self.head)
        if (at, left) == (0, 0):
            sheet.freeze_panes(1, 1)
        chart = self.book.add_chart({"type": "scatter", "subtype": "straight"})
        for column, line in enumerate(plot.lines, start=left + 1):
            sheet.write_string(at, column, line.name, self.head)
            sheet.set_column(column, column, max(_NUMBER_WIDTH, len(line.name) + 2))
            for row, (x, y) in enumerate(zip(line.x.tolist(), line.y.tolist(), strict=True), start=at + 1):
                sheet.write_number(row, left, x)
                if np.isfinite(y):
                    sheet.write_number(row, column, y)
            last = at + len(line.x)
            place = [sheet.name, at + 1, left, last, left], [sheet.name, at + 1, column, last, column]
            chart.add_series(
                {"name": line.name, "categories": place[0], "values": place[1], "line": {"width": 0.75}}
            )
        chart.set_title({"name": plot.title, "name_font": {"size": 11}})
        chart.set_x_axis({"name": plot.x_title})
        chart.set_y_axis({"name": plot.y_title})
        chart.set_size(_CHART)
        return chart


def _name(section: Section) -> str:
    """The name of a sheet: at most 31 characters, none that a workbook refuses."""
    return "".join("_" if c in "[]:*?/\\" else c for c in section.key or section.title)[:31]
