"""One screen that answers: do the runs agree, where do they part, how sure is that, what to do next."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from trueup.reporting.formatting import count, elide, number, plain, ratio, short_frame, short_site
from trueup.reporting.model import ComparisonLike, Report, Verdict, report_from
from trueup.reporting.screen import LABEL_WIDTH, MARGIN, facts, headline

GLYPHS = {"agree": ("✓", "green"), "differ": ("✗", "red"), "undecided": ("?", "yellow")}
STATUS_LOOK = {
    "origin": ("◆", "red"),
    "different": ("≠", "red"),
    "amplified": ("▲", "red"),
    "propagated": ("→", "magenta"),
    "undecided": ("?", "yellow"),
    "unmatched": ("∅", "yellow"),
    "within_noise": ("≈", "cyan"),
    "equal": ("=", "green"),
}
NUM_ROWS = 6
NARROWEST = 32
WIDE = 64
"""columns from which on a row shows its numbers"""
NUM_EVIDENCE = 3
MAX_LAYOUTS = 5
MAX_NOTES = 3
MAX_NOTE_LINES = 3


def print_summary(
    comparison: Report | ComparisonLike | Path, console: Console, *, reports: Mapping[str, Path] | None = None
) -> None:
    """Print the one screen; ``reports`` are the files written, by format."""
    console.print(screen(report_from(comparison), width=console.width, reports=reports or {}))


def to_json(summary: Mapping[str, Any]) -> str:
    """One JSON document, verdict first, in it outcome and site; NaN and infinities become null."""
    verdict = dict(summary.get("verdict") or {})
    ahead = ("outcome", "where", "owner", "step", "rank", "phase", "headline", "confidence", "exit_code")
    ordered = {key: verdict[key] for key in ahead if key in verdict}
    rest = {
        key: value for key, value in summary.items() if key not in ("verdict", "stacks", "depth", "modules")
    }
    document = {
        "verdict": ordered | {key: value for key, value in verdict.items() if key not in ordered},
        **rest,
    }
    text = json.dumps(_finite(document), ensure_ascii=False, allow_nan=False, indent=2, default=str)
    return text.encode("utf-8", "replace").decode("utf-8")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def screen(report: Report, *, width: int, reports: Mapping[str, Path]) -> RenderableType:
    """The whole screen as one renderable, at most 30 lines at 100 columns where there are no notes."""
    width = max(NARROWEST, min(width, 120))
    verdict = report.verdict
    glyph, colour = GLYPHS.get(verdict.outcome, GLYPHS["undecided"])
    parts: list[RenderableType] = [
        Text(""),
        headline(glyph, colour, verdict.headline),
        Text(""),
        facts(_verdict_facts(report, width)),
    ]
    table = _beyond(report, width)
    if table is not None:
        parts += [Text(""), table]
    parts += [Text(""), facts(_closing_facts(report, width, reports)), Text("")]
    return Group(*parts)


def _verdict_facts(report: Report, width: int) -> list[tuple[str, RenderableType]]:
    verdict, first, room = report.verdict, report.first(), width - MARGIN - LABEL_WIDTH - 1
    told: list[tuple[str, RenderableType]] = []
    if verdict.where:
        coordinates = [
            f"step {verdict.step}" if verdict.step is not None else "",
            f"rank {verdict.rank}" if verdict.rank is not None else "",
            plain(verdict.phase or ""),
        ]
        told.append(("where", Text(elide(plain(verdict.where), room), style="bold")))
        told.append(("", Text(" · ".join(part for part in coordinates if part))))
    for frame in report.frames(first, "target")[:1] if verdict.where else []:
        place, line = short_frame(plain(frame))
        told.append(
            (
                "source",
                Text.assemble(
                    place, ("  " if line else "", ""), (elide(line, room - len(place) - 2), "italic")
                ),
            )
        )
    if verdict.confidence is not None and verdict.outcome != "agree":
        told.append(("confidence", Text(str(verdict.confidence))))
    for index, sentence in enumerate(verdict.evidence[:NUM_EVIDENCE]):
        told.append(("because" if index == 0 else "", Text(plain(sentence))))
    if len(verdict.evidence) > NUM_EVIDENCE:
        told.append(
            ("", Text(f"and {len(verdict.evidence) - NUM_EVIDENCE} more, in the report", style="dim"))
        )
    if verdict.before:
        told.append(("before", Text(plain(verdict.before))))
    return told


def _beyond(report: Report, width: int) -> Table | None:
    rows = report.beyond(NUM_ROWS).to_dicts()
    if not rows:
        return None
    wide = width >= WIDE
    room = width - MARGIN - (39 if wide else 11)
    table = Table(box=None, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    table.add_column(
        " " * MARGIN + "beyond tolerance, as they ran", header_style="dim", no_wrap=True, width=room + MARGIN
    )
    if wide:
        table.add_column("phase", header_style="dim", no_wrap=True, width=10)
    for title, size in (("rel L2", 7), ("allowed", 7), ("times", 9))[0 if wide else 2 :]:
        table.add_column(title, justify="right", header_style="dim", no_wrap=True, width=size)
    for row in rows:
        look = STATUS_LOOK.get(str(row["status"]), STATUS_LOOK["different"])
        site = elide(short_site(plain(row["site"])), room)
        between = [plain(row["phase"]), number(row["rel_l2"]), number(row["tolerance"])] if wide else []
        times = Text(ratio(row["score"]), style="bold")
        table.add_row(Text.assemble((f" {look[0]} ", look[1]), site), *between, times)
    return table


def _closing_facts(
    report: Report, width: int, reports: Mapping[str, Path]
) -> list[tuple[str, RenderableType]]:
    room = width - MARGIN - LABEL_WIDTH - 1
    told: list[tuple[str, RenderableType]] = [("records", _tally(report, room))]
    for index, line in enumerate(_unmatched(report)):
        told.append(("unmatched" if index == 0 else "", line))
    said = [str(sentence) for sentence in report.summary.get("layouts") or []]
    for index, sentence in enumerate(said[:MAX_LAYOUTS]):
        told.append(("layout" if index == 0 else "", Text(plain(sentence))))
    if len(said) > MAX_LAYOUTS:
        told.append(("", Text(f"and {len(said) - MAX_LAYOUTS} more, in notes", style="dim")))
    told += _notes(report, room)
    told += [("judged by", Text(plain(line), style="dim")) for line in _tolerance(report)]
    if reports:
        folder = report.folder or next(iter(reports.values())).parent
        names = ", ".join(path.name if path.parent == folder else str(path) for path in reports.values())
        told.append(("reports", Text(plain(f"{folder}/  {names}"))))
    return told + _next(report.verdict.with_page(reports.get("html")))


def _next(verdict: Verdict) -> list[tuple[str, RenderableType]]:
    """The command, and on a line of its own what it is for: a command is copied."""
    lines = [Text(plain(verdict.next), style="bold cyan")] if verdict.next else []
    lines += [Text(plain(verdict.next_note))] if verdict.next_note else []
    return [("" if index else "next", line) for index, line in enumerate(lines)]


def _notes(report: Report, room: int) -> list[tuple[str, RenderableType]]:
    """The first notes, a few lines of each, and how many more there are; layouts have lines of their own."""
    layouts = {str(sentence) for sentence in report.summary.get("layouts") or []}
    notes = [str(note) for note in report.summary.get("notes") or [] if str(note) not in layouts]
    shown = [Text(elide(plain(note), MAX_NOTE_LINES * room - room // 4)) for note in notes[:MAX_NOTES]]
    if len(notes) > MAX_NOTES:
        more = len(notes) - MAX_NOTES
        shown.append(Text(f"and {count(more, 'more note')}, in the report and in --json", style="dim"))
    return [("note" if index == 0 else "", line) for index, line in enumerate(shown)]


def _tolerance(report: Report) -> list[str]:
    """Where tolerances come from, and the way to better ones."""
    origin = str((report.summary.get("tolerance") or {}).get("origin") or "")
    return [origin] if origin else []


def _tally(report: Report, room: int) -> Text:
    """How many records have which status; a line ends between two statuses, never inside one."""
    text = Text(count(int(report.counts.get("compared", 0))) + " compared")
    left = room - len(text)
    for status, total in report.status_counts().items():
        glyph, colour = STATUS_LOOK[status]
        words = f" {count(total)} {status.replace('_', ' ')}"
        needed = len(glyph) + len(words)
        if left < needed + 2:
            text.append("\n")
            left = room
        else:
            text.append("  ")
            left -= 2
        text.append(glyph, style=colour).append(words)
        left -= needed
    return text


def _unmatched(report: Report) -> list[Text]:
    groups = report.unmatched()
    if not groups:
        return []
    total = report.status_counts().get("unmatched") or sum(int(group["count"]) for group in groups)
    agree = (
        "all between sites that agree"
        if report.summary.get("bracketed")
        else "not all between sites that agree"
    )
    sentence = f"{count(total, 'record')} in {count(report.num_unmatched_groups(), 'group')}; {agree}"
    first = groups[0]
    where = f"{short_site(first['name'])} in {first['module'] or '(root)'}"
    example = f"{first['side']} only: {where}, {first['reason']}"
    return [Text(sentence), Text(plain(example), style="dim")]
