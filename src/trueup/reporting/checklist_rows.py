"""Rows of a check: how values, places and statuses read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from trueup.checklist.check import Checklist
from trueup.checklist.dialect import ValueOrigin
from trueup.checklist.fields import fields
from trueup.checklist.judging import DemandRow as Demand
from trueup.checklist.judging import DemandSide as Setting
from trueup.checklist.judging import DemandStatus
from trueup.reporting.document import Cell, Column, Line, Look, Mark, On, Row, Span, Table, Tone, reason_text
from trueup.reporting.formatting import plain

MARKS = {
    DemandStatus.DIFFERENT: Mark("≠", "different", Tone.BAD),
    DemandStatus.BROKEN: Mark("!", "recommendation not met", Tone.BAD),
    DemandStatus.NOT_COMPARABLE: Mark("?", "not comparable", Tone.WARN),
    DemandStatus.SUSPECT: Mark("?", "suspect", Tone.WARN),
    DemandStatus.NOT_SET: Mark("∅", "not set on one side", Tone.WARN),
    DemandStatus.NOT_CONFIGURABLE: Mark("–", "not configurable", Tone.QUIET),
    DemandStatus.DEFAULT: Mark("≈", "equal by a framework's default", Tone.QUIET),
    DemandStatus.ALIGNED: Mark("=", "equal", Tone.QUIET),
    DemandStatus.BY_HAND: Mark("☞", "to check by hand", Tone.QUIET),
}
"""of each status, worst first"""
SEVERITY = {"error": "different training", "warning": "may change the numbers", "note": "for information"}
_TONES = {"error": Tone.BAD, "warning": Tone.WARN, "note": Tone.QUIET}
_LOUD = (
    DemandStatus.DIFFERENT,
    DemandStatus.BROKEN,
    DemandStatus.NOT_COMPARABLE,
    DemandStatus.SUSPECT,
    DemandStatus.NOT_SET,
)
_BOOK = (
    ("section", 22), ("setting", 26), ("description", 34), ("severity", 20), ("target", 18),
    ("reference", 18), ("target: set in", 42), ("reference: set in", 42), ("reason", 46),
    ("why it matters", 54), ("what to do", 44), ("set on the target with", 34),
    ("set on the reference with", 34), ("source", 46),
)  # fmt: skip


def matters(row: Demand, checklist: Checklist) -> bool:
    """Whether a row belongs on the first screen: it differs, breaks a rule, or leaves the verdict open."""
    if row.status in (
        DemandStatus.DIFFERENT,
        DemandStatus.BROKEN,
        DemandStatus.NOT_COMPARABLE,
        DemandStatus.SUSPECT,
    ):
        return row.severity != "note"
    return row in checklist.undecided


def ordered(rows: Iterable[Demand]) -> list[Demand]:
    """Worst status first, then severity, else as the rules stand."""
    statuses, severities = list(MARKS), list(SEVERITY)
    return sorted(rows, key=lambda row: (statuses.index(row.status), severities.index(row.severity)))


def rows_table(rows: Sequence[Demand], checklist: Checklist, on: On = On.SCREEN | On.PAGE) -> Table:
    """Settings with the values of both sides, where they are set, why it matters and what to do."""
    both = checklist.reference is not None
    columns = (
        Column(title="setting", width=24, fit=True, even=True, code=True),
        Column(title="target", width=18, grow=True, even=True),
        Column(title="reference", width=18, grow=True, even=True, on=On.ALL if both else On(0)),
        Column(title="why it matters, what to do", width=48, on=On.PAGE),
        Column(title="note", grow=True, below=True, on=On.SCREEN),
    )
    return Table(
        columns=columns, rows=tuple(_row(r, matters(r, checklist)) for r in rows), head=On.PAGE, on=on
    )


def _row(row: Demand, telling: bool) -> Row:
    mark = MARKS[row.status]
    tone = _TONES[row.severity] if row.status in _LOUD else Tone.QUIET
    words = f"{mark.words}: {SEVERITY[row.severity]}" if telling else mark.words
    advice: list[Line] = [Span(f"→ {plain(row.advice)}", tone=Tone.FOLLOWS)] if row.advice else []
    shown_above = row.reason is None or row.status in (DemandStatus.DEFAULT, DemandStatus.DIFFERENT)
    reason = "" if row.reason is None or shown_above else reason_text(row.reason)
    why = (Span(f"{reason} ", Look.STRONG), plain(row.why)) if reason else plain(row.why)
    return Row(
        cells=(
            Cell(value=row.key, under=(plain(row.about),), on=On.PAGE),
            _cell(row, row.target, telling),
            _cell(row, row.reference, telling),
            Cell(value=why, under=(*advice, Span(sources(row), Look.QUIET))),
            _note(row),
        ),
        mark=Mark(mark.glyph, words, tone),
        loud=telling,
    )


def _cell(row: Demand, setting: Setting | None, telling: bool) -> Cell:
    rule = row.status is DemandStatus.BROKEN and row.target.origin is None
    if setting is None or rule:
        return Cell(value=shown(setting.value) if setting is not None and setting.value is not None else "")
    default = Span(" default", Look.QUIET) if setting.origin is ValueOrigin.DEFAULT else ""
    under = [place(setting)] if place(setting) else []
    if telling and setting.origin is not ValueOrigin.SET and setting.set_with:
        under.append(f"set with {plain(setting.set_with)}")
    return Cell(value=(shown(setting.value), default), under=tuple(under), on=On.PAGE)


def _note(row: Demand) -> Cell:
    """Why or where, then what to do, as much as there is."""
    parts: list[Line] = []
    if row.status is DemandStatus.DIFFERENT:
        places = [cell.places[0] for cell in (row.target, row.reference) if cell and cell.places]
        files = [file_and_line(where) for where in places if where != "command line"]
        parts.append(Span(" | ".join(files), Look.QUIET) if files else "")
    elif row.status is not DemandStatus.DEFAULT:
        quiet = Look.PLAIN if row.status is DemandStatus.BROKEN else Look.QUIET
        parts.append(Span(reason_text(row.reason), quiet) if row.reason is not None else "")
    parts.append(Span(f"→ {plain(row.advice)}", Look.COMMAND) if row.advice else "")
    kept = [part for part in parts if part]
    return Cell(value=kept[0] if kept else "", under=tuple(kept[1:]))


def book_table(checklist: Checklist) -> Table:
    """Every row with all that is known of it, to filter."""
    columns = tuple(Column(title=title, width=width) for title, width in _BOOK)
    titles = {key: section.title for key, section in fields().sections.items()}
    rows = [
        Row(
            cells=(
                titles[row.section],
                row.key,
                plain(row.about),
                SEVERITY[row.severity],
                shown(row.target.value, longest=2000),
                "" if row.reference is None else shown(row.reference.value, longest=2000),
                place(row.target),
                place(row.reference),
                "" if row.reason is None else reason_text(row.reason),
                plain(row.why),
                plain(row.advice),
                row.target.set_with,
                "" if row.reference is None else row.reference.set_with,
                sources(row),
            ),
            mark=Mark("", MARKS[row.status].words, _TONES[row.severity])
            if row.status in _LOUD
            else MARKS[row.status],
            loud=row.status in _LOUD and row.severity != "note",
        )
        for row in checklist.rows
    ]
    return Table(columns=columns, rows=tuple(rows))


def shown(value: object, *, longest: int = 160) -> str:
    """A value as people write it: ``1e-05`` as 1e-5, a long list by its ends, an en dash for none."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number_text(value)
    if isinstance(value, list):
        value = _listed(value)
    text = plain(value)
    return text if len(text) <= longest else f"{text[: longest // 2 - 1]}…{text[-longest // 2 :]}"


_SHORTEST_RUN = 4
"""whole numbers one after the other from which on they are shown by their ends"""


def _listed(items: list[object]) -> str:
    """The items with commas; numbers that follow one another by their ends, as ``0-47``."""
    parts: list[str] = []
    at = 0
    while at < len(items):
        end = at
        while end + 1 < len(items) and _follows(items[end], items[end + 1]):
            end += 1
        if end - at + 1 >= _SHORTEST_RUN:
            parts.append(f"{items[at]}-{items[end]}")
        else:
            parts += map(str, items[at : end + 1])
        at = end + 1
    return ", ".join(parts) or "none"


def _follows(one: object, other: object) -> bool:
    return type(one) is int and type(other) is int and other == one + 1 and one >= 0


def number_text(value: float) -> str:
    """A setting as exactly as it was written: ``1e-8``, ``0.95``, ``500000``."""
    if math.isfinite(value) and value == int(value) and abs(value) < 1e9:
        return str(int(value)) if abs(value) >= 10 or value == 0 else f"{value:.1f}"
    mantissa, _, exponent = f"{value:.10g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


def place(setting: Setting | None) -> str:
    """Where a value is set: key and line, or what else gives it."""
    if setting is None or setting.value is None:
        return ""
    if setting.origin is ValueOrigin.DEFAULT:
        return f"default of {setting.says}"
    if not setting.places:
        return setting.says
    more = len(setting.places) - 1
    words = f"{setting.keys[0]} ({file_and_line(setting.places[0])})"
    computed = " (computed)" if setting.origin is ValueOrigin.DERIVED else ""
    return words + (f" and {more} more" if more else "") + computed


def file_and_line(text: str) -> str:
    """A place without the folders before its file."""
    where, bracket, what = text.partition(" (")
    return where.rpartition("/")[2] + bracket + what


def sources(row: Demand) -> str:
    """The rows of the guide a demand comes from."""
    return f"accuracy guide, {'; '.join(row.sources)}"
