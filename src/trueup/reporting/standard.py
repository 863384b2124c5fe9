"""What the reports of curves and of a sign-off share: the migration standard's lines, and room to sign."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trueup.curves.conditions import Condition
from trueup.curves.standard import Met
from trueup.reporting.document import Column, Mark, On, Row, Section, Table, Tone, reason_text

MARKS = {
    Met.MET: Mark("✓", "met", Tone.GOOD),
    Met.NOT_MET: Mark("✗", "not met", Tone.BAD),
    Met.WARNING: Mark("!", "warning", Tone.WARN),
    Met.UNDECIDED: Mark("?", "undecided", Tone.WARN),
}


def conditions_table(conditions: Iterable[Condition]) -> Table:
    """The standard's default configuration, and what was changed."""
    columns = (
        Column(title="condition", width=22),
        Column(title="default", width=56),
        Column(title="this run", width=40),
    )
    return Table(columns=columns, rows=tuple(Row(cells=condition_cells(one)) for one in conditions))


def condition_cells(condition: Condition) -> tuple[str, str, str]:
    """Name, default, and what holds here."""
    changed = "" if condition.state == "kept" else f": {reason_text(condition.actual)}"
    return reason_text(condition.name), reason_text(condition.default), condition.state + changed


def signatures(roles: Sequence[str]) -> Section:
    """Room for people to sign."""
    columns = tuple(
        Column(title=title, width=24) for title in ("role", "name", "decision", "date, signature")
    )
    rows = tuple(Row(cells=(role, None, None, None)) for role in roles)
    return Section(
        title="Signatures",
        key="signatures",
        nav="Signatures",
        blocks=(Table(columns=columns, rows=rows),),
        on=On.PAGE | On.TEXT,
    )
