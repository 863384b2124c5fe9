"""A check on one screen: the verdict, what differs section by section, what stays open, what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trueup.reporting.checklist_model import STATUS, file_and_line, ordered, shown, telling
from trueup.reporting.formatting import count, plain
from trueup.reporting.screen import headline

_VERDICT = {"agree": ("✓", "green"), "differ": ("✗", "red"), "undecided": ("?", "yellow")}
_COLOUR = {"error": "red", "warning": "yellow", "note": "dim"}
KEY_WIDTH, VALUE_WIDTH = 24, 18
WIDE = 110
"""columns from which notes stand beside their rows"""


def print_checklist(
    document: Mapping[str, Any],
    console: Console,
    *,
    everything: bool = False,
    reports: Mapping[str, Path] | None = None,
) -> None:
    """Print the screen of a check (the document of checklist.json); ``everything`` shows aligned rows too."""
    console.print(screen(document, everything=everything, reports=reports or {}, width=console.width))


def screen(
    document: Mapping[str, Any], *, everything: bool, reports: Mapping[str, Path], width: int
) -> RenderableType:
    """The whole screen as one renderable."""
    glyph, colour = _VERDICT[document["outcome"]]
    parts: list[RenderableType] = [
        Text(""),
        headline(glyph, colour, document["headline"]),
        Padding(_sides(document), (0, 0, 0, 3)),
    ]
    for key, title in document["sections"].items():
        rows = [row for row in document["rows"] if row["section"] == key]
        chosen = [row for row in ordered(rows) if row["status"] != "by_hand" and (everything or telling(row))]
        if chosen:
            parts += [Text(""), Text(f"   {title}", style="bold"), _table(chosen, document, width)]
    parts += _schedule_lines(document)
    parts += [Text(""), Padding(_closing(document, reports, everything), (0, 0, 0, 3)), Text("")]
    return Group(*parts)


def _sides(document: Mapping[str, Any]) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(style="dim", width=10, no_wrap=True)
    table.add_column(overflow="fold")
    for side in ("target", "reference"):
        for number, file in enumerate((document[side] or {}).get("documents", [])):
            words = Text.assemble(
                plain(file["path"]), (f"  {file['title']}, {count(file['num_settings'], 'setting')}", "dim")
            )
            table.add_row(side if number == 0 else "", words)
    return table


def _table(rows: Sequence[Mapping[str, Any]], document: Mapping[str, Any], width: int) -> RenderableType:
    """One line a row; in a narrow terminal what is to be said of it goes below."""
    beside = width >= WIDE
    value = VALUE_WIDTH if beside else max(12, min(VALUE_WIDTH, (width - KEY_WIDTH - 12) // 2))
    parts: list[RenderableType] = []
    for row in rows:
        *cells, note = _cells(row, document)
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(width=5, no_wrap=True)
        table.add_column(width=KEY_WIDTH, overflow="ellipsis", no_wrap=True)
        for _ in cells[2:]:
            table.add_column(width=value, overflow="fold")
        if beside:
            table.add_column(overflow="fold")
        table.add_row(*cells, *([note] if beside else []))
        parts.append(table)
        if not beside and note.plain:
            parts.append(Padding(note, (0, 0, 0, 7)))
    return Group(*parts)


def _cells(row: Mapping[str, Any], document: Mapping[str, Any]) -> list[Text]:
    loud = row["status"] in ("different", "broken", "not_comparable", "not_set")
    colour = _COLOUR[row["severity"]] if loud else "dim"
    rule = row["status"] == "broken" and row["target"]["origin"] is None
    cells: list[Text] = [
        Text(f"   {STATUS[row['status']][0]}", style=f"bold {colour}"),
        Text(row["key"], style="bold" if loud and row["severity"] == "error" else ""),
        Text("") if rule else _value(row["target"]),
    ]
    if document["reference"] is not None:
        cells.append(Text("") if rule or row["reference"] is None else _value(row["reference"]))
    return [*cells, _note(row)]


def _value(cell: Mapping[str, Any]) -> Text:
    return Text.assemble(
        shown(cell["value"], longest=24), (" default" if cell["origin"] == "default" else "", "dim")
    )


def _note(row: Mapping[str, Any]) -> Text:
    """Why or where, then what to do, as much as there is."""
    parts: list[tuple[str, str]] = []
    if row["status"] == "different":
        parts.append((" | ".join(_lines(row)), "dim"))
    elif row["status"] == "framework_default":
        parts.append(("", ""))
    else:
        parts.append((plain(row["reason"]), "" if row["status"] == "broken" else "dim"))
    if row["advice"]:
        parts.append((f"→ {plain(row['advice'])}", "cyan"))
    text = Text()
    for number, (words, style) in enumerate(part for part in parts if part[0]):
        text.append(("\n" if number else "") + words, style=style)
    return text


def _lines(row: Mapping[str, Any]) -> list[str]:
    """File and line of each side's setting; nothing of a side no file sets."""
    places = [cell["places"][0] for cell in (row["target"], row["reference"]) if cell and cell["places"]]
    return [plain(file_and_line(where)) for where in places if where != "command line"]


def _schedule_lines(document: Mapping[str, Any]) -> list[RenderableType]:
    found = document["schedules"]
    if document["reference"] is None:
        return []
    if found["same"] is None:
        missing = [
            f"{side}: {found[side]['missing']}" for side in ("target", "reference") if found[side]["missing"]
        ]
        words = f"learning rates cannot be computed ({'; '.join(missing)})" if missing else ""
    elif found["same"]:
        words = "the computed learning rates are the same at every step"
    else:
        gap = (
            f"{found['learning_rate_gap']:.1%}"
            if found["learning_rate_gap"] >= 1e-3
            else f"{found['learning_rate_gap']:.1e}"
        )
        step = found["first_step_apart"]
        words = f"the computed learning rates part at step {step}, by up to {gap} of the peak"
    return (
        [Text(""), Padding(Text(words, style="" if found["same"] is False else "dim"), (0, 0, 0, 3))]
        if words
        else []
    )


def _closing(document: Mapping[str, Any], reports: Mapping[str, Path], everything: bool) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(style="dim", width=10, no_wrap=True)
    table.add_column(overflow="fold")
    hidden = Counter(row["status"] for row in document["rows"] if everything or not telling(row))
    rest = [
        f"{hidden[key]} {words}{', to know' if key == 'different' and not everything else ''}"
        for key, (_, words) in STATUS.items()
        if hidden[key]
    ]
    table.add_row(
        "rows" if everything or hidden.total() == len(document["rows"]) else "rest",
        Text(", ".join(rest) + ("" if everything else "; all of them with --all"), style="dim"),
    )
    for verdict in document["versions"].values():
        style = "red" if verdict["together"] is False else ""
        table.add_row("versions", Text(plain(verdict["sentence"]), style=style))
    for side in ("target", "reference"):
        for note in (document[side] or {}).get("notes", []):
            table.add_row("note", Text(plain(note), style="yellow"))
    if everything and document["unread"]:
        table.add_row("unread", Text(plain(", ".join(document["unread"])), style="dim"))
    elif document["unread"]:
        table.add_row(
            "unread", Text(f"{count(len(document['unread']), 'key')} that no rule speaks of", style="dim")
        )
    for row in document["rows"]:
        if row["status"] == "by_hand":
            table.add_row(
                "by hand",
                Text.assemble(plain(row["reason"]), (f"  {row['advice']}" if row["advice"] else "", "cyan")),
            )
    if reports:
        table.add_row("report", Text(", ".join(plain(str(path)) for path in reports.values())))
    return table
