"""Environment variables and package versions: `env`, an .env file, lists of pip and conda, requirements, lock
files of uv and poetry, PyTorch's collect_env, the tables of npu-smi and nvidia-smi."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache

from trueup.checklist.dialect import dialects
from trueup.checklist.expression import parsed
from trueup.checklist.settings import Setting, SettingsDocument, Undecided

_ASSIGNMENT = re.compile(r"""\s*(?:export\s+)?([A-Za-z_]\w*)=("[^"]*"|'[^']*'|[^\s#]*)\s*(#.*)?$""")
_PACKAGE = re.compile(r"\s*([A-Za-z0-9][\w.\-]*)\s*(?:===?|@)\s*([\w.+\-:/]+)\s*(#.*)?$")

_RANGE = re.compile(
    r"\s*([A-Za-z0-9][\w.\-]*)\s*((?:>=|<=|~=|!=|>|<)\s*[\w.*+\-]+(?:\s*,\s*[<>=!~]+\s*[\w.*+\-]+)*)\s*(#.*)?$"
)
"""a requirement that several versions meet"""
_SMI = re.compile(r"\b(?:npu-smi \S+\s+Version:|Driver Version:)\s*(\d[\w.\-]*)")
"""the head of the table that npu-smi and nvidia-smi print"""

_SPEAKS = re.compile(r"[:={}\[\]]\s|[:={}\[\]]$|^\s*--\w|^\s*\[")
"""a line of another form: a key of YAML, JSON or TOML, or a flag"""


_VERSION = r"v?(\d+(?:\.[\w+\-]+)+)"
_COLUMNS = re.compile(rf"\s*([A-Za-z0-9][\w.\-]*)\s+{_VERSION}(?:\s+\S+){{0,3}}\s*$")
"""a line of `pip list` or `conda list`"""
_IGNORED = re.compile(
    r"\s*(#|Package\s+Version\s*$|[\s\-=]+$|-[rce]\s|--(requirement|constraint|editable|(extra-)?index-url"
    r"|find-links|trusted-host|no-binary|only-binary|no-index|pre|hash)\b)"
)
"""a remark, the head of `pip list`, and what requirements say of their sources"""
_WHEEL = re.compile(r"\s*([A-Za-z0-9][\w.\-]*)\s*@\s*\S*/[A-Za-z0-9_.]+?-(\d[\w.+]*)-\S*\.whl\S*\s*$")
"""of `pip freeze`, where a package was installed from a file"""
_REQUIREMENT = re.compile(
    r"^(\s*[\w.\-]+)\[[\w,\s\-]+\](?=\s*==)|\s*;\s*(python|sys|platform|os|extra)\w*\s.*$|\s*\\$"
)
"""extras, markers and a line that goes on"""
_FIELDS = re.compile(r"(?P<key>name|version)\s*[:=]\s*\"?(?P<value>[^\"\s]+)\"?\s*$", re.IGNORECASE)
_OF_LISTS = (
    (re.compile(r"^Name: \S+\nVersion: \S+", re.MULTILINE), _FIELDS),
    (re.compile(r"^\[\[package\]\]\s*$", re.MULTILINE), _FIELDS),
    (re.compile(r"^\[(pip3?|conda)\] ", re.MULTILINE), re.compile(r"\[(?:pip3?|conda)\] (?P<line>.+)")),
    (re.compile(r"^dependencies:\s*$", re.MULTILINE), re.compile(r"\s*- (?P<line>[\w.\-]+=.+)")),
)
"""how a list of another form begins (`pip show`, a lock file, collect_env, conda's file), and its lines"""
_CONDA = re.compile(r"^([\w.\-]+)=(\d[^=\s]*)(?:=\S*)?$")
_JOINED = re.compile(r";|&&")
_WORDS = re.compile(rf"\s*([A-Za-z][\w.\- ]*?)(?:[ _\-]version)?\s*[:=]?\s+{_VERSION}\s*$", re.IGNORECASE)
"""a line that a person wrote: ``CANN version: 8.0.RC3``"""


def looks_like(text: str) -> bool:
    """Whether most lines are a variable or a version, and the others free text: no key of another form.

    Lines of columns are versions where one names a package that some field reads: `lr 0.001` is none.
    """
    lines = [line for _, line in _lines(_as_freeze(text)) if line.strip() and not _IGNORED.match(line)]
    read = {line: _read(line) for line in lines}
    plain = [line for line in lines if _ASSIGNMENT.match(line) or _PACKAGE.match(line) or _RANGE.match(line)]
    if not plain and not any(pair[0] in _packages() for pair in read.values() if pair):
        return False
    other = [line for line in lines if read[line] is None]
    return len(other) < len(lines) - len(other) and not any(map(_SPEAKS.search, other))


def document(text: str, path: str) -> SettingsDocument:
    """The variables and versions of a file."""
    found: dict[str, Setting] = {}
    free: list[str] = []
    for number, line in _lines(_as_freeze(text)):
        if pair := _read(line):
            found[pair[0]] = Setting(pair[0], pair[1], f"{path}:{number}")
        elif line.strip() and not _IGNORED.match(line):
            free.append(str(number))
    notes = (f"{path}: free text, not read: line {', '.join(free[:5])}",) if free else ()
    return SettingsDocument(dialect="environment", path=path, settings=found, notes=notes, kind="environment")


def _as_freeze(text: str) -> str:
    """A list of another form as lines of `pip freeze`, each where it stands; any other text as it is."""
    if _SMI.search(text):
        drivers = (_SMI.search(line) for line in text.splitlines())
        return "\n".join(f"driver {found[1]}" if found else "" for found in drivers)
    line_of = next((line for head, line in _OF_LISTS if head.search(text)), None)
    if line_of is None:
        return "\n".join(_REQUIREMENT.sub(r"\1", line) for line in text.splitlines())
    found, name = [], ""
    for line in text.splitlines():
        match = line_of.match(line.strip() if line_of is _FIELDS else line)
        kept = ""
        if match is not None and line_of is _FIELDS:
            is_name = match["key"].lower() == "name"
            kept = "" if is_name or not name else f"{name}=={match['value']}"
            name = match["value"] if is_name else ""
        elif match is not None:
            kept = _CONDA.sub(r"\1==\2", match["line"].strip())
        found.append(kept)
    return "\n".join(found)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Numbered lines; several assignments of one line (``export A=1; export B=2``) one by one."""
    for number, written in enumerate(text.splitlines(), start=1):
        line = written.strip()  # expressions go back over blanks in front of every one of them
        parts = [part.strip() for part in _JOINED.split(line) if part.strip()]
        several = len(parts) > 1 or line.endswith(";")
        apart = several and all(_ASSIGNMENT.match(part) for part in parts)
        yield from ((number, part) for part in (parts if apart else [line]))


def _read(line: str) -> tuple[str, str | Undecided] | None:
    """Name and value of a line's variable or package; None of a remark or free text."""
    if _IGNORED.match(line):
        return None
    if match := _WHEEL.match(line) or _PACKAGE.match(line):
        return _package(match.group(1)), match.group(2)
    if match := _RANGE.match(line):
        return _package(match.group(1)), Undecided(f"{match.group(2)} is a range, and no version")
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
