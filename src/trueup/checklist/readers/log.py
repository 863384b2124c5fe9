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
_OBJECT = re.compile(r"<(?:function|bound method) (?:\w+\.)*(\w+)[^<>]*>|<[^<>]*>")
"""what Python prints of a function, or of an object without a value"""
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
            name, text = match.group(1), match.group(2).strip()
            held = _members(text) or {name: _value(text)}
            settings |= {key: Setting(key, value, f"{path}:{number}") for key, value in held.items()}
    if not settings:
        shown = next((line.strip()[:60] for _, line in lines if line.strip()), "nothing")
        raise ConfigError(
            f"{path}: its block of arguments has no line such as `num_layers ........ 24`; got {shown!r}"
        )
    data = {key: setting.value for key, setting in settings.items()}
    return SettingsDocument(dialect="megatron", path=path, settings=settings, data=data, kind="log")


def _members(text: str) -> dict[str, object]:
    """What ``namespace(num_layers=24, ...)`` holds, as Megatron prints a section of its YAML."""
    if not text.startswith("namespace("):
        return {}
    readable = _OBJECT.sub(lambda found: repr(found[1] or found[0]), text)
    try:
        call = ast.parse(readable, mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        return {}
    found: dict[str, object] = {}
    for one in call.keywords if isinstance(call, ast.Call) else ():
        part = ast.unparse(one.value)
        if one.arg is not None:
            try:
                found |= _members(part) or {one.arg: _plain(ast.literal_eval(one.value))}
            except (ValueError, TypeError):
                found[one.arg] = _value(part)
    return found


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _value(text: str) -> object:
    if text.startswith(("[", "(")):
        try:
            return list(ast.literal_eval(text))
        except (ValueError, SyntaxError, TypeError):
            return text
    member = _MEMBER.match(text)  # of an enumeration: AttnBackend.flash
    return member.group(1) if member else scalar(text)
