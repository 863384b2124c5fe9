"""Single lines on standard error, in colour on a terminal only."""

from __future__ import annotations

import os
import sys


def error_line(message: str) -> None:
    """``error: ...``, red."""
    _line("error:", message, colour="1;31")


def warning_line(message: str) -> None:
    """``warning: ...``, yellow."""
    _line("warning:", message, colour="1;33")


def hint_line(message: str) -> None:
    """``hint: ...``, dim."""
    _line("hint:", message, colour="2")


def note_line(message: str) -> None:
    """``trueup: ...``, bold; what trueup has to say beside the output of a captured program."""
    _line("trueup:", message, colour="1")


def _line(word: str, message: str, *, colour: str) -> None:
    if sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
        word = f"\x1b[{colour}m{word}\x1b[0m"
    print(word, " ".join(message.split()), file=sys.stderr, flush=True)
