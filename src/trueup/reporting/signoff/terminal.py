"""A sign-off on the screen: the decision, every item by part, what is not shown and how to show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trueup.accepting.item import VOUCH
from trueup.reporting.formatting import plain
from trueup.reporting.signoff import OUTCOMES, STATES, items_of

_COLOURS = {"passed": "green", "failed": "red", "warning": "yellow", "not shown": "dim"}
_TONES = {"accepted": "green", "refused": "red", "undecided": "yellow"}
_NUM_EVIDENCE = 2
_MARGIN = 3


def print_signoff(
    document: Mapping[str, Any],
    console: Console,
    *,
    reports: Mapping[str, Path] | None = None,
    missing: Sequence[str] = (),
) -> None:
    """Print the document of signoff.json; ``reports`` are files written, ``missing`` why others were not."""
    console.print(screen(document, width=console.width, reports=reports or {}, missing=missing))


def screen(
    document: Mapping[str, Any], *, width: int, reports: Mapping[str, Path], missing: Sequence[str]
) -> RenderableType:
    """The whole screen as one renderable."""
    width = max(72, min(width, 130))
    glyph, _ = OUTCOMES[document["outcome"]]
    colour = _TONES[document["outcome"]]
    parts: list[RenderableType] = [
        Text(""),
        Text.assemble((f" {glyph} ", f"bold {colour}"), (plain(document["headline"]), "bold")),
    ]
    for part in document["parts"]:
        if part["items"]:
            parts += [Text(""), Text(f"   {part['title']}", style="bold"), _part(part, width)]
    parts += [Text(""), _closing(document, reports, missing), Text("")]
    parts.append(Padding(Text(document["standard"], style="dim"), (0, 0, 0, _MARGIN)))
    return Group(*parts, Text(""))


def _part(part: Mapping[str, Any], width: int) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    rest = width - _MARGIN - 6
    table.add_column(width=_MARGIN)
    table.add_column(width=rest * 2 // 5, overflow="fold")
    table.add_column(width=rest - rest * 2 // 5, overflow="fold")
    for item in part["items"]:
        glyph, _ = STATES[item["state"]]
        colour = _COLOURS[item["state"]]
        loud = item["state"] in ("failed", "warning")
        measured = Text(plain(item["measured"]), style="bold" if item["state"] == "failed" else "")
        if loud:
            measured.append(f"\nwanted {plain(item['threshold'])}", style="dim")
            for sentence in item["evidence"][:_NUM_EVIDENCE]:
                measured.append(f"\n{plain(sentence)}", style="dim")
        elif item["state"] == "not shown":
            measured.stylize("dim")
        table.add_row(
            Text(f" {glyph} ", style=f"bold {colour}"),
            Text(plain(item["title"]), style="bold" if item["state"] == "failed" else ""),
            measured,
        )
    return table


def _closing(document: Mapping[str, Any], reports: Mapping[str, Path], missing: Sequence[str]) -> Table:
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=_MARGIN + 11, style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    counts = [f"{number} {state}" for state, number in document["counts"].items() if number]
    grid.add_row("   items", Text(", ".join(counts)))
    open_ = [item for item in items_of(document) if item["state"] == "not shown"]
    ways: dict[str, list[str]] = {}
    for item in sorted(open_, key=lambda item: not item["binding"]):
        how, _, vouched = item["how"].partition(VOUCH)
        ways.setdefault(how, []).append(vouched)
    for number, (how, every) in enumerate(ways.items()):
        vouchable = [key for key in every if key]
        num = f"  ({len(every)} items)" if len(every) > 1 else ""
        words = Text.assemble((plain(how), "cyan"), (num, "dim"))
        if vouchable:
            some = f" for {len(vouchable)} of them" if len(vouchable) < len(every) else ""
            words.append(f"{VOUCH}{','.join(vouchable)}{some}", style="cyan")
        grid.add_row("   to show" if number == 0 else "", words)
    if reports:
        grid.add_row("   report", Text(", ".join(plain(str(path)) for path in reports.values())))
    for text in missing:
        grid.add_row("   left out", Text(plain(text)))
    return grid
