"""The second part of a check's verdict: recommendations of the accuracy guide that are not followed."""

from __future__ import annotations

from collections.abc import Sequence

from trueup.checklist.check import Checklist
from trueup.checklist.dialect import ValueOrigin
from trueup.checklist.document import advice_headline, training_headline
from trueup.checklist.judging import DemandSide as Setting
from trueup.checklist.recommendations import Unmet
from trueup.reporting.checklist_rows import place, shown
from trueup.reporting.document import (
    Cell,
    Column,
    Facts,
    Line,
    Look,
    Mark,
    On,
    Row,
    Section,
    Span,
    Table,
    Tone,
    fact,
    facts,
    reason_text,
)
from trueup.reporting.formatting import plain
from trueup.types.codes import ChecklistCode as Code
from trueup.types.reason import reason

SEVERITY = {"error": "required", "warning": "recommended", "note": "suggested"}
_MARKS = {
    "error": Mark("!", "required by the guide, not met", Tone.BAD),
    "warning": Mark("!", "recommended by the guide, not met", Tone.WARN),
    "note": Mark("·", "suggested by the guide, not met", Tone.QUIET),
}
_TONES = {
    "agree": Tone.GOOD,
    "differ": Tone.BAD,
    "undecided": Tone.WARN,
    "met": Tone.GOOD,
    "unmet": Tone.BAD,
    "off": Tone.WARN,
}
_BOOK = (
    ("setting", 26), ("description", 34), ("severity", 14), ("target", 18), ("reference", 18),
    ("recommended", 20), ("why", 54), ("what to do", 44), ("set on the target with", 34),
    ("set on the reference with", 34), ("reason", 46), ("source", 46),
)  # fmt: skip


def verdict_facts(checklist: Checklist) -> Facts:
    """Both parts of the verdict, one line each."""
    rows = []
    if checklist.reference is not None:
        training = Span(reason_text(training_headline(checklist)), tone=_TONES[checklist.training])
        rows.append(fact("same training", training))
    if suspects := [row.key for row in checklist.suspects]:
        rows.append(fact("suspect", Span(reason_text(reason(Code.SUSPECTS, keys=suspects)), tone=Tone.WARN)))
    advice = Span(reason_text(advice_headline(checklist)), tone=_TONES[checklist.advised])
    rows.append(fact("guide", advice))
    return facts(rows, on=On.SCREEN | On.PAGE)


def advice_section(checklist: Checklist) -> Section:
    """Every recommendation that is not met: its values, the recommended one, why, how to set it."""
    found = checklist.unmet
    return Section(
        title="Recommendations of the accuracy guide",
        key="recommendations",
        nav="Guide",
        note=reason_text(advice_headline(checklist)) if not found else "",
        blocks=(_table(found, checklist),) if found else (),
        on=On.SCREEN | On.PAGE,
    )


def _table(found: Sequence[Unmet], checklist: Checklist) -> Table:
    both = checklist.reference is not None
    columns = (
        Column(title="setting", width=24, fit=True, even=True, code=True),
        Column(title="target", width=16, grow=True, even=True),
        Column(title="reference", width=16, grow=True, even=True, on=On.ALL if both else On(0)),
        Column(title="recommended", width=18, grow=True, even=True),
        Column(title="why, how to set it", width=48, on=On.PAGE),
        Column(title="note", grow=True, below=True, on=On.SCREEN),
    )
    worst = sorted(found, key=lambda one: list(SEVERITY).index(one.severity))
    return Table(
        columns=columns,
        rows=tuple(_row(one, both=both) for one in worst),
        head=On.SCREEN | On.PAGE,
        on=On.SCREEN | On.PAGE,
    )


def _row(one: Unmet, *, both: bool) -> Row:
    how: list[Line] = [Span(f"→ {line}", Look.COMMAND) for line in set_lines(one, both=both)]
    because = reason_text(one.reason) if one.reason is not None else ""
    why = f"{plain(one.why)} {plain(one.advice)}" if one.how and one.advice else plain(one.why)
    return Row(
        cells=(
            Cell(value=one.key, under=(plain(one.about),), on=On.PAGE),
            _cell(one.target, broken="target" in one.sides),
            _cell(one.reference, broken="reference" in one.sides),
            Cell(value=Span(reason_text(one.wanted), Look.STRONG)),
            Cell(value=why, under=(*((because,) if because else ()), *how, Span(_source(one), Look.QUIET))),
            Cell(value=because or why, under=(*((why,) if because and why else ()), *how)),
        ),
        mark=_MARKS[one.severity],
        loud=one.counts,
    )


def set_lines(one: Unmet, *, both: bool) -> list[str]:
    """How each side sets the recommended value; the rule's advice where no form is known."""
    if not one.how:
        return [plain(one.advice)] if one.advice else []
    words = dict(one.how)
    if not both:
        return [plain(text) for text in words.values()]
    return [f"{side}: {plain(text)}" for side, text in words.items()]


def _cell(setting: Setting | None, *, broken: bool) -> Cell:
    if setting is None:
        return Cell(value="")
    default = Span(" default", Look.QUIET) if setting.origin is ValueOrigin.DEFAULT else ""
    value = Span(shown(setting.value), tone=Tone.WARN if broken else Tone.PLAIN)
    under = (place(setting),) if setting.origin is not None and place(setting) else ()
    return Cell(value=(value, default), under=under, on=On.PAGE)


def _source(one: Unmet) -> str:
    return f"accuracy guide, {'; '.join(one.sources)}"


def advice_book(checklist: Checklist) -> Table:
    """The same with all that is known, to filter."""
    rows = [
        Row(
            cells=(
                one.key,
                plain(one.about),
                SEVERITY[one.severity],
                "" if one.target is None else shown(one.target.value, longest=2000),
                "" if one.reference is None else shown(one.reference.value, longest=2000),
                reason_text(one.wanted),
                plain(one.why),
                plain(one.advice),
                dict(one.how).get("target", ""),
                dict(one.how).get("reference", ""),
                "" if one.reason is None else reason_text(one.reason),
                _source(one),
            ),
            mark=_MARKS[one.severity],
            loud=one.counts,
        )
        for one in checklist.unmet
    ]
    return Table(columns=tuple(Column(title=title, width=width) for title, width in _BOOK), rows=tuple(rows))
