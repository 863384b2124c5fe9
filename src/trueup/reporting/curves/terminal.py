"""Compared curves on one screen: the verdict, a sparkline, the standard line by line, what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trueup.curves.columns import LOSS
from trueup.curves.comparison import CurveComparison
from trueup.curves.curve import Floats
from trueup.curves.standard import ADVISORY, Criterion, Met
from trueup.curves.statistics.envelope import moving_mean
from trueup.reporting.formatting import count, elide, plain
from trueup.wording import text

GLYPHS = {"agree": ("✓", "green"), "differ": ("✗", "red"), "undecided": ("?", "yellow")}
MARKS = {
    Met.MET: ("✓", "green"),
    Met.NOT_MET: ("✗", "red"),
    Met.WARNING: ("!", "yellow"),
    Met.UNDECIDED: ("?", "yellow"),
}
_BARS = "▁▂▃▄▅▆▇█"
_MARGIN, _LABEL = 3, 11
_MAX_REASONS, _MAX_REMARKS = 6, 8


def print_comparison(
    comparison: CurveComparison,
    console: Console,
    *,
    reports: Mapping[str, Path] | None = None,
    around: Mapping[str, Any] | None = None,
) -> None:
    """Print the one screen of one target; ``reports`` are files written."""
    console.print(screen(comparison, width=console.width, reports=reports or {}, around=around))


def screen(
    comparison: CurveComparison,
    *,
    width: int,
    reports: Mapping[str, Path],
    around: Mapping[str, Any] | None = None,
) -> RenderableType:
    """The whole screen as one renderable."""
    width = max(60, min(width, 120))
    judgement = comparison.judgement
    glyph, colour = GLYPHS[judgement.outcome.value]
    parts: list[RenderableType] = [
        Text(""),
        Text.assemble((f" {glyph} ", f"bold {colour}"), (plain(text(judgement.headline)), "bold")),
        Text(""),
        _facts(_runs(comparison, width)),
        Text(""),
        _criteria(comparison.evidence.criteria, width),
        Text(""),
        _facts(_findings(comparison, around)),
    ]
    closing = _closing(comparison, reports)
    if closing:
        parts += [Text(""), _facts(closing)]
    return Group(*parts, Text(""), Padding(Text(ADVISORY, style="dim"), (0, 0, 0, _MARGIN)), Text(""))


def summary(comparisons: list[CurveComparison], width: int) -> RenderableType:
    """Several targets, a line each."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=_MARGIN)
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=max(20, width // 3))
    table.add_column(overflow="fold")
    for comparison in comparisons:
        glyph, colour = GLYPHS[comparison.judgement.outcome.value]
        table.add_row(
            Text(f" {glyph} ", style=f"bold {colour}"),
            Text(plain(comparison.target.name)),
            Text(plain(text(comparison.judgement.headline)), style="dim"),
        )
    return Group(Text(""), table, Text(""))


def _facts(facts: list[tuple[str, RenderableType]]) -> Table:
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=_MARGIN + _LABEL, style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, value in facts:
        grid.add_row(" " * _MARGIN + label, value)
    return grid


def _runs(comparison: CurveComparison, width: int) -> list[tuple[str, RenderableType]]:
    room = width - _MARGIN - _LABEL - 1
    facts: list[tuple[str, RenderableType]] = []
    for label, curve in [
        ("target", comparison.target),
        *(("reference", c) for c in comparison.references[:3]),
    ]:
        first, last = curve.span
        said = f"  {curve.format} · steps {first:,}–{last:,}" + (
            f", every {curve.interval}" if curve.interval > 1 else ""
        )
        name = elide(plain(curve.name), max(16, room - len(said)))
        facts.append(
            (
                label if label == "target" or not facts[1:] else "",
                Text.assemble((name, "bold"), (said, "dim")),
            )
        )
    more = len(comparison.references) - 3
    if more > 0:
        facts.append(("", Text(f"and {count(more, 'more repeat')}", style="dim")))
    num = len(comparison.paired.steps)
    facts.append(("compared", Text(f"{count(num, 'step')}; {text(comparison.alignments[0].reason)}")))
    difference = comparison.difference(LOSS)
    if difference is not None and np.isfinite(difference).any():
        facts.append(("difference", sparkline(difference, min(60, room - 24))))
    return facts


def sparkline(difference: Floats, width: int) -> Text:
    """The loss difference along training as one row of bars, its zero line in the middle."""
    pieces = np.array_split(
        moving_mean(difference, max(1, len(difference) // (2 * width))), min(width, len(difference))
    )
    with np.errstate(invalid="ignore"):
        means = np.array([np.nanmean(piece) if np.isfinite(piece).any() else np.nan for piece in pieces])
    largest = float(np.nanmax(np.abs(means))) if np.isfinite(means).any() else 0.0
    bars = ""
    for mean in means:
        level = 0.5 if not largest or not np.isfinite(mean) else 0.5 + 0.5 * mean / largest
        bars += _BARS[min(7, int(level * 8))]
    return Text.assemble(bars, (f"  ±{largest:.2g} over training", "dim"))


def _criteria(criteria: tuple[Criterion, ...], width: int) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=_MARGIN)
    table.add_column(max_width=max(24, width * 2 // 5), overflow="fold")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", style="dim")
    noted = ""
    for criterion in criteria:
        mark, colour = MARKS[criterion.status]
        failed = criterion.status is Met.NOT_MET
        beside = criterion.threshold
        if "relaxed" in criterion.origin:
            beside += ", relaxed to the repeats"
        elif criterion.status is Met.UNDECIDED and criterion.note:
            beside, noted = ("" if criterion.note == noted else criterion.note), criterion.note
        value = Text(elide(plain(criterion.value), 40), style="bold" if failed else "")
        table.add_row(
            Text(f" {mark} ", style=f"bold {colour}"),
            Text(criterion.title, style="bold" if failed else ""),
            value,
            Text(plain(beside)),
        )
    return table


def _findings(
    comparison: CurveComparison, around: Mapping[str, Any] | None
) -> list[tuple[str, RenderableType]]:
    judgement = comparison.judgement
    facts: list[tuple[str, RenderableType]] = []
    if judgement.case != "aligned":
        facts.append(("case", Text(judgement.case.replace("_", " "), style="bold")))
    for index, reason in enumerate(judgement.reasons[:_MAX_REASONS]):
        facts.append(("because" if index == 0 else "", Text(plain(text(reason)))))
    for index, remark in enumerate(judgement.remarks[:_MAX_REMARKS]):
        facts.append(("also" if index == 0 else "", Text(plain(text(remark)))))
    norms = comparison.local_norms
    if norms is not None and norms.num_beyond:
        name, mine, theirs, _ = norms.rows[0]
        said = (
            f"step {norms.step}: {norms.num_beyond} of {norms.num_pairs} weights beyond 10 %, most {name} "
            f"({mine:.4g} against {theirs:.4g})"
        )
        facts.append(("local norm", Text(plain(said))))
    if around:
        for index, line in enumerate(around.get("said") or []):
            facts.append(("around it" if index == 0 else "", Text(plain(line))))
        facts += [
            ("", Text(plain(f"{sample['where']}: {sample['text']}"), style="italic"))
            for sample in around.get("texts") or []
        ]
    for index, note in enumerate(comparison.notes[:6]):
        facts.append(("note" if index == 0 else "", Text(plain(text(note)), style="dim")))
    return facts


def _closing(comparison: CurveComparison, reports: Mapping[str, Path]) -> list[tuple[str, RenderableType]]:
    facts: list[tuple[str, RenderableType]] = []
    if reports:
        facts.append(("report", Text(", ".join(plain(str(path)) for path in reports.values()))))
    for index, sentence in enumerate(comparison.judgement.advice):
        facts.append(("next" if index == 0 else "", Text(plain(text(sentence)))))
    for index, command in enumerate(comparison.commands):
        facts.append(("run" if index == 0 else "", Text(plain(command.line), style="bold cyan")))
        facts.append(("", Text(text(command.purpose), style="dim")))
    return facts
