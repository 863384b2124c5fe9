"""Draws any document: on a terminal, as a page, as a workbook, as markdown.

Each renderer is imported when it is asked for: a screen does not pay for a workbook.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from trueup.reporting.document import Document

_WRITERS = {".html": "html", ".xlsx": "xlsx", ".md": "markdown", ".txt": "terminal"}


def show(document: Document, console: Console) -> None:
    """Print one screen."""
    from trueup.reporting.render.terminal import screen

    console.print(screen(document, width=console.width), crop=False)


def write(document: Document, path: Path) -> Path:
    """Write it in the format of the suffix: ``.html``, ``.xlsx``, ``.md``, or ``.txt`` (one screen)."""
    written: Path = importlib.import_module(f"{__name__}.{_WRITERS[path.suffix]}").write(document, path)
    return written


__all__ = ["show", "write"]
