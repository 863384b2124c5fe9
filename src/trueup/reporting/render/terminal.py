"""A document on one screen, as rich's renderables."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from trueup.reporting.document import (
    Block,
    Document,
    Fact,
    Facts,
    Line,
    Look,
    Mark,
    On,
    Paragraph,
    Section,
    Span,
    Table,
    Trend,
    visible,
)
from trueup.reporting.formatting import count, elide, plain
from trueup.reporting.render.terminal_table import MARGIN, grid_of
from trueup.reporting.render.terminal_text import COLOURS, styled, value_text

NARROWEST, WIDEST = 32, 120
LEAST_FITTED = 12
"""characters of a piece that is cut"""
TEXT_WIDTH = 100
STACKED = 64
"""columns below which a label stands above its lines"""


def screen(document: Document, *, width: int) -> RenderableType:
    """The whole screen, at most as wide as the terminal and as 120 columns."""
    width = max(NARROWEST, min(width, WIDEST))
    blocks = visible(document.blocks, On.SCREEN)
    labels = max([len(row.label) for row in _all_facts(blocks)], default=0) + 2
    parts: list[RenderableType] = [Text(""), headline(document.mark, document.headline)]
    for block in blocks:
        parts += [Text(""), *_drawn(block, width, labels)]
    return Group(*parts, Text(""))


def write(document: Document, path: Path) -> Path:
    """Write one screen as text, 100 columns wide."""
    stream = io.StringIO()
    console = Console(file=stream, width=TEXT_WIDTH, color_system=None)
    console.print(screen(document, width=TEXT_WIDTH), crop=False)
    lines = [line.rstrip() for line in stream.getvalue().strip("\n").splitlines()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="replace")
    return path


def headline(mark: Mark, text: str) -> Grid:
    """The first sentence, in bold, behind its glyph."""
    grid = Grid.grid()
    grid.add_column(width=MARGIN, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(f" {mark.glyph}", style=f"bold {COLOURS[mark.tone]}"), Text(plain(text), style="bold"))
    return grid


def _all_facts(blocks: Sequence[Block]) -> list[Fact]:
    found = []
    for block in blocks:
        if isinstance(block, Section):
            found += _all_facts(visible(block.blocks, On.SCREEN))
        elif isinstance(block, Facts):
            found += [row for row in block.rows if On.SCREEN in row.on]
    return found


def _drawn(block: Block, width: int, labels: int) -> list[RenderableType]:
    if isinstance(block, Facts):
        rows = [row for row in block.rows if On.SCREEN in row.on]
        stacked = width < STACKED
        room = width - (MARGIN + 2 if stacked else MARGIN + labels)
        return [_labelled([(row.label, _lines(row, room)) for row in rows], labels, stacked=stacked)]
    if isinstance(block, Table):
        return grid_of(block, width)
    if isinstance(block, Paragraph):
        if isinstance(block.line, Span) and block.line.look is Look.COMMAND:
            return [_whole(block.line)]
        return [Padding(styled(block.line), (0, 0, 0, MARGIN))]
    if isinstance(block, Section):
        inside = [_drawn(one, width, labels) for one in visible(block.blocks, On.SCREEN)]
        note = f"  {plain(block.note)}" if block.note else ""
        title = Text.assemble(" " * MARGIN, (plain(block.title), "bold"), (note, "dim"))
        return [title, *(part for parts in inside for part in parts)]
    return []


def _labelled(rows: Sequence[tuple[str, Sequence[Text]]], labels: int, *, stacked: bool) -> RenderableType:
    """Lines behind their labels; in a narrow terminal below them."""
    grid = Grid.grid()
    if stacked:
        grid.add_column(overflow="fold")
        for label, lines in rows:
            grid.add_row(Text(" " * MARGIN + label, style="dim"))
            for line in lines:
                grid.add_row(Padding(line, (0, 0, 0, MARGIN + 2)))
        return grid
    grid.add_column(width=MARGIN + labels, style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, lines in rows:
        for at, line in enumerate(lines):
            grid.add_row(" " * MARGIN + label if at == 0 else "", line)
    return grid


def _lines(row: Fact, room: int) -> list[Text]:
    limit = row.limit if row.limit is not None and len(row.lines) > row.limit else len(row.lines)
    lines = [_fitted(line, room) if row.fit else value_text(line) for line in row.lines[:limit]]
    if row.most is not None:
        lines = [_within(line, row.most * room - room // 4) for line in lines]
    if row.flow:
        lines = _flowed(lines, room)
    if len(row.lines) > limit:
        lines.append(Text(f"and {count(len(row.lines) - limit)} more", style="dim"))
    if row.note:
        lines[0].append(f"  {plain(row.note)}", style="dim")
    return lines


def _fitted(line: Line | Trend, room: int) -> Text:
    """A line cut to the room in its middle; of several pieces the last is cut."""
    text = value_text(line)
    if len(text) <= room or isinstance(line, Trend):
        return text
    ahead, last = (styled(line[:-1]), line[-1]) if isinstance(line, tuple) else (Text(), line)
    left = room - len(ahead)
    if left < LEAST_FITTED:
        return Text(elide(text.plain, room))
    look = styled(last)
    return ahead.append(elide(look.plain, left), style=look.spans[0].style if look.spans else "")


def _whole(line: Span) -> Text:
    """A line that is not folded, because it is copied."""
    text = Text(" " * MARGIN, no_wrap=True, overflow="ignore")
    return text.append_text(styled(line))


def _within(text: Text, most: int) -> Text:
    """A text of at most so many characters."""
    return text if len(text) <= most else Text(elide(text.plain, most), style=text.style)


def _flowed(pieces: Sequence[Text], room: int) -> list[Text]:
    """Pieces in as few lines as they fit into, two blanks apart; none is broken."""
    lines: list[Text] = []
    for piece in pieces:
        if lines and len(lines[-1]) + 2 + len(piece) <= room:
            lines[-1].append("  ").append_text(piece)
        else:
            lines.append(piece.copy())
    return lines
