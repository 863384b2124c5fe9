"""Reports of a check: what differs section by section, the schedules, what stays open, what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from trueup.checklist.check import Checklist
from trueup.checklist.document import headline
from trueup.checklist.fields import fields
from trueup.checklist.judging import DemandRow as Demand
from trueup.checklist.judging import DemandStatus
from trueup.checklist.versions import VersionVerdict
from trueup.reporting.checklist_advice import advice_book, advice_section, verdict_facts
from trueup.reporting.checklist_rows import (
    MARKS,
    book_table,
    matters,
    ordered,
    rows_table,
)
from trueup.reporting.document import (
    OUTCOMES,
    Block,
    Document,
    Fact,
    Facts,
    Form,
    Line,
    Look,
    Mark,
    On,
    Paragraph,
    Plot,
    Plots,
    Section,
    Series,
    Span,
    Tasks,
    Tone,
    fact,
    facts,
    reason_text,
)
from trueup.reporting.formatting import count, elide, plain
from trueup.types.status import Outcome

_POINTS = 400


_MOST_NOT_JUDGED, _LONGEST_VALUE = 8, 60
"""lines of a screen; characters"""
_COMPARE = "trueup compare TARGET REFERENCE -o OUT"
_TOGETHER: dict[bool | None, Line] = {
    True: Span("compatible", tone=Tone.GOOD),
    False: Span("not compatible", tone=Tone.BAD),
    None: "unknown",
}


def checklist_report(
    checklist: Checklist, *, everything: bool = False, reports: Sequence[Path] = ()
) -> Document:
    """What differs and what is recommended, worst first; the computed schedules; what is left to do.

    Args:
        everything: a screen shows the aligned rows too.
        reports: files that were written.
    """
    outcome = Outcome(checklist.outcome)
    mark, both = OUTCOMES[outcome], checklist.reference is not None
    words = {
        Outcome.AGREE: "The configurations agree",
        Outcome.DIFFER: "The configurations differ"
        if checklist.training == Outcome.DIFFER.value
        else "Recommendations of the guide not met",
    }
    sides = [checklist.target, *([checklist.reference] if checklist.reference else [])]
    sentence = schedule_sentence(checklist)
    return Document(
        title=f"Check: {' vs '.join(side.name for side in sides)}",
        mark=Mark(mark.glyph, words.get(outcome, mark.words) if both else "Recommendations", mark.tone),
        headline=reason_text(headline(checklist)),
        subject=tuple(side.name for side in sides),
        blocks=(
            _files(checklist),
            verdict_facts(checklist),
            advice_section(checklist),
            *_sections(checklist, everything=everything),
            Paragraph(line=sentence if both else "", on=On.SCREEN if both and sentence else On(0)),
            _closing(checklist, reports, everything=everything),
            Section(title="checklist", key="checklist", blocks=(book_table(checklist),), on=On.BOOK),
            Section(title="recommendations", key="guide", blocks=(advice_book(checklist),), on=On.BOOK),
            Section(
                title="Computed schedules",
                key="schedules",
                nav="Schedules",
                lead=sentence,
                blocks=(Plots(items=schedule_plots(checklist), on=On.PAGE | On.BOOK),),
                on=On.PAGE | On.BOOK,
            ),
            Section(title="files", key="files", blocks=(_sources(checklist),), on=On.BOOK),
            _open(checklist),
        ),
        footer="checklist.json",
    )


def _sides(checklist: Checklist) -> Iterable[tuple[str, Sequence[tuple[str, str]], Sequence[str]]]:
    """Name, files (path and what it is) and notes of each side."""
    for name, side in (("target", checklist.target), ("reference", checklist.reference)):
        if side is not None:
            files = [
                (
                    t.document.path,
                    f"{t.dialect.default_words()}, {count(len(t.document.settings), 'setting')}",
                )
                for t in side.translations
            ]
            yield name, files, [plain(note) for note in side.notes]


def _files(checklist: Checklist) -> Facts:
    rows = []
    for name, files, _ in _sides(checklist):
        lines: list[Line] = [(path, Span(f"  {what}", Look.QUIET)) for path, what in files]
        rows.append(fact(name, *lines))
    rows.append(fact("settings", _counted(checklist.rows), on=On.PAGE))
    rows += [_version(name, verdict) for name, verdict in checklist.versions.items()]
    return facts(rows, on=On.SCREEN | On.PAGE)


def _version(name: str, verdict: VersionVerdict) -> Fact:
    return fact(
        f"versions of the {name}", _TOGETHER[verdict.together], note=reason_text(verdict.sentence), on=On.PAGE
    )


def _counted(rows: Iterable[Demand]) -> str:
    counts = Counter(row.status for row in rows)
    return ", ".join(f"{counts[status]} {mark.words}" for status, mark in MARKS.items() if counts[status])


def _sections(checklist: Checklist, *, everything: bool) -> Iterable[Section]:
    for key, section in fields().sections.items():
        elsewhere = (DemandStatus.BY_HAND, DemandStatus.BROKEN)
        rows = ordered(r for r in checklist.rows if r.section == key and r.status not in elsewhere)
        loud = [row for row in rows if matters(row, checklist)]
        quiet = [row for row in rows if row not in loud]
        blocks: list[Block] = [rows_table(loud, checklist)]
        if quiet:
            table = rows_table(quiet, checklist)
            blocks.append(Section(title=_counted(quiet), blocks=(table,), collapsed=True, on=On.PAGE))
            if everything:
                blocks.append(rows_table(quiet, checklist, on=On.SCREEN))
        if rows:
            yield Section(
                title=section.title,
                key=key,
                nav="MoE" if key == "moe" else key.capitalize(),
                note="" if loud or everything else "no difference that matters",
                blocks=tuple(blocks),
                on=On.SCREEN | On.PAGE,
            )


def _closing(checklist: Checklist, reports: Sequence[Path], *, everything: bool) -> Facts:
    hidden = [row for row in checklist.rows if everything or not matters(row, checklist)]
    unread = checklist.unread()
    counted = [f"{count(len(unread), 'key')} that no rule reads"] if unread else []
    by_file = [f"{path}: {', '.join(keys)}" for path, keys in checklist.unread_by_file().items()]
    label = "other rows" if len(hidden) < len(checklist.rows) else "rows"
    rows = [fact(label, _counted(hidden), note="" if everything else "all of them with --all")]
    for verdict in checklist.versions.values():
        tone = Tone.BAD if verdict.together is False else Tone.PLAIN
        rows.append(fact("versions", Span(reason_text(verdict.sentence), tone=tone)))
    notes = list(dict.fromkeys(note for _, _, notes in _sides(checklist) for note in notes))
    rows += [
        fact("note", *(Span(note, tone=Tone.WARN) for note in notes)),
        fact("not judged", *_not_judged(checklist), limit=None if everything else _MOST_NOT_JUDGED),
        fact("unread", *(Span(line, Look.QUIET) for line in (by_file if everything else counted))),
        fact(
            "by hand",
            *(
                line
                for row in checklist.rows
                if row.status is DemandStatus.BY_HAND
                for line in _by_hand(row)
                if line != Span("", Look.COMMAND)
            ),
        ),
        fact("reports", ", ".join(map(str, reports))),
    ]
    return facts(rows, on=On.SCREEN)


def _not_judged(checklist: Checklist) -> list[Line]:
    """Settings that differ and that no rule reads."""
    return [
        (
            Span(plain(one.key), Look.CODE),
            f"  {_text(one.target)} (target) vs {_text(one.reference)} (reference)",
        )
        for one in checklist.not_judged
    ]


def _text(value: object) -> str:
    return "not set" if value is None else plain(elide(str(value), _LONGEST_VALUE))


def _by_hand(row: Demand) -> tuple[str, Span]:
    """What a person does, and the command that helps."""
    return reason_text(row.reason) if row.reason is not None else "", Span(plain(row.advice), Look.COMMAND)


def _sources(checklist: Checklist) -> Facts:
    """Where everything was read, for the workbook."""
    rows = []
    for name, files, notes in _sides(checklist):
        rows += [fact(name, *(f"{path} ({what})" for path, what in files)), fact(f"{name}, note", *notes)]
    rows += [fact(f"versions, {name}", reason_text(v.sentence)) for name, v in checklist.versions.items()]
    rows.append(fact("unread key", *checklist.unread()))
    return facts(rows)


def _open(checklist: Checklist) -> Section:
    by_hand = [_by_hand(row) for row in checklist.rows if row.status is DemandStatus.BY_HAND]
    tasks: list[Line] = [(what, "  " if command.text else "", command) for what, command in by_hand]
    checked = [r.key for r in checklist.rows if r.status is DemandStatus.NOT_CONFIGURABLE and r.advice]
    if checked:
        sentence = (
            f"Not configurable on one side, to be seen in the dtypes of a comparison: {', '.join(checked)}"
        )
        tasks.insert(0, (sentence, Span(f"  {_COMPARE}", Look.COMMAND)))
    notes = [note for _, _, notes in _sides(checklist) for note in notes]
    unread = checklist.unread()
    keys = tuple(Paragraph(line=Span(key, Look.CODE)) for key in unread)
    return Section(
        title="Left to do",
        key="open",
        nav="Left to do",
        blocks=(
            Tasks(lines=tuple(tasks)),
            facts(
                [
                    fact("Notes", *notes, tone=Tone.QUIET),
                    fact(
                        "Settings that differ and that no rule reads", *_not_judged(checklist), tone=Tone.WARN
                    ),
                ],
                Form.LISTS,
            ),
            Section(title=f"{count(len(unread), 'key')} that no rule reads", blocks=keys, collapsed=True),
        ),
        on=On.PAGE,
    )


def schedule_plots(checklist: Checklist) -> tuple[Plot, ...]:
    """Learning rate and weight decay of both sides, over the steps of the longer run."""
    found, plots = checklist.schedules, []
    for name in ("learning_rate", "weight_decay"):
        lines = []
        for role, side in (("reference", found.reference), ("target", found.target)):
            values = None if side is None else getattr(side, name)
            if side is not None and values is not None:
                last = len(side.steps) - 1
                chosen = np.unique(np.linspace(0, last, min(_POINTS, last + 1)).round().astype(int))
                lines.append(Series(name=role, role=role, x=side.steps[chosen], y=np.asarray(values)[chosen]))
        apart = name == "learning_rate" and checklist.rates_part and found.first_step_apart is not None
        words = name.replace("_", " ")
        if lines:
            plots.append(
                Plot(
                    key=name,
                    title=words.capitalize(),
                    y_title=words,
                    lines=tuple(lines),
                    marks=((found.first_step_apart, f"diverges at step {found.first_step_apart:,}"),)
                    if apart and found.first_step_apart is not None
                    else (),
                )
            )
    return tuple(plots)


def schedule_sentence(checklist: Checklist) -> str:
    """Whether both sides use the same learning rate at every step; empty where the optimizer is left out."""
    found = checklist.schedules
    if checklist.reference is None:
        return "What the optimizer uses at every step, computed from the configuration."
    if not checklist.weighs_schedules:
        return ""
    if found.same:
        return "The computed learning rates are the same at every step."
    if found.same is None:
        sides = (("target", found.target), ("reference", found.reference))
        missing = [f"the {name} ({side.missing})" for name, side in sides if side and side.missing]
        return f"The learning rate cannot be computed for {' and '.join(missing)}." if missing else ""
    gap = found.learning_rate_gap or 0.0
    share = f"{gap:.1%}" if gap >= 1e-3 else f"{gap:.1e}"
    step = found.first_step_apart or 0
    return f"The computed learning rates diverge at step {step:,}, by up to {share} of the peak."
