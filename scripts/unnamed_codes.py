"""Lists the codes that no test names, by the module that concludes with them, and those that no module does.

A code that no test names is rendered with sample facts, and nobody has asked whether it is true of anything.
``python scripts/unnamed_codes.py`` prints both lists; ``tests/scripts/test_unnamed_codes.py`` keeps the first
from growing and the second empty.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import trueup.types.codes  # noqa: F401 - every room is imported
from trueup.types.codes.base import Code, all_codes, code_from

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "trueup"
_WORDS = (SOURCE / "wording", SOURCE / "types" / "codes")
"""what names every code"""
_ROOMS: dict[str, type[Code]] = {room.__name__: room for room in Code.__subclasses__()}
_IMPORT = re.compile(r"from trueup\.types\.codes[\w.]* import (\([^)]*\)|.*)")
_IMPORTED = re.compile(r"(\w+)(?: as (\w+))?")
_MEMBER = re.compile(r"\b(\w+)\.([A-Z][A-Z0-9_]+)\b")
_VALUE = re.compile(r"[a-z_]+(?:\.[a-z0-9_]+)+")


@cache
def codes_of_source() -> Mapping[Code, list[str]]:
    """Code -> modules below ``src/trueup`` that name it, in order; data files beside them too."""
    files = (path for path in SOURCE.rglob("*") if not any(path.is_relative_to(words) for words in _WORDS))
    return _named(files, SOURCE)


@cache
def codes_of_tests() -> Mapping[Code, list[str]]:
    """Code -> files of tests that name it."""
    return _named((ROOT / "tests").rglob("*.py"), ROOT / "tests")


def unnamed() -> Mapping[str, list[Code]]:
    """The first module that concludes with them -> codes that no test names."""
    tested, source = codes_of_tests(), codes_of_source()
    found: dict[str, list[Code]] = defaultdict(list)
    for code in all_codes():
        if code not in tested:
            found[source.get(code, ["(no module)"])[0]].append(code)
    return dict(sorted(found.items()))


def dead() -> list[Code]:
    """Codes that nothing but the catalogue names."""
    source = codes_of_source()
    return [code for code in all_codes() if code not in source]


def _named(files: Iterator[Path], base: Path) -> Mapping[Code, list[str]]:
    found: dict[Code, list[str]] = defaultdict(list)
    for path in sorted(files):
        if path.suffix == ".py":
            codes = set(_in_python(path.read_text(encoding="utf-8")))
        elif path.suffix in (".yaml", ".json"):
            codes = set(_values(path.read_text(encoding="utf-8")))
        else:
            continue
        for code in codes:
            found[code].append(path.relative_to(base).as_posix())
    return found


def _in_python(text: str) -> Iterator[Code]:
    """Codes as members of their room, under the name that the module gives it, and as values."""
    names: dict[str, type[Code]] = {}
    for imported in _IMPORT.findall(text):
        for name, alias in _IMPORTED.findall(imported):
            if name in _ROOMS:
                names[alias or name] = _ROOMS[name]
    for name, member in _MEMBER.findall(text) if names else ():
        if name in names and member in names[name].__members__:
            yield names[name][member]
    yield from _values(text)


def _values(text: str) -> Iterator[Code]:
    for value in _VALUE.findall(text):
        try:
            yield code_from(value)
        except KeyError:
            continue


def main() -> None:
    """Print what no test names, and what no module does."""
    groups = unnamed()
    for module, codes in groups.items():
        print(f"{module}: {', '.join(code.value for code in codes)}")
    total, left = len(list(all_codes())), sum(map(len, groups.values()))
    print(f"\n{total} codes, {total - left} named in tests, {left} not; {len(dead())} that no module names")


if __name__ == "__main__":
    main()
