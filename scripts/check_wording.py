"""Holds what people read to the glossary (scripts/glossary.yaml) and to spelling (codespell).

Of Python files only text counts: strings, docstrings and comments. ``--list`` counts matches everywhere in
``src``, ``docs`` and the README, which shows what is left to rewrite.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
GLOSSARY = ROOT / "scripts" / "glossary.yaml"
READ = {".py", ".md", ".yaml", ".j2", ".js", ".html"}
EVERYWHERE = ("src", "docs", "README.md", "CONTRIBUTING.md")
TEXT = (tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING))


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """One phrase that a reader would not expect."""

    path: Path
    line: int
    phrase: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.phrase!r}; write: {self.instead}"


def main() -> int:
    """Print every match; 1 where there is one."""
    glossary = yaml.safe_load(GLOSSARY.read_text(encoding="utf-8"))
    phrases = [(re.compile(one["pattern"], re.IGNORECASE), one["instead"]) for one in glossary["phrases"]]
    if "--list" in sys.argv[1:]:
        left = Counter(match.path.relative_to(ROOT).parent for match in matches(EVERYWHERE, phrases))
        for folder, number in left.most_common():
            print(f"{number:5}  {folder}")
        return 0
    found = list(matches(glossary["checked"], phrases))
    for match in found:
        print(match)
    return 1 if found or not is_spelled() else 0


def matches(
    places: tuple[str, ...] | list[str], phrases: list[tuple[re.Pattern[str], str]]
) -> Iterator[Match]:
    """Every match in the text of the files below some places."""
    for path in files(places):
        for number, text in readable_text(path):
            for pattern, instead in phrases:
                for found in pattern.finditer(text):
                    line = number + text.count("\n", 0, found.start())
                    yield Match(path=path, line=line, phrase=found[0], instead=instead)


def files(places: tuple[str, ...] | list[str]) -> Iterator[Path]:
    """Text files below some places, in order."""
    for place in places:
        path = ROOT / place
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (one for one in found if one.is_file() and one.suffix in READ)


def readable_text(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of a file: of Python its strings and comments, of others all of it."""
    if path.suffix != ".py":
        yield 1, path.read_text(encoding="utf-8")
        return
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type in TEXT:
                yield token.start[0], token.string


def is_spelled() -> bool:
    """Whether codespell, with the words of pyproject.toml, finds nothing."""
    program = Path(sys.executable).with_name("codespell")
    command = str(program) if program.exists() else shutil.which("codespell")
    if command is None:
        print("codespell is not installed: spelling was not checked")
        return os.environ.get("CI") != "true"
    return subprocess.run([command, *EVERYWHERE, "CHANGELOG.md"], cwd=ROOT, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
