"""Environment variables and package versions: `env`, an .env file, `pip freeze`, `pip list`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache

from trueup.checklist.dialect import dialects
from trueup.checklist.expression import parsed
from trueup.checklist.settings import Setting, SettingsDocument

_ASSIGNMENT = re.compile(r"""\s*(?:export\s+)?([A-Za-z_]\w*)=("[^"]*"|'[^']*'|[^\s#]*)\s*(#.*)?$""")
_PACKAGE = re.compile(r"\s*([A-Za-z0-9][\w.\-]*)\s*(?:===?|@)\s*([\w.+\-:/]+)\s*(#.*)?$")

_SPEAKS = re.compile(r"[:={}\[\]]\s|[:={}\[\]]$|^\s*--\w|^\s*\[")
"""a line of another form: a key of YAML, JSON or TOML, or a flag"""


_VERSION = r"v?(\d+(?:\.[\w+\-]+)+)"
_COLUMNS = re.compile(rf"\s*([A-Za-z0-9][\w.\-]*)\s+{_VERSION}(?:\s+\S+){{0,3}}\s*$")
"""a line of `pip list` or `conda list`"""
_IGNORED = re.compile(r"\s*(#|Package\s+Version\s*$|[\s\-=]+$)")
"""a remark, and the head of `pip list`"""
_JOINED = re.compile(r";|&&")
_WORDS = re.compile(rf"\s*([A-Za-z][\w.\- ]*?)(?:[ _\-]version)?\s*[:=]?\s+{_VERSION}\s*$", re.IGNORECASE)
"""a line that a person wrote: ``CANN version: 8.0.RC3``"""


def looks_like(text: str) -> bool:
    """Whether most lines are a variable or a version, and the others free text: no key of another form.

    Lines of columns are versions where one names a package that some field reads: `lr 0.001` is none.
    """
    lines = [line for _, line in _lines(text) if line.strip() and not _IGNORED.match(line)]
    read = {line: _read(line) for line in lines}
    plain = [line for line in lines if _ASSIGNMENT.match(line) or _PACKAGE.match(line)]
    if not plain and not any(pair[0] in _packages() for pair in read.values() if pair):
        return False
    other = [line for line in lines if read[line] is None]
    return len(other) < len(lines) - len(other) and not any(map(_SPEAKS.search, other))


def document(text: str, path: str) -> SettingsDocument:
    """The variables and versions of a file."""
    found: dict[str, Setting] = {}
    free: list[str] = []
    for number, line in _lines(text):
        if pair := _read(line):
            found[pair[0]] = Setting(pair[0], pair[1], f"{path}:{number}")
        elif line.strip() and not _IGNORED.match(line):
            free.append(str(number))
    notes = (f"{path}: free text, not read: line {', '.join(free[:5])}",) if free else ()
    return SettingsDocument(dialect="environment", path=path, settings=found, notes=notes, kind="environment")


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Numbered lines; several assignments of one line (``export A=1; export B=2``) one by one."""
    for number, written in enumerate(text.splitlines(), start=1):
        line = written.strip()  # expressions go back over blanks in front of every one of them
        parts = [part.strip() for part in _JOINED.split(line) if part.strip()]
        several = len(parts) > 1 or line.endswith(";")
        apart = several and all(_ASSIGNMENT.match(part) for part in parts)
        yield from ((number, part) for part in (parts if apart else [line]))


def _read(line: str) -> tuple[str, str] | None:
    """Name and value of a line's variable or package; None of a remark or free text."""
    if _IGNORED.match(line):
        return None
    if match := _PACKAGE.match(line):
        return _package(match.group(1)), match.group(2)
    if match := _ASSIGNMENT.match(line):
        return match.group(1), match.group(2).strip("\"'")
    if (match := _WORDS.match(line)) and _package(match.group(1)) in _packages():
        return _package(match.group(1)), match.group(2)
    if match := _COLUMNS.match(line):
        return _package(match.group(1)), match.group(2)
    return None


def _package(name: str) -> str:
    return re.sub(r"[\s\-]+", "_", name.strip().lower())


@cache
def _packages() -> frozenset[str]:
    """Names of packages that some canonical field reads."""
    return frozenset(name for name in _names() if name == name.lower())


def _names() -> Iterator[str]:
    for text in dialects()["environment"].fields.values():
        yield from parsed(text).names


def known(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """Those of the variables some canonical field reads."""
    keys = set(_names())
    return {key: setting for key, setting in settings.items() if key in keys}
