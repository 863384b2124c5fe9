"""A table on a screen: which columns have room, how wide each is, and what goes below its row."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import JustifyMethod, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from trueup.reporting.document import Cell, Column, On, Row, Table, shown
from trueup.reporting.formatting import count, elide
from trueup.reporting.render.terminal_text import COLOURS, styled, value_text

MARGIN, GAP = 3, 2
LEAST = 14
"""characters that a column which takes what is left has at least; others go before it gets less"""
LEAST_BESIDE = 30
"""characters for what else goes below its row"""


def grid_of(table: Table, width: int) -> list[RenderableType]:
    """The table as renderables, none wider than ``width``."""
    limit = len(table.rows) if table.limit is None else table.limit
    rows = table.rows[:limit]
    chosen = [i for i, c in enumerate(table.columns) if On.SCREEN in c.on and c.least <= width]
    texts = [[_cell(table.columns[i], row, i) for i in chosen] for row in rows]
    columns = [table.columns[i] for i in chosen]
    head = [Text(column.title, style="dim") for column in columns] if On.SCREEN in table.head else None
    room = width - MARGIN - 1
    keep, below = _with_room(columns, texts, head, room)
    widths = _widths(
        [columns[i] for i in keep],
        [[line[i] for i in keep] for line in texts],
        head and [head[i] for i in keep],
        room,
    )
    parts: list[RenderableType] = []
    lines = [(None, head)] if head is not None else []
    for mark, cells in [*lines, *zip((row.mark for row in rows), texts, strict=True)]:
        if not parts or below:
            grid = _grid([columns[i] for i in keep], widths)
            parts.append(grid)
        glyph = Text(f" {mark.glyph}", style=f"bold {COLOURS[mark.tone]}") if mark else Text("")
        grid.add_row(glyph, *[_cut(columns[i], cells[i], w) for i, w in zip(keep, widths, strict=True)])
        parts += [Padding(cells[i], (0, 0, 0, MARGIN + 4)) for i in below if cells is not head and cells[i]]
    hidden = len(table.rows) - len(rows)
    if hidden > 0:
        more = table.more or f"and {count(hidden)} more"
        parts.append(Text(" " * MARGIN + more, style="dim"))
    return parts


def _grid(columns: Sequence[Column], widths: Sequence[int]) -> Grid:
    grid = Grid.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=MARGIN - 1, no_wrap=True)
    for column, width in zip(columns, widths, strict=True):
        right = column.show is not None
        justify: JustifyMethod = "right" if right else "left"
        grid.add_column(width=width + GAP - 1, justify=justify, overflow="fold", no_wrap=right)
    return grid


def _cell(column: Column, row: Row, at: int) -> Text:
    given = row.cells[at]
    cell = given if isinstance(given, Cell) else Cell(value=given)
    value = shown(column, cell.value)
    base = COLOURS[cell.tone]
    if row.loud and at == 0:
        base = f"bold {base}".strip()
    text = value_text(value, base, column.width)
    if On.SCREEN in cell.on:
        for line in cell.under:
            text.append("\n").append_text(styled(line, "dim"))
    return text


def _flexible(column: Column) -> bool:
    return column.grow or column.fit or column.clip


def _natural(texts: Sequence[Sequence[Text]], head: Sequence[Text] | None, at: int) -> int:
    cells = [line[at] for line in texts] + ([head[at]] if head is not None else [])
    return max([len(part) for text in cells for part in text.plain.split("\n")], default=0)


def _with_room(
    columns: Sequence[Column], texts: Sequence[Sequence[Text]], head: Sequence[Text] | None, room: int
) -> tuple[list[int], list[int]]:
    """Columns that stand in the row, and those that go below it."""
    natural = [_natural(texts, head, at) for at in range(len(columns))]
    least = [
        min(n, c.width or n, LEAST_BESIDE if c.below else LEAST) if _flexible(c) else min(n, c.width or n)
        for n, c in zip(natural, columns, strict=True)
    ]
    keep = list(range(len(columns)))
    below: list[int] = []
    while len(keep) > 1 and sum(least[i] for i in keep) + GAP * len(keep) > room:
        lower = [i for i in keep if columns[i].below]
        if lower:
            below.insert(0, lower[-1])
            keep.remove(lower[-1])
            continue
        fixed = [i for i in keep[1:] if not _flexible(columns[i])]
        keep.remove(fixed[-1] if fixed else keep[-1])
    return keep, below


def _widths(
    columns: Sequence[Column], texts: Sequence[Sequence[Text]], head: Sequence[Text] | None, room: int
) -> list[int]:
    natural = [_natural(texts, head, at) for at in range(len(columns))]
    natural = [
        max(1, c.width or n if c.even else min(n, c.width or n))
        for n, c in zip(natural, columns, strict=True)
    ]
    room -= GAP * len(columns)
    open_ = [at for at, column in enumerate(columns) if _flexible(column)] or [0]
    left = room - sum(n for at, n in enumerate(natural) if at not in open_)
    for at in sorted(open_, key=lambda at: natural[at]):  # the shortest first: what it leaves, others get
        natural[at] = max(1, min(natural[at], left // len(open_)))
        left -= natural[at]
        open_ = open_[1:] or [at]
    return natural


def _cut(column: Column, text: Text, width: int) -> Text:
    first, newline, rest = text.plain.partition("\n")
    if len(first) <= width or not (column.fit or column.clip):
        return text
    shorter = elide(first, width) if column.fit else first[: width - 1] + "…"
    cut = Text(shorter, style=text.style)
    if newline:
        cut.append(newline + rest, style="dim")
    return cut
