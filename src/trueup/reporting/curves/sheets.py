"""Sheets of acceptance.xlsx that list every target: criteria, conditions, statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trueup.curves.comparison import CurveComparison
from trueup.curves.standard import ADVISORY
from trueup.reporting.document import Column, Mark, On, Paragraph, Row, Section, Table, reason_text
from trueup.reporting.standard import MARKS, condition_cells
from trueup.types.status import Outcome


def acceptance_sheet(comparisons: Sequence[CurveComparison], outcomes: Mapping[Outcome, Mark]) -> Section:
    """The verdict on every target, with the criteria it rests on."""
    rows = []
    for one in comparisons:
        name, judgement = one.target.name, one.judgement
        cells = (name, "verdict", "", "", "", reason_text(judgement.headline))
        rows.append(Row(cells=cells, mark=outcomes[judgement.outcome], loud=True))
        for c in one.evidence.criteria:
            note = "" if c.note is None else reason_text(c.note)
            cells = (
                name,
                reason_text(c.title),
                reason_text(c.value),
                reason_text(c.threshold),
                reason_text(c.origin),
                note,
            )
            rows.append(Row(cells=cells, mark=MARKS[c.status]))
    titles = (
        ("target", 28),
        ("criterion", 44),
        ("measured", 22),
        ("expected", 32),
        ("source", 60),
        ("note", 60),
    )
    return _sheet("acceptance", titles, rows, Paragraph(line=reason_text(ADVISORY)))


def conditions_sheet(comparisons: Sequence[CurveComparison]) -> Section:
    """The standard's conditions, as every target kept them."""
    rows = [
        Row(cells=(one.target.name, *condition_cells(condition)))
        for one in comparisons
        for condition in one.conditions
    ]
    return _sheet("conditions", (("target", 28), ("condition", 20), ("default", 56), ("this run", 40)), rows)


def statistics_sheet(comparisons: Sequence[CurveComparison]) -> Section:
    """Every number that was measured."""
    rows = []
    for one in comparisons:
        for part, numbers in one.statistics().items():
            for name, value in (numbers or {}).items():
                if not isinstance(value, (dict, list)):
                    shown = (
                        value
                        if isinstance(value, (int, float)) and not isinstance(value, bool)
                        else str(value)
                    )
                    rows.append(Row(cells=(one.target.name, part, name, "" if value is None else shown)))
    return _sheet("statistics", (("target", 28), ("part", 22), ("number", 26), ("value", 24)), rows)


def _sheet(name: str, titles: Sequence[tuple[str, int]], rows: Sequence[Row], *after: Paragraph) -> Section:
    columns = tuple(Column(title=title, width=width) for title, width in titles)
    return Section(
        title=name, key=name, blocks=(Table(columns=columns, rows=tuple(rows)), *after), on=On.BOOK
    )
