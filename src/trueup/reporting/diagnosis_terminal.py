"""A diagnosis on one screen: the verdict, why, the stages as a checklist, what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from trueup.reporting.diagnosis_model import NUMERICAL, Report, report_from
from trueup.reporting.formatting import elide, plain, short_site
from trueup.reporting.screen import LABEL_WIDTH, MARGIN, facts, headline, meter

NUM_EVIDENCE = 4
NUM_FURTHER = 4
GLYPHS = {"agree": ("✓", "green"), "differ": ("✗", "red"), "undecided": ("?", "yellow")}
STAGE_LOOK = {
    "passed": ("✓", "green"),
    "failed": ("✗", "red"),
    "consequence": ("→", "magenta"),
    "undecided": ("?", "yellow"),
    "skipped": ("·", "dim"),
}


def print_diagnosis(
    document: Mapping[str, Any], console: Console, *, reports: Mapping[str, Path] | None = None
) -> None:
    """Print the one screen of a diagnosis (the document of diagnosis.json); ``reports`` are files written."""
    console.print(screen(report_from(document), width=console.width, reports=reports or {}))


def screen(report: Report, *, width: int, reports: Mapping[str, Path]) -> RenderableType:
    """The whole screen as one renderable."""
    width = max(32, min(width, 120))
    glyph, colour = GLYPHS.get(report.outcome, GLYPHS["undecided"])
    parts: list[RenderableType] = [
        Text(""),
        headline(glyph, colour, report.headline),
        Text(""),
    ]
    if report.verdict:
        parts += [facts(_verdict_facts(report, width)), Text("")]
    parts.append(_checklist(report, width))
    if report.further:
        parts += [Text(""), _further(report, width)]
    parts += [Text(""), facts(_closing(report, reports)), Text("")]
    return Group(*parts)


def _verdict_facts(report: Report, width: int) -> list[tuple[str, RenderableType]]:
    verdict, room = report.verdict, width - MARGIN - LABEL_WIDTH - 1
    told: list[tuple[str, RenderableType]] = []
    if verdict.get("site"):
        told.append(("where", Text(elide(short_site(plain(verdict["site"])), room), style="bold")))
        told.append(("", Text(report.coordinates)))
    for side, place, line in report.sources:
        label = "source" if side == "target" else ""
        words = Text.assemble(
            (f"{side} ", "dim"),
            place,
            ("  " if line else ""),
            (elide(line, max(12, room - len(place) - 12)), "italic"),
        )
        told.append((label, words))
    kind = report.kind
    if kind is not None:
        family = (
            "numerical: word length, order, dtype"
            if kind["family"] == NUMERICAL
            else "model: data, settings, structure"
        )
        told.append(("kind", Text.assemble((kind["name"].replace("_", " "), "bold"), (f"  {family}", "dim"))))
    told.append(("sure", meter(float(verdict["confidence"]))))
    for index, sentence in enumerate(verdict["evidence"][:NUM_EVIDENCE]):
        told.append(("because" if index == 0 else "", Text(plain(sentence))))
    for index, sentence in enumerate(verdict["counter_evidence"][:3]):
        told.append(("before it" if index == 0 else "", Text(plain(sentence))))
    for index, cause in enumerate(verdict["causes"][:3]):
        told.append(("likely" if index == 0 else "", Text(plain(cause))))
    return told


def _checklist(report: Report, width: int) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=MARGIN)
    table.add_column(no_wrap=True, width=16)
    table.add_column(overflow="ellipsis", no_wrap=True, max_width=width - MARGIN - 22)
    for stage in report.stages:
        glyph, colour = STAGE_LOOK[stage["status"]]
        failed = stage["status"] == "failed"
        table.add_row(
            Text(f" {glyph} ", style=f"bold {colour}"),
            Text(stage["short"], style="bold" if failed else ""),
            Text(plain(stage["said"]), style="" if failed else "dim"),
        )
    return table


def _further(report: Report, width: int) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=MARGIN + LABEL_WIDTH, style="dim", no_wrap=True)
    table.add_column(overflow="fold", max_width=width - MARGIN - LABEL_WIDTH - 1)
    for index, finding in enumerate(report.further[:NUM_FURTHER]):
        label = " " * MARGIN + ("also" if index == 0 else "")
        sure = f"  {float(finding['confidence']):.0%}"
        table.add_row(label, Text.assemble((plain(finding["headline"]), "bold"), (sure, "dim")))
    more = len(report.further) - NUM_FURTHER
    if more > 0:
        table.add_row("", Text(f"and {more} more, in the report", style="dim"))
    return table


def _closing(report: Report, reports: Mapping[str, Path]) -> list[tuple[str, RenderableType]]:
    told: list[tuple[str, RenderableType]] = []
    if reports:
        told.append(("report", Text(", ".join(plain(str(path)) for path in reports.values()))))
    command, note = report.next_command, report.next_note
    if command:
        told.append(("next", Text(plain(command), style="bold cyan")))
        if note:
            told.append(("", Text(plain(note))))
    elif note:
        told.append(("next", Text(plain(note))))
    return told
