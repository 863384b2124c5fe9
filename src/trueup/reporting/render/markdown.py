"""A document as markdown: to be filed, or pasted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

import trueup
from trueup.reporting.document import (
    Block,
    Cell,
    Column,
    Document,
    Facts,
    Line,
    Look,
    On,
    Paragraph,
    Row,
    Section,
    Sources,
    Span,
    Table,
    Tasks,
    Tone,
    Value,
    shown,
    visible,
    words,
)
from trueup.reporting.formatting import plain


def write(document: Document, path: Path) -> Path:
    """Write the text."""
    word = "" if document.headline.startswith(document.mark.words) else f"**{document.mark.words}.** "
    made = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    lines = [
        f"# {_safe(document.title)}",
        "",
        f"{word}{_safe(document.headline)} {_safe(document.lede)}".strip(),
        "",
        f"Made by trueup {trueup.__version__} on {made}.",
    ]
    for block in visible(document.blocks, On.TEXT):
        lines += ["", *_block(block, 2)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="replace")
    return path


def _block(block: Block, level: int) -> Iterator[str]:
    if isinstance(block, Section):
        yield f"{'#' * level} {_safe(block.title)}{f' ({_safe(block.note)})' if block.note else ''}"
        if block.lead:
            yield from ("", _safe(block.lead))
        if block.link:
            yield from ("", f"Full report: [{block.link}]({block.link})")
        for one in visible(block.blocks, On.TEXT):
            yield from ("", *_block(one, level + 1))
    elif isinstance(block, Table):
        yield from _table(block)
    elif isinstance(block, Facts):
        for row in (row for row in block.rows if On.TEXT in row.on):
            note = f" ({_safe(row.note)})" if row.note else ""
            yield from (f"- {_safe(row.label)}: {_line(line)}{note}" for line in row.lines if words(line))
    elif isinstance(block, Tasks):
        yield from (f"- [ ] {_line(line)}" for line in block.lines)
    elif isinstance(block, Paragraph):
        yield _line(block.line)
    elif isinstance(block, Sources):
        yield from (f"- {one.side}: {_safe(one.place)} `{plain(one.code)}`" for one in block.items)


def _table(table: Table) -> Iterator[str]:
    chosen = [i for i, column in enumerate(table.columns) if On.TEXT in column.on]
    marked = any(row.mark for row in table.rows)
    head = [table.columns[i].title for i in chosen] + (["result"] if marked else [])
    yield _row(head)
    yield _row(["---"] * len(head))
    for row in table.rows:
        cells = [_cell(table.columns[i], row.cells[i]) for i in chosen]
        yield _row(cells + ([_mark(row)] if marked else []))


def _mark(row: Row) -> str:
    if row.mark is None:
        return ""
    return f"**{row.mark.words}**" if row.mark.tone is Tone.BAD else row.mark.words


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(column: Column, given: Value | Cell) -> str:
    cell = given if isinstance(given, Cell) else Cell(value=given)
    value = shown(column, cell.value)
    lines = [words(value), *(map(words, cell.under) if On.TEXT in cell.on else [])]
    return "; ".join(_safe(line) for line in lines if line)


def _line(line: Line | object) -> str:
    if isinstance(line, Span) and line.look in (Look.COMMAND, Look.CODE):
        return f"`{plain(line.text)}`"
    if isinstance(line, tuple):
        return "".join(map(_line, line))
    return _safe(words(line)) if isinstance(line, (str, Span)) else ""


def _safe(text: str) -> str:
    """Text that is not markup and does not end a cell."""
    return plain(text.replace("\n", " ")).replace("|", "\\|").replace("<", "&lt;")
