"""What bash makes of a text inside ``${...}``, ``$((...))`` and ``printf``: pure, nothing is looked up."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence

from trueup.checklist.expression import NOTHING, Unset, parsed
from trueup.errors import ConfigError

_ARITHMETIC = re.compile(r"[\d\s+\-*/%()<>=!&|]+$")
_TERNARY = re.compile(r"(.+?)\?([^?:]+):([^?:]+)$", re.DOTALL)
CHANGES = re.compile(r"(%%?|##?|//|/[#%]?|\^\^?|,,?|:(?![-=+?]))(.*)$", re.DOTALL)
"""a change of the value: its sign, and what the sign is given"""

_PARTS = re.compile(r"(%%|%[-+ 0#']*\d*(?:\.\d*)?.|\\.)", re.DOTALL)
"""conversions and escapes of a form of ``printf``"""
_NUMBER = re.compile(r"[-+]?(0[xX][0-9a-fA-F]+|\d+)$")
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\", '\\"': '"', "\\'": "'"}


def printed(form: str, given: Sequence[str]) -> str | None:
    """What ``printf FORM GIVEN...`` prints: the form again for what is given beyond it; None where a
    conversion is none of text, whole numbers or fractions, or a number is none.

    Example:
        >>> printed("%03d-%s,", ["7", "a", "8"])
        '007-a,008-,'
    """
    rest, text = list(given), ""
    while True:
        left = len(rest)
        for part in _PARTS.split(form):
            if not part.startswith(("%", "\\")) or part == "%%":
                text += part[:1] if part == "%%" else part
            elif part[0] == "\\":
                if part not in _ESCAPES:
                    return None
                text += _ESCAPES[part]
            else:
                one = _converted(part, rest.pop(0) if rest else "")
                if one is None:
                    return None
                text += one
        if not rest or len(rest) == left:
            return text


def _converted(conversion: str, value: str) -> str | None:
    kind = conversion[-1]
    try:
        if kind == "s":
            return conversion.replace("'", "") % value
        if kind in "diuxXo":
            if value and not _NUMBER.match(value):
                return None
            return (conversion[:-1].replace("'", "") + kind.replace("u", "d")) % int(_plain_number(value), 0)
        if kind in "feEgG":
            return conversion.replace("'", "") % float(value or 0)
    except ValueError:
        return None
    return None


def _plain_number(value: str) -> str:
    """As Python reads it: a number with a leading 0 is octal."""
    return re.sub(r"^([-+]?)0+(?=\d)", r"\g<1>0o", value) if value else "0"


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
