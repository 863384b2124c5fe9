"""checklist.xlsx: the rows of a check as a sheet to filter, and the schedules with a chart."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xlsxwriter

from trueup.reporting.checklist_model import SEVERITY, STATUS, place, shown, sources
from trueup.reporting.formatting import plain

_COLUMNS = (
    ("section", 22),
    ("setting", 26),
    ("what it is", 34),
    ("outcome", 24),
    ("severity", 20),
    ("target", 18),
    ("reference", 18),
    ("target: where", 42),
    ("reference: where", 42),
    ("reason", 46),
    ("why it matters", 54),
    ("what to do", 44),
    ("set on the target with", 34),
    ("set on the reference with", 34),
    ("source", 46),
)
_SHADES = {"error": "#FBE3DB", "warning": "#FBF0D2"}
_LOUD = ("different", "broken", "not_comparable")


def write_xlsx(document: Mapping[str, Any], path: Path) -> Path:
    """Write the workbook of a check (the document of checklist.json); texts are never formulas."""
    options = {"strings_to_formulas": False, "strings_to_urls": False, "strings_to_numbers": False}
    with xlsxwriter.Workbook(str(path), options) as book:
        _rows(book, document)
        _schedules(book, document)
        _files(book, document)
    return path


def _rows(book: Any, document: Mapping[str, Any]) -> None:
    sheet = book.add_worksheet("checklist")
    head = book.add_format({"bold": True, "bg_color": "#1F2A37", "font_color": "#FFFFFF"})
    wrap = {"text_wrap": True, "valign": "top"}
    formats = {name: book.add_format(wrap | {"bg_color": colour}) for name, colour in _SHADES.items()}
    usual = book.add_format(wrap)
    for column, (name, width) in enumerate(_COLUMNS):
        sheet.write_string(0, column, name, head)
        sheet.set_column(column, column, width)
    for number, row in enumerate(document["rows"], start=1):
        look = formats.get(row["severity"], usual) if row["status"] in _LOUD else usual
        for column, text in enumerate(_cells(row, document)):
            sheet.write_string(number, column, text, look)
    sheet.freeze_panes(1, 2)
    sheet.autofilter(0, 0, max(1, len(document["rows"])), len(_COLUMNS) - 1)


def _cells(row: Mapping[str, Any], document: Mapping[str, Any]) -> list[str]:
    target, reference = row["target"], row["reference"] or {"value": None, "set_with": ""}
    return [
        plain(text)
        for text in (
            document["sections"][row["section"]],
            row["key"],
            row["about"],
            STATUS[row["status"]][1],
            SEVERITY[row["severity"]],
            shown(target["value"], longest=2000),
            shown(reference["value"], longest=2000) if row["reference"] else "",
            place(target),
            place(row["reference"]),
            row["reason"],
            row["why"],
            row["advice"],
            target["set_with"],
            reference["set_with"],
            sources(row),
        )
    ]


def _schedules(book: Any, document: Mapping[str, Any]) -> None:
    found = document["schedules"]
    sides = [side for side in ("target", "reference") if found[side] and found[side]["learning_rate"]]
    if not sides:
        return
    sheet = book.add_worksheet("schedules")
    sheet.set_column(0, 4, 24)
    steps = found[sides[0]]["steps"]
    sheet.write_column(0, 0, ["step", *steps])
    chart = book.add_chart({"type": "scatter", "subtype": "straight"})
    column = 0
    for quantity in ("learning_rate", "weight_decay"):
        for side in sides:
            values = found[side][quantity]
            if values is None:
                continue
            column += 1
            sheet.write_column(0, column, [f"{quantity.replace('_', ' ')}, {side}", *values])
            if quantity == "learning_rate":
                chart.add_series(
                    {
                        "name": ["schedules", 0, column],
                        "categories": ["schedules", 1, 0, len(steps), 0],
                        "values": ["schedules", 1, column, len(steps), column],
                    }
                )
    chart.set_x_axis({"name": "step"})
    chart.set_y_axis({"name": "learning rate"})
    chart.set_size({"width": 900, "height": 360})
    sheet.insert_chart(1, column + 2, chart)


def _files(book: Any, document: Mapping[str, Any]) -> None:
    sheet = book.add_worksheet("files")
    sheet.set_column(0, 0, 14)
    sheet.set_column(1, 2, 60)
    rows = [["verdict", document["headline"], ""]]
    for side in ("target", "reference"):
        rows += [[side, file["path"], file["title"]] for file in (document[side] or {}).get("documents", [])]
        rows += [[f"{side}, note", note, ""] for note in (document[side] or {}).get("notes", [])]
    rows += [[f"versions, {side}", verdict["sentence"], ""] for side, verdict in document["versions"].items()]
    rows += [["unread key", key, ""] for key in document["unread"]]
    for number, row in enumerate(rows):
        for column, text in enumerate(row):
            sheet.write_string(number, column, plain(text))
