"""Tests of a shell's ``if``, decided where everything in them is known."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trueup.checklist.expression import NOTHING, Unset, parsed
from trueup.checklist.readers.shell_words import ShellStatement, Variables, expanded_text, open_in
from trueup.checklist.settings import scalar
from trueup.errors import ConfigError

_NAME = re.compile(r"(?<![\w${])(?!and\b|or\b)[A-Za-z_]\w*")
_UNSET = re.compile(r"\$\{\w+\}")
"""a variable nobody sets, which a test for emptiness takes for empty"""
_NUMBERS = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
}


def holds(statement: ShellStatement, variables: Variables) -> bool | None:
    """Whether the test of ``if [ ... ]`` holds; None where that cannot be known from the script."""
    words = [word for word, _ in statement.words[1:] if word not in ("then",)]
    if words and words[0].startswith("(("):
        return _arithmetic(" ".join(words), variables.aside())
    bare = [word for word in words if word not in ("[", "]", "[[", "]]", "test")]
    return _either(bare, variables.aside())


def _arithmetic(text: str, variables: Variables) -> bool | None:
    """``(( TP > 1 && PP == 2 ))``."""
    inside = text.strip().removeprefix("((").removesuffix("))").replace("&&", " and ").replace("||", " or ")
    filled = expanded_text(_NAME.sub(lambda match: f"${{{match.group()}}}", inside), variables)
    if open_in(filled):
        return None
    try:
        return bool(parsed(filled.replace("/", "//")).evaluate(NOTHING))
    except (ConfigError, Unset):
        return None


def _either(words: Sequence[str], variables: Variables) -> bool | None:
    return _joined([_both(part, variables) for part in _parts(words, ("||", "-o"))], settles=True)


def _both(words: Sequence[str], variables: Variables) -> bool | None:
    return _joined([_one(part, variables) for part in _parts(words, ("&&", "-a"))], settles=False)


def _joined(results: list[bool | None], *, settles: bool) -> bool | None:
    if settles in results:
        return settles
    return None if None in results else not settles


def _parts(words: Sequence[str], signs: tuple[str, ...]) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for word in words:
        if word in signs:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _one(words: list[str], variables: Variables) -> bool | None:
    if words[:1] == ["!"]:
        inner = _one(words[1:], variables)
        return None if inner is None else not inner
    texts = [expanded_text(word, variables) for word in words]
    if len(words) == 2 and words[0] in ("-z", "-n"):
        empty = not texts[1] or bool(_UNSET.fullmatch(texts[1]))
        return empty if words[0] == "-z" else not empty
    if any(map(open_in, texts)):
        return None
    if len(texts) == 1:
        return bool(texts[0]) and texts[0] != "false"
    if len(texts) != 3:
        return None
    left, sign, right = texts
    if sign in ("=", "==", "!="):
        return (left == right) is (sign != "!=")
    numbers = scalar(left), scalar(right)
    if sign in _NUMBERS and all(isinstance(number, (int, float)) for number in numbers):
        return bool(_NUMBERS[sign](*numbers))
    return None
