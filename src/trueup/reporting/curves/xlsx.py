"""acceptance.xlsx: the acceptance report as a workbook, with the curves themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xlsxwriter

from trueup.curves.columns import GRAD_NORM, LEARNING_RATE, LOSS
from trueup.curves.comparison import CurveComparison
from trueup.curves.curve import Floats
from trueup.reporting.formatting import plain

MAX_TARGETS = 8
"""Targets whose curves get a sheet of their own."""
MAX_ROWS = 200_000
_COLOURS = {
    "met": ("#E3F0EA", "#245247"),
    "not met": ("#FBE3DB", "#8F2A10"),
    "warning": ("#FBF0D2", "#6B4700"),
    "undecided": ("#FBF0D2", "#6B4700"),
}
_WORDS = {"agree": "accepted", "differ": "not accepted", "undecided": "undecided"}


def write_xlsx(comparisons: Sequence[CurveComparison], document: Mapping[str, Any], path: Path) -> Path:
    """Write the workbook: one sheet of verdicts, one of criteria, and the curves of the first eight
    targets."""
    options = {"strings_to_formulas": False, "strings_to_urls": False, "nan_inf_to_errors": False}
    with xlsxwriter.Workbook(str(path), options) as book:
        head = book.add_format(
            {"bold": True, "bg_color": "#1F2A37", "font_color": "#FFFFFF", "valign": "vcenter"}
        )
        wrap = book.add_format({"text_wrap": True, "valign": "top"})
        shades = {
            status: book.add_format({"bg_color": back, "font_color": ink, "valign": "top"})
            for status, (back, ink) in _COLOURS.items()
        }
        _acceptance(book.add_worksheet("acceptance"), head, wrap, shades, document)
        _conditions(book.add_worksheet("conditions"), head, wrap, document)
        _statistics(book.add_worksheet("statistics"), head, document)
        for number, comparison in enumerate(comparisons[:MAX_TARGETS], 1):
            name = "curves" if len(comparisons) == 1 else f"curves {number}"
            _curves(book, book.add_worksheet(name), head, comparison, name)
    return path


def _heading(sheet: Any, head: Any, columns: Sequence[tuple[str, int]]) -> None:
    for index, (name, width) in enumerate(columns):
        sheet.write_string(0, index, name, head)
        sheet.set_column(index, index, width)
    sheet.freeze_panes(1, 0)


def _acceptance(
    sheet: Any, head: Any, wrap: Any, shades: Mapping[str, Any], document: Mapping[str, Any]
) -> None:
    _heading(
        sheet,
        head,
        [
            ("target", 28),
            ("criterion", 44),
            ("measured", 22),
            ("wanted", 32),
            ("result", 14),
            ("origin", 60),
            ("note", 60),
        ],
    )
    row = 1
    for entry in document["comparisons"]:
        name = plain(entry["target"]["name"])
        tone = {"agree": "met", "differ": "not met", "undecided": "undecided"}[entry["outcome"]]
        for column, text in enumerate(
            [name, "verdict", "", "", _WORDS[entry["outcome"]], "", entry["judgement"]["headline"]]
        ):
            sheet.write_string(row, column, plain(text), shades[tone])
        row += 1
        for one in entry["criteria"]:
            texts = [
                name,
                one["title"],
                one["value"],
                one["threshold"],
                one["status"],
                one["origin"],
                one["note"],
            ]
            for column, text in enumerate(texts):
                sheet.write_string(row, column, plain(text), shades[one["status"]] if column == 4 else wrap)
            row += 1
    sheet.write_string(row + 1, 0, document["comparisons"][0]["standard"] if document["comparisons"] else "")


def _conditions(sheet: Any, head: Any, wrap: Any, document: Mapping[str, Any]) -> None:
    _heading(sheet, head, [("target", 28), ("condition", 20), ("default", 56), ("state", 12), ("here", 40)])
    row = 1
    for entry in document["comparisons"]:
        for one in entry["conditions"]:
            texts = [entry["target"]["name"], one["name"], one["default"], one["state"], one["actual"]]
            for column, text in enumerate(texts):
                sheet.write_string(row, column, plain(text), wrap)
            row += 1


def _statistics(sheet: Any, head: Any, document: Mapping[str, Any]) -> None:
    _heading(sheet, head, [("target", 28), ("part", 22), ("number", 26), ("value", 24)])
    row = 1
    for entry in document["comparisons"]:
        for part, numbers in entry["statistics"].items():
            for name, value in (numbers or {}).items():
                if isinstance(value, (dict, list)):
                    continue
                for column, text in enumerate([plain(entry["target"]["name"]), part, name]):
                    sheet.write_string(row, column, text)
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    sheet.write_number(row, 3, value)
                else:
                    sheet.write_string(row, 3, "" if value is None else plain(value))
                row += 1


def _curves(book: Any, sheet: Any, head: Any, comparison: CurveComparison, name: str) -> None:
    paired = comparison.paired
    columns: list[tuple[str, Any]] = [("step", paired.steps)]
    for column in (LOSS, GRAD_NORM, LEARNING_RATE):
        sides = [
            ("target", paired.target),
            *((f"reference {i}", s) for i, s in enumerate(paired.references.sides, 1)),
        ]
        columns += [
            (f"{column} {role}", values) for role, side in sides if (values := side.get(column)) is not None
        ]
    difference = comparison.difference(LOSS)
    if difference is not None:
        columns.append(("difference", difference))
    _heading(sheet, head, [(title, 16) for title, _ in columns])
    num = min(len(paired.steps), MAX_ROWS)
    for index, (_, values) in enumerate(columns):
        _write_numbers(sheet, index, values[:num])
    if difference is not None and num > 1:
        chart = book.add_chart({"type": "scatter", "subtype": "straight"})
        at = len(columns) - 1
        chart.add_series(
            {
                "name": "difference",
                "categories": [name, 1, 0, num, 0],
                "values": [name, 1, at, num, at],
                "line": {"width": 0.75, "color": "#1D5FAE"},
            }
        )
        chart.set_title({"name": "Loss: target − reference", "name_font": {"size": 11}})
        chart.set_legend({"none": True})
        chart.set_size({"width": 760, "height": 320})
        sheet.insert_chart(1, len(columns) + 1, chart)


def _write_numbers(sheet: Any, column: int, values: Floats | Any) -> None:
    for row, value in enumerate(values.tolist(), 1):
        if np.isfinite(value):
            sheet.write_number(row, column, value)
