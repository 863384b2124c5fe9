"""What every summary in a terminal is built of: a headline, facts under labels."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from trueup.reporting.formatting import plain

MARGIN = 3
LABEL_WIDTH = 11


def headline(glyph: str, colour: str, said: str) -> Table:
    """The first sentence, in bold, behind its glyph."""
    grid = Table.grid()
    grid.add_column(width=MARGIN, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(f" {glyph}", style=f"bold {colour}"), Text(plain(said), style="bold"))
    return grid


def facts(told: Iterable[tuple[str, RenderableType]]) -> Table:
    """Values behind their labels."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=MARGIN + LABEL_WIDTH, style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, value in told:
        grid.add_row(" " * MARGIN + label, value)
    return grid
