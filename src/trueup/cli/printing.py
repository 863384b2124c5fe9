"""What the command line prints: one line on standard error, a JSON document, a program's redirected
output."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

NonFinite = Literal["keep", "null", "text"]
_WIDTH_IN_A_FILE = 240


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
    """``trueup: ...``, bold; messages of trueup beside the output of a captured program."""
    _line("trueup:", message, colour="1")


def notes(*, quiet: bool) -> Callable[[str], None]:
    """``note_line``, or nothing."""
    return _silent if quiet else note_line


def print_json(document: object, *, non_finite: NonFinite = "keep") -> None:
    """One document on standard output."""
    print(json_text(document, non_finite=non_finite))


def json_text(document: object, *, non_finite: NonFinite = "keep") -> str:
    """A document as indented JSON; NaN and infinities as they are, as null, or as text."""
    plain = document if non_finite == "keep" else _strict(document, as_text=non_finite == "text")
    return json.dumps(plain, ensure_ascii=False, allow_nan=non_finite == "keep", indent=2, default=str)


def table_width() -> int | None:
    """Columns of a table: the terminal's, more in a file."""
    return None if sys.stdout.isatty() else _WIDTH_IN_A_FILE


@contextmanager
def stdout_to_stderr(*, active: bool = True) -> Iterator[None]:
    """What a program prints goes to standard error: standard output is for the JSON document alone."""
    with _stdout_to(2) if active else _unchanged():
        yield


@contextmanager
def stdout_to_file(log: Path) -> Iterator[None]:
    """What a program prints goes to ``log``, so that the screen holds the verdict alone; its errors still
    show."""
    with log.open("ab") as file, _stdout_to(file.fileno()):
        yield
    if log.stat().st_size == 0:
        log.unlink()


@contextmanager
def _stdout_to(descriptor: int) -> Iterator[None]:
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(descriptor, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def _unchanged() -> Iterator[None]:
    yield


def _strict(value: object, *, as_text: bool) -> object:
    """Without numbers that JSON does not know."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value) if as_text else None
    if isinstance(value, Mapping):
        return {key: _strict(part, as_text=as_text) for key, part in value.items()}
    return [_strict(part, as_text=as_text) for part in value] if isinstance(value, (list, tuple)) else value


def _silent(sentence: str) -> None:
    """With --quiet."""


def _line(word: str, message: str, *, colour: str) -> None:
    if sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
        word = f"\x1b[{colour}m{word}\x1b[0m"
    print(word, " ".join(message.split()), file=sys.stderr, flush=True)
