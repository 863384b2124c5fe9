"""Environment variables and package versions: `env`, an .env file, `pip freeze`, or lines of both."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trueup.checklist.dialect import dialects
from trueup.checklist.expression import parsed
from trueup.checklist.settings import Document, Setting

_ASSIGNMENT = re.compile(r"""\s*(?:export\s+)?([A-Za-z_]\w*)=("[^"]*"|'[^']*'|[^\s#]*)\s*(#.*)?$""")
_PACKAGE = re.compile(r"\s*([A-Za-z0-9][\w.\-]*)\s*(?:===?|@)\s*([\w.+\-:/]+)\s*(#.*)?$")

_SPEAKS = re.compile(r"[:={}\[\]]\s|[:={}\[\]]$|^\s*--\w|^\s*\[")
"""a line of another form: a key of YAML, JSON or TOML, or a flag"""


def looks_like(text: str) -> bool:
    """Whether most lines are a variable or a version, and the others free text: no key of another form."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    other = [line for line in lines if not (_ASSIGNMENT.match(line) or _PACKAGE.match(line))]
    return len(other) < len(lines) - len(other) and not any(map(_SPEAKS.search, other))


def document(text: str, path: str) -> Document:
    """The variables and versions of a file."""
    found: dict[str, Setting] = {}
    free: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not (
            line.lstrip().startswith("#") or _ASSIGNMENT.match(line) or _PACKAGE.match(line)
        ):
            free.append(str(number))
        if match := _PACKAGE.match(line):
            name = match.group(1).lower().replace("-", "_")
            found[name] = Setting(name, match.group(2), f"{path}:{number}")
        elif match := _ASSIGNMENT.match(line):
            found[match.group(1)] = Setting(match.group(1), match.group(2).strip("\"'"), f"{path}:{number}")
    notes = (f"{path}: free text, not read: line {', '.join(free[:5])}",) if free else ()
    return Document(dialect="environment", path=path, settings=found, notes=notes, kind="environment")


def known(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """Those of the variables some canonical field reads."""
    keys = {name for text in dialects()["environment"].fields.values() for name in parsed(text).names}
    return {key: setting for key, setting in settings.items() if key in keys}
