"""Tests of a shell's ``if``, decided where everything in them is known."""

from __future__ import annotations

from collections.abc import Sequence

from trueup.checklist.readers.shell_words import Statement, Variables, expanded_text
from trueup.checklist.settings import scalar

_NUMBERS = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
}


def holds(statement: Statement, variables: Variables) -> bool | None:
    """Whether the test of ``if [ ... ]`` holds; None where that cannot be known from the script."""
    words = [word for word, _ in statement.words[1:] if word not in ("then",)]
    words = [word for word in words if word not in ("[", "]", "[[", "]]", "test")]
    before = set(variables.missing)
    decided = _either(words, variables)
    variables.missing = before
    return decided


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
    variables.missing = set()
    texts = [expanded_text(word, variables) for word in words]
    if len(words) == 2 and words[0] in ("-z", "-n"):
        empty = bool(variables.missing) or not texts[1]
        return empty if words[0] == "-z" else not empty
    if variables.missing or any("$(" in text or "`" in text for text in texts):
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
