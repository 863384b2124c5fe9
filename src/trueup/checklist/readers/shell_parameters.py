"""What bash makes of a text inside ``${...}`` and ``$((...))``: pure, nothing is looked up."""

from __future__ import annotations

import fnmatch
import re

from trueup.checklist.expression import NOTHING, Unset, parsed
from trueup.errors import ConfigError

_ARITHMETIC = re.compile(r"[\d\s+\-*/%()<>=!&|]+$")
_TERNARY = re.compile(r"(.+?)\?([^?:]+):([^?:]+)$", re.DOTALL)
CHANGES = re.compile(r"(%%?|##?|//|/[#%]?|\^\^?|,,?|:(?![-=+?]))(.*)$", re.DOTALL)
"""a change of the value: its sign, and what the sign is given"""


def changed(text: str, sign: str, given: str) -> str | None:
    """``${X%%-*}``, ``${X//a/b}``, ``${X^^}``, ``${X:0:3}``; None where what is given is no number."""
    if sign[0] in "%#":
        return _without(text, given, end=sign[0] == "%", longest=len(sign) == 2)
    if sign[0] == "/":
        pattern, _, new = given.partition("/")
        return _replaced(text, sign, pattern, new)
    if sign[0] in "^,":
        upper = sign[0] == "^"
        head = text if len(sign) == 2 else text[:1]
        return (head.upper() if upper else head.lower()) + ("" if len(sign) == 2 else text[1:])
    return _sliced(text, given)


def _expression(pattern: str) -> str:
    """A pattern of the shell as a regular expression, without what anchors it."""
    found = fnmatch.translate(pattern)
    return found[found.index(":") + 1 : found.rindex(")")]


def _without(text: str, pattern: str, *, end: bool, longest: bool) -> str:
    lengths = range(len(text) + 1)
    for length in reversed(lengths) if longest else lengths:
        part = text[len(text) - length :] if end else text[:length]
        if fnmatch.fnmatchcase(part, pattern):
            return text[: len(text) - length] if end else text[length:]
    return text


def _replaced(text: str, sign: str, pattern: str, new: str) -> str:
    expression = _expression(pattern)
    if not pattern:
        return text
    head, tail = "\\A" if sign == "/#" else "", "\\Z" if sign == "/%" else ""
    return re.sub(f"{head}(?s:{expression}){tail}", lambda _: new, text, count=0 if sign == "//" else 1)


def _sliced(text: str, given: str) -> str | None:
    first, _, length = given.partition(":")
    start = calculated(first) if first.strip() else 0
    number = calculated(length) if length.strip() else None
    if start is None or (length.strip() and number is None):
        return None
    start = max(0, len(text) + start) if start < 0 else start
    stop = len(text) if number is None else number if number >= 0 else len(text) + number
    return text[start : start + stop] if number is not None and number >= 0 else text[start:stop]


def calculated(text: str) -> int | None:
    """The whole number of an arithmetic expression; None where not all of it is known."""
    text = text.strip()
    if choice := _TERNARY.match(text):
        test = calculated(choice[1])
        return None if test is None else calculated(choice[2] if test else choice[3])
    if (
        not text
        or not _ARITHMETIC.match(text)
        or "**" in text
        or re.search(r"<<|>>|(?<![&|])[&|](?![&|])", text)
    ):
        return None
    words = text.replace("&&", " and ").replace("||", " or ").replace("/", "//")
    words = re.sub(r"!(?!=)", " not ", words)
    words = re.sub(r"(?<![\w.])0+(?=\d)", "", words)
    try:
        found = parsed(words.strip()).evaluate(NOTHING)
    except (ConfigError, Unset, ArithmeticError, TypeError):
        return None
    return int(found) if isinstance(found, (bool, int, float)) else None
