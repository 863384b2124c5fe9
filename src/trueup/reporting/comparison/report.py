"""A comparison as a document: the verdict, the records that exceed tolerance, what could not be matched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import cast
from urllib.parse import urlencode

import numpy as np
import polars as pl

from trueup.comparing.content import UnmatchedGroup
from trueup.reporting.comparison.columns import record_columns
from trueup.reporting.comparison.page.explorer import (
    MAX_ROWS,
    counts_of_phases,
    depth_charts,
    gradient_table,
    precision_table,
    record_explorer,
)
from trueup.reporting.comparison.result import (
    EXCEEDING,
    SIDES,
    STATUSES,
    ComparisonResult,
)
from trueup.reporting.document import (
    OUTCOMES,
    Block,
    Column,
    Document,
    Fact,
    Facts,
    Form,
    Frame,
    FrameColumn,
    Look,
    Mark,
    On,
    Paragraph,
    Plot,
    Plots,
    Section,
    Series,
    Source,
    Sources,
    Span,
    Table,
    Tone,
    fact,
    facts,
    reason_text,
    source_fact,
)
from trueup.reporting.document import Row as TableRow
from trueup.reporting.formatting import as_sentence, count, number, plain, ratio, short_frame, short_site
from trueup.types.result import ResultRow, ScalarDocument
from trueup.wording import headline

NUM_ROWS, NUM_EVIDENCE, NUM_LAYOUTS, NUM_NOTES, NOTE_LINES = 6, 3, 5, 3, 3
NUM_STEPS = 8
"""steps of one scalar that are listed"""
_WIDE = 64
"""columns of a screen from which on a row shows its numbers"""
_DIFFERS = Mark("≠", "differs", Tone.BAD)
_SHADES = {"different": Tone.BAD, "undecided": Tone.WARN, "unmatched": Tone.QUIET}
_PAPER = On.BOOK | On.TEXT


def compare_report(
    result: ComparisonResult,
    *,
    media: On = On.ALL,
    reports: Mapping[str, Path] | None = None,
    page_rows: int = MAX_ROWS,
) -> Document:
    """Two runs compared.

    Args:
        result: what was concluded, and its records.
        media: where it will be shown; the sheet of all records is costly to prepare.
        reports: files that were written, by format.
        page_rows: records that a page holds at most.
    """
    verdict, names = result.verdict, tuple(plain(result.path(side)) for side in SIDES)
    written = reports or {}
    return Document(
        title=f"Comparison: {names[0]} vs {names[1]}",
        mark=OUTCOMES[verdict.outcome],
        headline=plain(headline(verdict.headline)),
        subject=names,
        blocks=(
            _tiles(result),
            facts(_verdict_facts(result), on=On.SCREEN),
            Sources(items=sources_of(result)),
            _exceeding(result),
            facts(_closing_facts(result, written), on=On.SCREEN),
            _lists(result),
            counts_of_phases(result),
            depth_charts(result),
            record_explorer(result, page_rows),
            *([_records(result)] if On.BOOK in media else []),
            _verdict_sheet(result, written),
            gradient_table(result),
            _precision(result),
            _scalars(result),
            _unmatched(result),
            _runs(result),
            _method(result),
        ),
        footer="result.parquet, precision.parquet and result.json",
    )


def place_of(result: ComparisonResult) -> str:
    """Step, rank and phase of the verdict."""
    verdict = result.verdict
    parts = [
        "" if verdict.step is None else f"step {verdict.step}",
        "" if verdict.rank is None else f"rank {verdict.rank}",
        (verdict.phase or "").replace("_", " "),
    ]
    return " · ".join(part for part in parts if part)


def unmatched_words(group: UnmatchedGroup) -> str:
    """One group in a line: the call, its module, why."""
    return f"{short_site(group.name)} in {group.module}: {reason_text(group.reason)}"


def bracketed_words(result: ComparisonResult) -> str:
    """Whether the records without a counterpart are between records that agree."""
    return "all between records that agree" if result.bracketed else "not all between records that agree"


def _tiles(result: ComparisonResult) -> Facts:
    verdict = result.verdict
    exceeding = sum(n for status, n in result.status_counts.items() if status in EXCEEDING)
    note = (
        f"{count(exceeding, 'record')} exceed{'s' if exceeding == 1 else ''} tolerance" if exceeding else ""
    )
    rows = [
        _location(result),
        fact("Confidence", _confidence(result)),
        fact("Compared", count(result.num_compared, "record"), note=note),
    ]
    return facts(rows if verdict.where else rows[1:], Form.TILES, On.PAGE)


def _location(result: ComparisonResult) -> Fact | None:
    verdict = result.verdict
    if not verdict.where:
        return None
    keys = {"site": verdict.where, "phase": verdict.phase, "step": verdict.step, "rank": verdict.rank}
    address = "#" + urlencode(
        {key: value for key, value in keys.items() if value is not None}, errors="replace"
    )
    link = Span("Show in the records", href=address)
    return fact("Location", Span(short_site(verdict.where), Look.CODE), link, note=place_of(result))


def _confidence(result: ComparisonResult) -> str:
    confidence = result.verdict.confidence
    return "" if confidence is None else str(confidence)


def _lists(result: ComparisonResult) -> Facts:
    verdict = result.verdict
    rows = [
        fact("Evidence", *map(reason_text, verdict.evidence), tone=OUTCOMES[verdict.outcome].tone),
        fact("Preceding records", reason_text(verdict.before) if verdict.before else "", tone=Tone.GOOD),
        fact("Next step", *next_lines(result, "the records below")),
    ]
    return facts(rows, Form.LISTS, On.PAGE)


def next_lines(result: ComparisonResult, page: str = "") -> list[str | Span]:
    """The command, and on a line of its own what it is for: a command is copied."""
    command, note = result.next_step(page)
    return [
        *([Span(command, Look.COMMAND)] if command else []),
        *([as_sentence(plain(note))] if note else []),
    ]


def sources_of(result: ComparisonResult) -> tuple[Source, ...]:
    """Lines of code of the first record that exceeds its tolerance; one where both sides have the same."""
    first = result.first() if result.verdict.where else None
    frames = [(side, result.frames(first, side)[:1]) for side in SIDES]
    found = [Source(side, *short_frame(plain(frame))) for side, kept in frames for frame in kept]
    if len(found) == 2 and (found[0].place, found[0].code) == (found[1].place, found[1].code):
        return (Source("both", found[0].place, found[0].code),)
    return tuple(found)


def _verdict_facts(result: ComparisonResult) -> list[Fact | None]:
    verdict = result.verdict
    site = Span(plain(verdict.where or ""), Look.STRONG) if verdict.where else ""
    return [
        fact("location", site, place_of(result), fit=True) if verdict.where else None,
        source_fact(sources_of(result)),
        fact("confidence", _confidence(result)),
        fact("evidence", *map(reason_text, verdict.evidence), limit=NUM_EVIDENCE),
        fact("preceding", reason_text(verdict.before)) if verdict.before else None,
    ]


def _exceeding(result: ComparisonResult) -> Table:
    rows = cast(list[ResultRow], result.exceeding(NUM_ROWS).to_dicts())
    columns = (
        Column(title="first to exceed tolerance", fit=True, grow=True),
        Column(title="phase", least=_WIDE),
        Column(title="rel L2", show=number, least=_WIDE),
        Column(title="tolerance", show=number, least=_WIDE),
        Column(title="× tolerance", show=ratio),
    )
    return Table(columns=columns, rows=tuple(map(_exceeding_row, rows)), on=On.SCREEN | On.TEXT)


def _exceeding_row(row: ResultRow) -> TableRow:
    cells = (short_site(plain(row["site"])), plain(row["phase"]).replace("_", " "))
    numbers = (row["rel_l2"], row["tolerance"], row["score"])
    return TableRow(cells=(*cells, *numbers), mark=STATUSES[str(row["status"])])


def _closing_facts(result: ComparisonResult, reports: Mapping[str, Path]) -> list[Fact | None]:
    groups = result.unmatched
    records = result.status_counts.get("unmatched") or sum(group.count for group in groups)
    places = f"{count(records, 'record')} in {count(result.num_unmatched_groups, 'group')}"
    example = [Span(f"{one.side} only: {unmatched_words(one)}", Look.QUIET) for one in groups[:1]]
    origin = result.tolerance_origin
    return [
        _tally(result),
        fact("unmatched", f"{places}; {bracketed_words(result)}", *example) if groups else None,
        fact("layout", *map(reason_text, result.layouts), limit=NUM_LAYOUTS),
        fact("note", *map(reason_text, result.notes), limit=NUM_NOTES, most=NOTE_LINES),
        fact("tolerance", Span(reason_text(origin), Look.QUIET)) if origin else None,
        fact("reports", _files(result, reports)) if reports else None,
        fact("next step", *next_lines(result, str(reports.get("html", "")))),
    ]


def _files(result: ComparisonResult, reports: Mapping[str, Path]) -> str:
    folder = result.folder or next(iter(reports.values())).parent
    return f"{folder}/  " + ", ".join(
        path.name if path.parent == folder else str(path) for path in reports.values()
    )


def _tally(result: ComparisonResult) -> Fact:
    """How many records have which status; a line ends between two of them, never inside one."""
    pieces = [
        (Span(STATUSES[status].glyph, tone=STATUSES[status].tone), f" {count(n)} {STATUSES[status].words}")
        for status, n in result.status_counts.items()
    ]
    return Fact(label="records", lines=(f"{count(result.num_compared)} compared", *pieces), flow=True)


def _verdict_sheet(result: ComparisonResult, reports: Mapping[str, Path]) -> Section:
    verdict = result.verdict
    rows = [
        fact("outcome", verdict.outcome.value),
        fact("location", plain(verdict.where or "–")),
        fact("module", plain(verdict.owner or "–")),
        fact("step, rank, phase", place_of(result) or "–"),
        fact("confidence", _confidence(result)),
        fact("evidence", *map(reason_text, verdict.evidence)),
        fact("preceding records", reason_text(verdict.before) if verdict.before else "–"),
        fact("next step", *next_lines(result, str(reports.get("html", "")))),
        fact("compared", count(result.num_compared)),
        *(fact(STATUSES[status].words, count(n)) for status, n in result.status_counts.items()),
        *(Fact(label="tolerance", lines=(line,), on=On.BOOK) for line in _tolerance(result)),
        *(Fact(label="note", lines=(reason_text(note),), on=On.BOOK) for note in result.notes),
    ]
    facts_ = Table(columns=_RUN_COLUMNS, rows=_run_rows(result), on=On.BOOK)
    return Section(title="Verdict", key="verdict", blocks=(facts(rows), facts_), on=_PAPER)


def _tolerance(result: ComparisonResult) -> list[str | Span]:
    origin, formula = result.tolerance_origin, result.tolerance_formula
    return [*([Span(formula, Look.CODE)] if formula else []), *([reason_text(origin)] if origin else [])]


def _records(result: ComparisonResult) -> Section:
    """Every record, under msprobe's headings and ours."""
    status = pl.col("status").cast(pl.String)
    loud = {"origin": "different", "amplified": "different", "propagated": "different"}
    frame = Frame(
        columns=tuple(record_columns(result)),
        frame=result.in_order,
        num_rows=result.num_records,
        shades=_SHADES,
        shade=status.replace(loud),
    )
    return Section(title="Records", key="compare_result", blocks=(frame,), on=On.BOOK)


def _precision(result: ComparisonResult) -> Section:
    table = result.precision
    columns = tuple(
        FrameColumn(
            title=name.replace("_", " "),
            value=pl.col(name) if dtype.is_integer() else pl.col(name).cast(pl.String),
            kind="integer" if dtype.is_integer() else "text",
            width=10 if name in ("order", "rank", "role", "differs") else 28,
        )
        for name, dtype in table.collect_schema().items()
        if name not in ("note_code", "note_facts")
    )
    num_rows, differing = (
        int(one) for one in table.select(pl.len(), pl.col("differs").sum().alias("n")).collect().row(0)
    )
    frame = Frame(
        columns=columns,
        frame=table,
        num_rows=num_rows,
        shades={"true": Tone.BAD},
        shade=pl.col("differs").cast(pl.String),
    )
    words = f"{count(differing, 'call')} of {num_rows:,} differ{'s' if differing == 1 else ''}."
    return Section(
        title="Precision",
        key="precision",
        nav="Precision",
        lead="Dtypes of inputs, weights and outputs of every matched call. "
        + (words if differing else "They are the same on both sides."),
        blocks=(frame, *precision_table(num_rows, differing)),
        on=On.PAGE | On.BOOK,
    )


def _scalars(result: ComparisonResult) -> Section:
    """Scalars that differ, each with its first steps that do, and the names of the others."""
    series = result.scalars()
    differing = {key: steps for key, steps in series.items() if any(map(_differs, steps))}
    names = {name for name, _ in differing}
    same = ", ".join(dict.fromkeys(_label(name) for name, _ in series if name not in names))
    rows = [row for (name, rank), steps in differing.items() for row in _scalar_rows(name, rank, steps)]
    plots = [plot for (name, rank), steps in differing.items() for plot in _scalar_plots(name, rank, steps)]
    columns = (
        Column(title="scalar", width=24),
        *(Column(title=title, show=_exact) for title in ("step", *SIDES)),
        Column(title="rel. difference", show=number),
    )
    return Section(
        title="Scalars",
        key="scalars",
        nav="Scalars",
        lead=f"The same on both sides at every step: {same}." if same else "",
        blocks=(Plots(items=tuple(plots)), Table(columns=columns, rows=tuple(rows)), *_kept(same, rows)),
        on=On.PAGE | On.TEXT,
    )


def _differs(one: ScalarDocument) -> bool:
    return one.get("target") != one.get("reference")


def _kept(same: str, rows: Sequence[TableRow]) -> list[Block]:
    """A section of nothing is not shown; where all scalars agree its lead is worth one."""
    return [Paragraph(line="")] if same and not rows else []


def _label(name: str, rank: int = 0) -> str:
    return plain(name).replace("_", " ") + (f", rank {rank}" if rank else "")


def _scalar_rows(name: str, rank: int, steps: Sequence[ScalarDocument]) -> list[TableRow]:
    start = max(0, next((at for at, one in enumerate(steps) if one.get("beyond")), 0) - 2)
    return [
        TableRow(
            cells=(
                _label(name, rank) if at == 0 else "",
                float(one["step"]),
                *map(_cell_value, (one.get("target"), one.get("reference"), one.get("rel_diff"))),
            ),
            mark=Mark("≠", "exceeds tolerance", Tone.BAD) if one.get("beyond") else None,
            loud=bool(one.get("beyond")),
        )
        for at, one in enumerate(steps[start : start + NUM_STEPS])
    ]


def _cell_value(value: object) -> float | str | None:
    """A number of result.json, where infinities are words."""
    if value is None or isinstance(value, (int, float)):
        return None if value is None else float(value)
    return plain(value)


def _exact(value: float | None) -> str:
    return number(value, digits=8)


def _scalar_plots(name: str, rank: int, steps: Sequence[ScalarDocument]) -> list[Plot]:
    lines = []
    for side in ("reference", "target"):
        pairs = [(one["step"], one.get(side)) for one in steps]
        known = [(x, float(y)) for x, y in pairs if isinstance(y, (int, float)) and np.isfinite(y)]
        if len(known) < 3:
            return []
        x, y = zip(*known, strict=True)
        lines.append(Series(name=side, role=side, x=np.array(x), y=np.array(y, dtype=np.float64)))
    label = _label(name, rank)
    return [Plot(key=f"{name}-{rank}", title=label.capitalize(), y_title=label, lines=tuple(lines))]


def _unmatched(result: ComparisonResult) -> Section:
    groups = result.unmatched
    columns = (
        Column(title="only in", width=16),
        Column(title="module", code=True, width=24),
        Column(title="call", code=True, width=24),
        Column(title="records", show=lambda value: f"{value or 0:,.0f}"),
        Column(title="reason", width=32),
    )
    rows = [
        TableRow(
            cells=(
                one.side,
                plain(one.module),
                plain(short_site(one.name)),
                one.count,
                reason_text(one.reason),
            )
        )
        for one in groups
    ]
    return Section(
        title="Unmatched",
        key="unmatched",
        nav="Unmatched",
        lead=_unmatched_lead(result),
        blocks=(Table(columns=columns, rows=tuple(rows)),),
        on=On.PAGE | On.TEXT,
    )


def _unmatched_lead(result: ComparisonResult) -> str:
    groups, total = result.unmatched, result.num_unmatched_groups
    sentences = [
        "Every group is between matched records that agree: the same computation with other calls."
        if result.bracketed
        else "Not every group is between matched records that agree."
    ]
    if len(groups) > 3:
        names = Counter((plain(short_site(group.name)), group.side) for group in groups)
        often = [f"{name} in {count(n, 'module')} of the {side}" for (name, side), n in names.most_common(3)]
        sentences.append(f"Most often {', '.join(often)}.")
    if total > len(groups):
        sentences.append(f"The first {len(groups)} of {total:,} groups.")
    return " ".join(sentences)


_RUN_COLUMNS = (Column(title="fact", width=24), *(Column(title=side, width=60, code=True) for side in SIDES))


def _run_rows(result: ComparisonResult) -> tuple[TableRow, ...]:
    return tuple(
        TableRow(
            cells=(plain(one.name), one.target, one.reference),
            mark=_DIFFERS if one.differs else None,
            loud=one.differs,
        )
        for one in result.run_facts()
    )


def _runs(result: ComparisonResult) -> Section:
    recorded = result.run_facts()
    differing = sum(one.differs for one in recorded)
    words = f"{count(differing, 'fact')} of the two runs differ{'s' if differing == 1 else ''}."
    rows = zip(recorded, _run_rows(result), strict=True)
    unlike = tuple(row for one, row in rows if one.target != one.reference)
    same = [fact(plain(one.name), one.target) for one in recorded if one.target == one.reference]
    return Section(
        title="Runs",
        key="runs",
        nav="Runs",
        lead=words if differing else "Every recorded fact of the two runs is the same.",
        blocks=(
            Table(columns=_RUN_COLUMNS, rows=unlike),
            Section(title="Facts that both runs share", blocks=(facts(same),), collapsed=True),
        ),
        on=On.PAGE | On.TEXT,
    )


def _method(result: ComparisonResult) -> Section:
    notes: Iterable[Paragraph] = (
        Paragraph(line=reason_text(note)) for note in (*result.layouts, *result.notes)
    )
    rows = facts([fact("tolerance", *_tolerance(result))])
    return Section(title="Method", key="how", nav="Method", blocks=(*notes, rows), on=On.PAGE | On.TEXT)
