"""Tests of a shell's ``if``, decided where everything in them is known."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence

from trueup.checklist.readers.shell_words import CHANGING, Variables, expanded_text, open_in
from trueup.checklist.settings import scalar

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


def holds(words: Sequence[str], variables: Variables) -> bool | None:
    """Whether a test (``[ ... ]``, ``[[ ... ]]``, ``test ...``) holds; None where it is left open."""
    bare = [word for word in words[1:] if word not in ("]", "]]")]
    if "(" in bare or ")" in bare:
        return None
    return _either(bare, variables.aside(), patterns=words[0] == "[[")


def _either(words: Sequence[str], variables: Variables, *, patterns: bool) -> bool | None:
    parts = _parts(words, ("||", "-o"))
    return _joined([_both(part, variables, patterns=patterns) for part in parts], settles=True)


def _both(words: Sequence[str], variables: Variables, *, patterns: bool) -> bool | None:
    parts = _parts(words, ("&&", "-a"))
    return _joined([_one(part, variables, patterns=patterns) for part in parts], settles=False)


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


def _one(words: list[str], variables: Variables, *, patterns: bool) -> bool | None:
    if words[:1] == ["!"]:
        inner = _one(words[1:], variables, patterns=patterns)
        return None if inner is None else not inner
    texts = [expanded_text(word, variables) for word in words]
    if len(words) == 2 and words[0] in ("-z", "-n"):
        empty = not texts[1] or bool(_UNSET.fullmatch(texts[1]) and texts[1][2:-1] not in CHANGING)
        return empty if words[0] == "-z" else not empty
    if any(map(open_in, texts)):
        return None
    if len(texts) <= 1:
        return bool(texts and texts[0])
    if words[0] == "-v":
        return True if variables.text(texts[1]) is not None else None
    return _compared(texts, words[2], patterns=patterns) if len(texts) == 3 else None


def _compared(texts: list[str], right_word: str, *, patterns: bool) -> bool | None:
    left, sign, right = texts
    if sign in ("=", "==", "!="):
        is_pattern = patterns and right_word[:1] not in ("'", '"')
        equal = fnmatch.fnmatchcase(left, right) if is_pattern else left == right
        return equal is (sign != "!=")
    if sign == "=~":
        return _found(right, left)
    numbers = scalar(left), scalar(right)
    if sign in _NUMBERS and all(isinstance(number, (int, float)) for number in numbers):
        return bool(_NUMBERS[sign](*numbers))
    return None


def _found(expression: str, text: str) -> bool | None:
    """Whether a POSIX expression is found in a text; None where Python has another reading of it."""
    if "[[:" in expression:
        return None
    try:
        return re.search(expression, text) is not None
    except re.error:
        return None
