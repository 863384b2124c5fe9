"""The block of arguments at the head of a Megatron log, read without reading the whole log."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from trueup.checklist.settings import Setting, SettingsDocument, scalar
from trueup.errors import ConfigError

_BEGIN = re.compile(r"-{4,} arguments -{4,}")
_END = re.compile(r"-{4,} end of arguments -{4,}")
_LINE = re.compile(r"(?:.*?[\]:)>|]\s*)?\s*([A-Za-z_]\w*)\s\.{2,}\s(.*)$")
"""``  name ...... value``, behind what a launcher puts before each line: ``[default0]:``, ``0: ``, a time"""
_MEMBER = re.compile(r"[A-Z]\w*\.(\w+)$")
_HEAD_LINES = 20_000
_FEWEST = 3


def looks_like_file(path: Path) -> bool:
    """Whether a large file is a log with such a block."""
    return arguments_of(path) is not None


def arguments_of(path: Path) -> list[tuple[int, str]] | None:
    """The numbered lines of the block, or None where the file has none in its first 20,000 lines."""
    lines: list[tuple[int, str]] = []
    inside = False
    with path.open(encoding="utf-8", errors="replace") as stream:
        for number, line in enumerate(stream, start=1):
            if number > _HEAD_LINES and not inside:
                return None
            if _END.search(line):
                return lines
            if inside:
                lines.append((number, line.rstrip("\n")))
            elif _BEGIN.search(line):
                inside = True
    return lines if inside else None


def bare_arguments(text: str) -> list[tuple[int, str]] | None:
    """The numbered lines of arguments that were copied without the lines around them; None where few are."""
    lines = list(enumerate(text.splitlines(), start=1))
    found = [(number, line) for number, line in lines if _LINE.match(line)]
    return (
        found
        if len(found) >= _FEWEST and len(found) * 2 > len([1 for _, line in lines if line.strip()])
        else None
    )


def document(lines: list[tuple[int, str]], path: str) -> SettingsDocument:
    """The arguments of a log as a document.

    Raises:
        ConfigError: none of the lines is ``name ..... value``.
    """
    settings: dict[str, Setting] = {}
    for number, line in lines:
        match = _LINE.match(line)
        if match:
            settings[match.group(1)] = Setting(
                match.group(1), _value(match.group(2).strip()), f"{path}:{number}"
            )
    if not settings:
        shown = next((line.strip()[:60] for _, line in lines if line.strip()), "nothing")
        raise ConfigError(
            f"{path}: its block of arguments has no line such as `num_layers ........ 24`; got {shown!r}"
        )
    data = {key: setting.value for key, setting in settings.items()}
    return SettingsDocument(dialect="megatron", path=path, settings=settings, data=data, kind="log")


def _value(text: str) -> object:
    if text.startswith(("[", "(")):
        try:
            return list(ast.literal_eval(text))
        except (ValueError, SyntaxError, TypeError):
            return text
    member = _MEMBER.match(text)  # of an enumeration: AttnBackend.flash
    return member.group(1) if member else scalar(text)
