"""Environment variables and package versions: `env`, an .env file, `pip freeze`, or lines of both."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trueup.checklist.dialect import dialects
from trueup.checklist.expression import parsed
from trueup.checklist.settings import Document, Setting

_ASSIGNMENT = re.compile(r"""\s*(?:export\s+)?([A-Za-z_]\w*)=("[^"]*"|'[^']*'|[^\s#]*)\s*(#.*)?$""")
_PACKAGE = re.compile(r"\s*([A-Za-z0-9][\w.\-]*)\s*(?:===?|@)\s*([\w.+\-:/]+)\s*(#.*)?$")


def looks_like(text: str) -> bool:
    """Whether every line is a variable, a version, a remark or blank."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return bool(lines) and all(_ASSIGNMENT.match(line) or _PACKAGE.match(line) for line in lines)


def document(text: str, path: str) -> Document:
    """The variables and versions of a file."""
    found: dict[str, Setting] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _PACKAGE.match(line):
            name = match.group(1).lower().replace("-", "_")
            found[name] = Setting(name, match.group(2), f"{path}:{number}")
        elif match := _ASSIGNMENT.match(line):
            found[match.group(1)] = Setting(match.group(1), match.group(2).strip("\"'"), f"{path}:{number}")
    return Document(dialect="environment", path=path, settings=found, kind="environment")


def known(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """Those of the variables some canonical field reads."""
    keys = {name for text in dialects()["environment"].fields.values() for name in parsed(text).names}
    return {key: setting for key, setting in settings.items() if key in keys}
