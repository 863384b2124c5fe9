"""Compared curves as a document: the verdict, the standard line by line, the plots, what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trueup.curves.columns import LOSS
from trueup.curves.comparison import CurveComparison
from trueup.curves.curve import Curve
from trueup.curves.local_norms import LocalNorms
from trueup.curves.standard import ADVISORY, Criterion, Met
from trueup.curves.statistics.envelope import moving_mean
from trueup.curves.thresholds import FIRST_ABS, MEAN_ABS, NORM_REL
from trueup.reporting.curves.plots import curve_plots, raw_plots
from trueup.reporting.curves.sheets import acceptance_sheet, conditions_sheet, statistics_sheet
from trueup.reporting.document import (
    Block,
    Cell,
    Column,
    Document,
    Fact,
    Facts,
    Form,
    Line,
    Look,
    Mark,
    On,
    Paragraph,
    Plots,
    Row,
    Section,
    Span,
    Table,
    Tone,
    Trend,
    fact,
    facts,
    reason_text,
)
from trueup.reporting.formatting import count, number, plain
from trueup.reporting.standard import MARKS, conditions_table, signatures
from trueup.types.reason import Reason
from trueup.types.status import Outcome

if TYPE_CHECKING:
    from trueup.diagnosing.around import Around

OUTCOMES = {
    Outcome.AGREE: Mark("✓", "Accepted", Tone.GOOD),
    Outcome.DIFFER: Mark("✗", "Not accepted", Tone.BAD),
    Outcome.UNDECIDED: Mark("?", "Undecided", Tone.WARN),
}
MAX_DRAWN = 8
"""targets whose curves are drawn, those that differ first; all are listed"""
_ORDER = (Outcome.DIFFER, Outcome.UNDECIDED, Outcome.AGREE)
_REFERENCES, _BARS = 3, 60
_FILED = On.PAGE | On.TEXT
_STANDARD = {
    "first_loss": ("threshold_abs", FIRST_ABS),
    "mean_loss": ("threshold_abs", MEAN_ABS),
    "global_norm": ("threshold_rel", NORM_REL),
}
"""of a criterion that the repeats may relax: which number is its threshold, and the standard's"""
_MAX_EVIDENCE, _MAX_REMARKS, _MAX_NOTES = 6, 8, 6


def curves_report(
    comparisons: Sequence[CurveComparison],
    *,
    around: Mapping[str, Around] | None = None,
    reports: Sequence[Path] = (),
) -> Document:
    """One target with everything, or several with a list of them first.

    Args:
        comparisons: of targets with the same references.
        around: target's name -> what traces say of the steps around its onset.
        reports: files that were written.
    """
    seen = around or {}
    first, several = comparisons[0], len(comparisons) > 1
    ranked = sorted(comparisons, key=lambda one: _ORDER.index(one.judgement.outcome))
    names = tuple(curve.name for curve in first.references)
    blocks: list[Block] = []
    if several:
        blocks.append(_overview(ranked))
        blocks += [
            Section(
                title=one.target.name,
                key=f"run-{at}",
                nav=one.target.name,
                note=OUTCOMES[one.judgement.outcome].words,
                lead=reason_text(one.judgement.headline),
                blocks=tuple(_blocks(one, seen.get(one.target.name), (), nested=at)),
                on=_FILED,
            )
            for at, one in enumerate(ranked[:MAX_DRAWN], 1)
        ]
    else:
        blocks += _blocks(first, seen.get(first.target.name), reports, nested=0)
    blocks += [
        acceptance_sheet(comparisons, OUTCOMES),
        conditions_sheet(comparisons),
        statistics_sheet(comparisons),
    ]
    for at, one in enumerate(comparisons[:MAX_DRAWN], 1):
        name = "curves" if not several else f"curves {at}"
        blocks.append(
            Section(title=name, key=name, blocks=(Plots(items=raw_plots(one), on=On.BOOK),), on=On.BOOK)
        )
    title = f"{count(len(comparisons), 'run')}" if several else first.target.name
    worst = OUTCOMES[ranked[0].judgement.outcome]
    differ = sum(one.judgement.outcome is Outcome.DIFFER for one in comparisons)
    return Document(
        title=f"Accuracy acceptance: {title} vs {', '.join(names)}",
        mark=worst,
        headline=f"{differ} of {len(comparisons)} runs not accepted"
        if several
        else reason_text(first.judgement.headline),
        subject=(title, ", ".join(names)),
        blocks=(*blocks, signatures(("developer", "reviewer"))),
        footer="curves.json",
    )


def _overview(comparisons: Sequence[CurveComparison]) -> Table:
    rows = [
        Row(
            cells=(
                Span(one.target.name, href=f"#run-{at}" if at <= MAX_DRAWN else ""),
                reason_text(one.judgement.headline),
            ),
            mark=OUTCOMES[one.judgement.outcome],
        )
        for at, one in enumerate(comparisons, 1)
    ]
    columns = (Column(title="run", fit=True, width=40), Column(title="result", grow=True))
    return Table(columns=columns, rows=tuple(rows), head=On.TEXT)


def _blocks(
    comparison: CurveComparison, around: Around | None, reports: Sequence[Path], *, nested: int
) -> Iterator[Block]:
    """Everything on one target; ``nested``: its number among several."""
    at = f"-{nested}" if nested else ""
    judgement = comparison.judgement
    yield _runs(comparison)
    yield facts(
        [
            fact(
                "Evidence",
                *map(reason_text, judgement.reasons),
                tone=Tone.BAD if judgement.outcome is Outcome.DIFFER else Tone.GOOD,
            ),
            fact("Also", *map(reason_text, judgement.remarks), tone=Tone.QUIET),
        ],
        Form.LISTS,
        _FILED,
    )
    plots = Plots(items=curve_plots(comparison), zoom=True)
    lead = "Drag over steps to zoom all plots; double-click to reset."
    yield Section(
        title="Curves",
        key=f"curves{at}",
        nav="" if nested else "Curves",
        lead=lead,
        blocks=(plots,),
        on=On.PAGE,
    )
    yield Section(
        title="Migration standard",
        key=f"standard{at}",
        nav="" if nested else "Standard",
        lead=reason_text(ADVISORY),
        blocks=(_criteria(comparison.evidence.criteria, _FILED),),
        on=_FILED,
    )
    yield _criteria(comparison.evidence.criteria, On.SCREEN)
    yield from (_findings(comparison, around), _next_on_screen(comparison, reports))
    yield Paragraph(line=Span(reason_text(ADVISORY), Look.QUIET), on=On.SCREEN)
    yield _next(comparison, around, at, nested)
    yield _norms(comparison)
    yield Section(
        title="Conditions and sources",
        key=f"conditions{at}",
        nav="" if nested else "Conditions",
        blocks=(
            conditions_table(comparison.conditions),
            _sides(comparison),
            facts([fact("note", *map(reason_text, comparison.notes))]),
        ),
        on=_FILED,
    )


def _runs(comparison: CurveComparison) -> Facts:
    """Whose curves, over which steps, and the difference along training as one row of bars."""
    curves = [comparison.target, *comparison.references[:_REFERENCES]]
    labels = ["target", "reference", *("" for _ in curves[2:])]
    rows = [
        fact(label, (Span(curve.name, Look.STRONG), Span(f"  {_span_of(curve)}", Look.QUIET)))
        for label, curve in zip(labels, curves, strict=True)
    ]
    more = len(comparison.references) - _REFERENCES
    if more > 0:
        rows.append(fact("", f"and {count(more, 'more repeat')}"))
    steps = count(len(comparison.paired.steps), "common step")
    rows.append(fact("compared", f"{steps}; {reason_text(comparison.alignments[0].reason)}"))
    difference = comparison.difference(LOSS)
    if difference is not None and np.isfinite(difference).any():
        smooth = moving_mean(difference, max(1, len(difference) // (2 * _BARS)))
        pieces = np.array_split(smooth, min(_BARS, len(smooth)))
        means = [abs(float(np.nanmean(piece))) for piece in pieces if np.isfinite(piece).any()]
        note = f"±{max(means, default=0.0):.2g}"
        rows.append(fact("difference", Trend(smooth, _BARS, zero=True), note=note))
    return facts(rows, on=On.SCREEN)


def _span_of(curve: Curve) -> str:
    first, last = curve.span
    every = f", every {curve.interval}" if curve.interval > 1 else ""
    return f"{curve.format}, steps {first:,} to {last:,}{every}"


def _criteria(criteria: Sequence[Criterion], on: On) -> Table:
    columns = (
        Column(title="criterion", grow=True, width=30, even=True),
        Column(title="measured", fit=True, width=30),
        Column(title="expected", grow=True, below=True, width=44),
        Column(title="source", width=40, on=_FILED),
    )
    rows: list[Row] = []
    noted: Reason | None = None
    for one in criteria:
        expected = reason_text(one.threshold)
        if on is On.SCREEN and one.status is Met.UNDECIDED and one.note is not None:
            expected = reason_text(one.note) if one.note != noted else ""
            noted = one.note
        relaxed = ", relaxed to the spread of the repeats" if _is_relaxed(one) else ""
        notes = (reason_text(one.note),) if one.note is not None else ()
        rows.append(
            Row(
                cells=(
                    Cell(value=reason_text(one.title), under=notes, on=_FILED),
                    reason_text(one.value),
                    Span(expected + relaxed, Look.QUIET),
                    Cell(
                        value=reason_text(one.origin),
                        under=() if one.decisive else ("does not reject by itself",),
                    ),
                ),
                mark=MARKS[one.status],
                loud=one.status is Met.NOT_MET,
            )
        )
    return Table(columns=columns, rows=tuple(rows), head=_FILED, on=on)


def _is_relaxed(criterion: Criterion) -> bool:
    """Whether the threshold is wider than the standard's, because the repeats differ by more."""
    name, standard = _STANDARD.get(criterion.key, ("", 0.0))
    threshold = dict(criterion.numbers).get(name)
    return threshold is not None and threshold > standard


def _findings(comparison: CurveComparison, around: Around | None) -> Facts:
    judgement, norms = comparison.judgement, comparison.local_norms
    rows = [
        fact(
            "case", "" if judgement.case == "aligned" else Span(judgement.case.replace("_", " "), Look.STRONG)
        ),
        fact("evidence", *map(reason_text, judgement.reasons), limit=_MAX_EVIDENCE),
        fact("also", *map(reason_text, judgement.remarks), limit=_MAX_REMARKS),
    ]
    if norms is not None and norms.num_beyond:
        name, target, reference, _ = norms.rows[0]
        most = f"at step {norms.step}, most {name}: {target:.4g} (target) vs {reference:.4g} (reference)"
        rows.append(fact("local norm", f"{_beyond(norms)} {most}"))
    rows += _around(around)
    rows.append(
        fact("note", *(Span(reason_text(note), Look.QUIET) for note in comparison.notes), limit=_MAX_NOTES)
    )
    return facts(rows, on=On.SCREEN)


def _beyond(norms: LocalNorms) -> str:
    return f"{norms.num_beyond} of {count(norms.num_pairs, 'weight')} differ by more than 10 %"


def _around(around: Around | None) -> list[Fact]:
    """What traces hold of the steps around the onset."""
    if not around:
        return [fact("around step")]
    lines: list[Line] = [plain(line) for line in around["said"]]
    lines += [(f"{one['where']}: ", Span(str(one["text"]), Look.CODE)) for one in around["texts"]]
    return [fact("around step", *lines)]


def _next_on_screen(comparison: CurveComparison, reports: Sequence[Path]) -> Facts:
    commands: list[Line] = []
    for command in comparison.commands:
        commands += [Span(command.line, Look.COMMAND), Span(reason_text(command.purpose), Look.QUIET)]
    return facts(
        [
            fact("reports", ", ".join(map(str, reports))),
            fact("next step", *map(reason_text, comparison.judgement.advice)),
            fact("run", *commands),
        ],
        on=On.SCREEN,
    )


def _next(comparison: CurveComparison, around: Around | None, at: str, nested: int) -> Section:
    rows = [fact("Advice", *map(reason_text, comparison.judgement.advice), tone=Tone.QUIET)]
    rows += [fact(reason_text(one.purpose), Span(one.line, Look.COMMAND)) for one in comparison.commands]
    rows += _around(around)
    return Section(
        title="Next steps",
        key=f"next{at}",
        nav="" if nested else "Next steps",
        blocks=(facts(rows, Form.LISTS),),
        on=_FILED,
    )


def _norms(comparison: CurveComparison) -> Section:
    norms = comparison.local_norms
    columns = (
        Column(title="weight", code=True),
        Column(title="target", show=number),
        Column(title="reference", show=number),
        Column(title="rel. difference", show=lambda value: "–" if value is None else f"{value:.1%}"),
    )
    if norms is None:
        return Section(title="Local norms", blocks=(), on=_FILED)
    return Section(
        title=f"Local norms at step {norms.step}",
        lead=f"{_beyond(norms)}; paired by {norms.paired_by}.",
        blocks=(Table(columns=columns, rows=tuple(Row(cells=row) for row in norms.rows)),),
        on=_FILED,
    )


def _sides(comparison: CurveComparison) -> Table:
    sides = [("target", comparison.target), *(("reference", curve) for curve in comparison.references)]
    columns = (
        Column(title="run", width=14),
        Column(title="log", width=44),
        Column(title="contents", width=44),
    )
    return Table(
        columns=columns, rows=tuple(Row(cells=(role, one.name, _span_of(one))) for role, one in sides)
    )
