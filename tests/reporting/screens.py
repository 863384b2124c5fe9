"""A document as the lines of a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from trueup.reporting.document import Document
from trueup.reporting.render import show


def lines_of(document: Document, width: int = 100, *, colour: bool = False) -> list[str]:
    """What is printed, a line each, without blanks at the ends."""
    stream = io.StringIO()
    system = "truecolor" if colour else None
    show(document, Console(file=stream, width=width, force_terminal=colour, color_system=system))
    return [line.rstrip() for line in stream.getvalue().splitlines()]
