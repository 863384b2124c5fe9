"""Reports of a sign-off: the screen, the page and the text to file, and the reports it was made from."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trueup.accepting.item import Item, ProcedurePart, State
from trueup.accepting.procedure import Procedure
from trueup.accepting.signoff import FILE, SignOff
from trueup.curves.comparison import CurveComparison
from trueup.curves.standard import ADVISORY
from trueup.errors import ConfigError
from trueup.reporting.document import (
    Block,
    Cell,
    Column,
    Document,
    Fact,
    Facts,
    Form,
    Look,
    Mark,
    On,
    Paragraph,
    Picture,
    Row,
    Section,
    Span,
    Table,
    Tasks,
    Tone,
    fact,
    facts,
    reason_text,
)
from trueup.reporting.formatting import as_sentence, count, plain
from trueup.reporting.render import write
from trueup.reporting.standard import conditions_table, signatures
from trueup.types.codes import AcceptCode
from trueup.types.reason import Reason
from trueup.types.status import Outcome
from trueup.wording import document
from trueup.wording.accepting import PARTS

CURVES, NO_UPDATE = "long-run", "learning-rate-0"
_MARKS = {
    State.PASSED: Mark("✓", "passed", Tone.GOOD),
    State.FAILED: Mark("✗", "failed", Tone.BAD),
    State.WARNING: Mark("!", "warning", Tone.WARN),
    State.WAIVED: Mark("~", "waived", Tone.WARN),
    State.NOT_SHOWN: Mark("·", "not shown", Tone.QUIET),
}
_OUTCOMES = {
    Outcome.AGREE: Mark("✓", "Accepted", Tone.GOOD),
    Outcome.DIFFER: Mark("✗", "Refused", Tone.BAD),
    Outcome.UNDECIDED: Mark("?", "Undecided", Tone.WARN),
}
_COLUMNS = (
    Column(title="item", grow=True, width=34, even=True),
    Column(title="measured", grow=True, width=34),
    Column(title="expected", width=30, on=On.FILES),
    Column(title="evidence", width=50, on=On.FILES),
)
_NUM_EVIDENCE = 2
_SIGNERS = ("developer", "reviewer", "model owner")


def signoff_report(
    signoff: SignOff,
    *,
    details: Mapping[ProcedurePart, str] | None = None,
    picture: Path | None = None,
    reports: Sequence[Path] = (),
    missing: Sequence[str] = (),
) -> Document:
    """The decision, every item by part, what is not shown and how to show it, what a person signs.

    Args:
        details: part -> the report that part was made from, relative to this one.
        picture: of the long run.
        reports: files that were written.
        missing: why others were not.
    """
    mark, links = _OUTCOMES[signoff.outcome], details or {}
    parts = [
        _part(part, signoff.of(part), links.get(part, ""), picture)
        for part in ProcedurePart
        if signoff.of(part)
    ]
    return Document(
        title=f"Accuracy sign-off: {mark.words}",
        mark=mark,
        headline=reason_text(signoff.headline),
        subject=("Accuracy sign-off of a migrated training run",),
        blocks=(
            _tally(signoff),
            facts([fact(reason_text(role), path) for role, path in signoff.inputs], on=On.FILES),
            *parts,
            _closing(signoff, reports, missing),
            Paragraph(line=Span(reason_text(ADVISORY), Look.QUIET), on=On.SCREEN),
            _open(signoff),
            Section(
                title="Conditions of the standard",
                lead=reason_text(ADVISORY),
                blocks=(conditions_table(signoff.conditions),),
                on=On.FILES,
            ),
            _waivers(signoff),
            Section(
                title="To check by hand",
                blocks=(Tasks(lines=tuple(map(reason_text, signoff.by_hand))),),
                on=On.FILES,
            ),
            Section(
                title="Notes",
                blocks=tuple(Paragraph(line=reason_text(note)) for note in signoff.notes),
                on=On.FILES,
            ),
            signatures(_SIGNERS),
        ),
        footer=FILE,
    )


def _tally(signoff: SignOff) -> Facts:
    counts = {state: sum(item.state is state for item in signoff.items) for state in State}
    tiles = [
        fact(_MARKS[state].words, Span(f"{n:,}", tone=_MARKS[state].tone)) for state, n in counts.items()
    ]
    return facts(tiles, Form.TILES, On.PAGE)


def _part(part: ProcedurePart, items: Sequence[Item], link: str, picture: Path | None) -> Section:
    blocks: list[Block] = [Table(columns=_COLUMNS, rows=tuple(map(_row, items)), head=On.FILES)]
    if part is ProcedurePart.LONG_RUN and picture is not None:
        alt = (
            "Loss of target and reference, their difference and what is allowed, gradient norm, learning rate"
        )
        blocks.insert(0, Picture(png=picture, alt=alt))
    title = PARTS[part.value]
    return Section(title=title, key=part.value, nav=title, link=link, blocks=tuple(blocks))


def _row(item: Item) -> Row:
    loud = item.state in (State.FAILED, State.WARNING, State.WAIVED)
    tone = Tone.QUIET if item.state is State.NOT_SHOWN else Tone.PLAIN
    open_ = not item.binding and item.state in (State.NOT_SHOWN, State.WARNING)
    evidence = tuple(map(reason_text, item.evidence))
    below: tuple[str | Span, ...] = (
        (f"expected {reason_text(item.threshold)}", *evidence[:_NUM_EVIDENCE]) if loud else ()
    )
    how = (Span(f"→ {reason_text(item.how)}", tone=Tone.FOLLOWS),) if item.how is not None else ()
    if item.binding and item.state is State.WARNING:
        below = (*below, *how)
    lines: tuple[str | Span, ...] = (*evidence, *how)
    return Row(
        cells=(
            Cell(
                value=reason_text(item.title),
                under=("does not decide",) if open_ else (),
                on=On.FILES,
                tone=tone,
            ),
            Cell(value=reason_text(item.measured), under=below, on=On.SCREEN, tone=tone),
            Cell(value=reason_text(item.threshold), under=(reason_text(item.origin),)),
            Cell(value=lines[0] if lines else "", under=lines[1:]),
        ),
        mark=_MARKS[item.state],
        loud=loud,
    )


def _waivers(signoff: SignOff) -> Section:
    columns = (Column(title="recommendation", width=34), Column(title="why it is not followed", width=80))
    rows = [Row(cells=(key, plain(why))) for key, why in signoff.waivers.items()]
    return Section(
        title="Waived recommendations",
        lead="Recommendations of the accuracy guide that are not followed, and settings without a rule that "
        "differ, by decision of those who sign."
        if rows
        else "",
        blocks=(Table(columns=columns, rows=tuple(rows)),) if rows else (),
        on=On.FILES if rows else On(0),
    )


def _closing(signoff: SignOff, reports: Sequence[Path], missing: Sequence[str]) -> Facts:
    counts = {state: sum(item.state is state for item in signoff.items) for state in State}
    return facts(
        [
            fact("items", ", ".join(f"{number} {_MARKS[s].words}" for s, number in counts.items() if number)),
            _ways(signoff),
            fact("reports", ", ".join(map(str, reports))),
            fact("left out", *missing),
            fact("note", *(Span(reason_text(note), tone=Tone.WARN) for note in signoff.notes)),
        ],
        on=On.SCREEN,
    )


def _ways(signoff: SignOff) -> Fact:
    """How to show what is not shown: each way once, what decides first."""
    open_ = [item for item in signoff.items if item.state is State.NOT_SHOWN]
    ways: dict[Reason, list[str]] = {}
    for item in sorted(open_, key=lambda item: not item.binding):
        if item.how is not None and item.how.code is AcceptCode.OR_ASSUME:
            ways.setdefault(item.how.parts[0], []).append(str(item.how.place("key")))
        elif item.how is not None:
            ways.setdefault(item.how, []).append("")
    lines = []
    for how, every in ways.items():
        keys = [key for key in every if key]
        some = f" for {len(keys)} of them" if len(keys) < len(every) else ""
        assume = f"; or --assume {','.join(keys)}{some}" if keys else ""
        num = f"  ({count(len(every), 'item')})" if len(every) > 1 else ""
        lines.append((reason_text(how), Span(num, Look.QUIET), assume))
    return fact("to show", *lines)


def _open(signoff: SignOff) -> Section:
    open_ = [item for item in signoff.items if item.state is State.NOT_SHOWN]
    columns = (
        Column(title="item", width=44),
        Column(title="decides", width=10),
        Column(title="how to show it", width=60),
    )
    rows = [
        Row(cells=(reason_text(item.title), "yes" if item.binding else "no", _how(item))) for item in open_
    ]
    nothing = Paragraph(line="Every item was measured.")
    return Section(
        title="Not shown",
        key="open",
        nav="Not shown",
        lead="Items without a measurement. The sign-off stays undecided until those that decide are shown."
        if rows
        else "",
        blocks=(Table(columns=columns, rows=tuple(rows)),) if rows else (nothing,),
        on=On.FILES,
    )


def _how(item: Item) -> str:
    return "" if item.how is None else as_sentence(reason_text(item.how))


def write_reports(procedure: Procedure, folder: Path) -> tuple[dict[str, Path], list[str]]:
    """Write signoff.html and signoff.md into ``folder`` beside signoff.json, and the reports they link to.

    Returns:
        The files of the sign-off, and what could not be written, with the reason.
    """
    details, missing = _details(procedure, folder)
    picture = folder / CURVES / "curves.png" if ProcedurePart.LONG_RUN in details else None
    report = signoff_report(procedure.signoff, details=details, picture=picture)
    written = {name: write(report, folder / f"signoff.{name}") for name in ("html", "md")}
    return {**written, "json": folder / FILE}, missing


def _details(procedure: Procedure, folder: Path) -> tuple[dict[ProcedurePart, str], list[str]]:
    """part -> its own report, relative to the folder."""
    found: dict[ProcedurePart, str] = {}
    missing: list[str] = []
    jobs: dict[ProcedurePart, Callable[[], Path | None]] = {
        ProcedurePart.CHECKLIST: lambda: _checklist(procedure, folder / "checklist"),
        ProcedurePart.FIRST_STEPS: lambda: _diagnosis(procedure, folder / "diagnosis"),
        ProcedurePart.LONG_RUN: lambda: _curves(procedure.curves, folder / CURVES),
        ProcedurePart.NO_UPDATE: lambda: _curves(procedure.no_update, folder / NO_UPDATE),
    }
    for part, job in jobs.items():
        try:
            path = job()
        except ConfigError as error:
            missing.append(str(error))
            continue
        if path is not None:
            found[part] = path.relative_to(folder).as_posix()
    return found, list(dict.fromkeys(missing))


def _checklist(procedure: Procedure, folder: Path) -> Path | None:
    if procedure.configurations is None:
        return None
    from trueup.checklist.document import to_json
    from trueup.reporting.checklist import checklist_report

    folder.mkdir(parents=True, exist_ok=True)
    checklist = procedure.configurations.checklist
    text = json.dumps(document(to_json(checklist)), ensure_ascii=False, indent=2)
    (folder / "checklist.json").write_text(text + "\n", encoding="utf-8")
    return write(checklist_report(checklist), folder / "checklist.html")


def _diagnosis(procedure: Procedure, folder: Path) -> Path | None:
    if procedure.diagnosis is None:
        return None
    from trueup.reporting.diagnosis import diagnosis_report

    return write(diagnosis_report(procedure.diagnosis), folder / "diagnosis.html")


def _curves(comparison: CurveComparison | None, folder: Path) -> Path | None:
    if comparison is None:
        return None
    from trueup.reporting.curves import write_reports as write_curves

    return write_curves([comparison], folder, ("json", "html", "png"))["html"]
