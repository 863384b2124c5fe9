"""A table on a screen: which columns have room, how wide each is, and what goes below its row."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import JustifyMethod, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from trueup.reporting.document import Cell, Column, On, Table, Trend, Value, shown
from trueup.reporting.formatting import count, elide
from trueup.reporting.render.terminal_text import COLOURS, styled, value_text

MARGIN, GAP = 3, 2
LEAST = 10
"""characters that a column which takes what is left has at least; others go before it gets less"""
LEAST_BESIDE = 24
"""characters for what else goes below its row"""


# In one piece: widths are shared out over all columns at once: no part stands alone.
def grid_of(table: Table, width: int) -> list[RenderableType]:
    """The table as renderables, none wider than ``width``."""
    rows = table.rows if table.limit is None else table.rows[: table.limit]
    chosen = [i for i, c in enumerate(table.columns) if On.SCREEN in c.on and c.least <= width]
    columns = [table.columns[i] for i in chosen]
    texts = [
        [_cell(table.columns[i], row.cells[i], loud=row.loud and i == 0) for i in chosen] for row in rows
    ]
    head = [Text(column.title, style="dim") for column in columns]
    lines = [head, *texts] if On.SCREEN in table.head else texts
    natural = [
        _wanted(c, max((_widest(line[at]) for line in lines), default=1)) for at, c in enumerate(columns)
    ]
    room = width - MARGIN - 1
    keep, below = _with_room(columns, natural, room)
    widths = _widths([columns[i] for i in keep], [natural[i] for i in keep], room)
    grid = _grid([columns[i] for i in keep], widths)
    parts: list[RenderableType] = [grid]
    if On.SCREEN in table.head:
        grid.add_row("", *(head[i] for i in keep))
    for row, line in zip(rows, texts, strict=True):
        if below and grid.row_count:
            grid = _grid([columns[i] for i in keep], widths)
            parts.append(grid)
        cells = [
            _fitted(columns[i], row.cells[chosen[i]], line[i], w) for i, w in zip(keep, widths, strict=True)
        ]
        mark = row.mark
        grid.add_row(Text(f" {mark.glyph}", style=f"bold {COLOURS[mark.tone]}") if mark else "", *cells)
        parts += [Padding(line[i], (0, 0, 0, MARGIN + 4)) for i in below if line[i]]
    hidden = len(table.rows) - len(rows)
    if hidden > 0:
        parts.append(Text(" " * MARGIN + (table.more or f"and {count(hidden)} more"), style="dim"))
    return parts


def _grid(columns: Sequence[Column], widths: Sequence[int]) -> Grid:
    grid = Grid.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=MARGIN - 1, no_wrap=True)
    for column, width in zip(columns, widths, strict=True):
        right = column.show is not None
        justify: JustifyMethod = "right" if right else "left"
        grid.add_column(width=width + GAP - 1, justify=justify, overflow="fold", no_wrap=right)
    return grid


def _cell(column: Column, given: Value | Cell, *, loud: bool) -> Text:
    cell = given if isinstance(given, Cell) else Cell(value=given)
    base = f"{'bold ' if loud else ''}{COLOURS[cell.tone]}".strip()
    text = value_text(shown(column, cell.value), base, column.width)
    if On.SCREEN in cell.on:
        for line in cell.under:
            text.append("\n").append_text(styled(line, "dim"))
    return text


def _widest(text: Text) -> int:
    return max(map(len, text.plain.split("\n")))


def _flexible(column: Column) -> bool:
    return column.grow or column.fit or column.clip


def _with_room(columns: Sequence[Column], natural: Sequence[int], room: int) -> tuple[list[int], list[int]]:
    """Columns that stand in the row, and those that go below it."""
    keep = list(range(len(columns)))
    below: list[int] = []
    for at in [at for at, column in enumerate(columns) if column.below]:
        others = sum(natural[i] + GAP for i in keep if i != at)
        if room - others - GAP < min(natural[at], LEAST_BESIDE):
            below.append(at)
            keep.remove(at)
    least = [min(n, LEAST) if _flexible(c) else n for n, c in zip(natural, columns, strict=True)]
    while len(keep) > 1 and sum(least[i] + GAP for i in keep) > room:
        fixed = [i for i in keep[1:] if not _flexible(columns[i])]
        keep.remove(fixed[-1] if fixed else keep[-1])
    return keep, below


def _wanted(column: Column, natural: int) -> int:
    """Characters that a column gets where there is room."""
    if column.width is None:
        return max(1, natural)
    return column.width if column.even else max(1, min(natural, column.width))


def _widths(columns: Sequence[Column], natural: Sequence[int], room: int) -> list[int]:
    widths = list(natural)
    room -= GAP * len(columns)
    open_ = [at for at, column in enumerate(columns) if _flexible(column)] or [0]
    left = room - sum(n for at, n in enumerate(natural) if at not in open_)
    for at in sorted(open_, key=lambda at: natural[at]):  # the shortest first: what it leaves, others get
        widths[at] = max(1, min(natural[at], left // len(open_)))
        left -= widths[at]
        open_ = open_[1:] or [at]
    return widths


def _fitted(column: Column, given: Value | Cell, text: Text, width: int) -> Text:
    """The text cut to its width where its column says so; bars are drawn anew."""
    value = given.value if isinstance(given, Cell) else given
    first, newline, rest = text.plain.partition("\n")
    if len(first) <= width:
        return text
    if isinstance(value, Trend):
        return value_text(value, width=width)
    if not (column.fit or column.clip):
        return text
    cut = Text(elide(first, width) if column.fit else first[: width - 1] + "…", style=text.style)
    if newline:
        cut.append(newline + rest, style="dim")
    return cut
