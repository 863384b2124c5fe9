"""Templates: named facts put into English, with the plural, list and ratio forms that every room needs."""

from __future__ import annotations

import math
import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trueup.types.reason import Reason
from trueup.types.site import shown_name

Template = str | Callable[["ReasonFacts"], str]
SHOWN = 4
"""names of a list before the rest is counted"""


class _Unknown(float):
    """A number that is not known, as a document holds NaN: it compares as NaN and reads ``n/a``."""

    def __format__(self, spec: str) -> str:
        return "n/a"

    def __str__(self) -> str:
        return "n/a"

    def __bool__(self) -> bool:
        return False


UNKNOWN = _Unknown("nan")


class _Side(float):
    """A number of one run beside that of the other: with as many digits as it takes to tell the two apart."""

    other: float

    def __format__(self, spec: str) -> str:
        text = float.__format__(self, spec)
        form = _DIGITS.fullmatch(spec)
        if form is None or float(self) == self.other or text != float.__format__(self.other, spec):
            return text
        sign, digits, kind = form.group(1), int(form.group(2) or 6), form.group(3)
        for more in range(digits + 1, 18):
            text = float.__format__(self, f"{sign}.{more}{kind}")
            if text != float.__format__(self.other, f"{sign}.{more}{kind}"):
                break
        return text


_DIGITS = re.compile(r"([,+]?)(?:\.(\d+))?([gf])")
_SIDES = {"target": "reference", "reference": "target"}


def _beside(facts: Mapping[str, object], name: str) -> object:
    """A fact; a number of one side knows that of the other."""
    value = _named(facts[name])
    side = name.partition("_")[0]
    other = facts.get(_SIDES[side] + name.removeprefix(side)) if side in _SIDES else None
    if not isinstance(value, float) or not isinstance(other, (int, float)):
        return value
    return beside(value, other)


def beside(value: float, other: float) -> float:
    """A number that is printed with as many digits as it takes to tell it from another, such as its limit.

    Example:
        >>> f"{beside(1.961, 1.959):.1f}", f"{beside(3.0, 1.96):.1f}", f"{beside(2.0, 2.0):.1f}"
        ('1.961', '3.0', '2.0')
    """
    found = _Side(value)
    found.other = float(other)
    return found


@dataclass(frozen=True, slots=True)
class ReasonFacts:
    """What a template is made of: the facts of a reason by key, unknown ones as ``UNKNOWN``, and the text of
    its parts."""

    reason: Reason
    parts: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Any:
        value = _beside(self.reason.facts, name)
        return UNKNOWN if value is None else value

    def get(self, name: str) -> Any:
        """A fact, None where it is not there."""
        facts = self.reason.facts
        return _beside(facts, name) if name in facts else None

    def fill(self, template: str, **more: object) -> str:
        """A template string filled with these facts."""
        known = self.reason.facts
        facts = {name: _beside(known, name) for name in known}
        return _FORMATTER.vformat(template, (), {**facts, **more, "parts": self.parts})


def _named(value: Any) -> Any:
    """A fact; a name of nothing but blanks is quoted, an empty one stays empty."""
    return shown_name(value) if isinstance(value, str) and value.isspace() else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrase:
    """What one code says.

    Template strings take format specifications of Python and these:
        ``{n:count record}``   ``1 record``, ``2 records``, ``1,200 records``
        ``{n:verb exceed}``    ``exceeds`` of 1, else ``exceed``
        ``{names:list}``       ``a, b, c and d``, or ``a, b, c, d and 3 more``
        ``{x:times}``          ``1.5 times``, ``19,800 times``
        ``{x:g}``              six digits, as for every number without a specification; unknown is ``n/a``
        ``{x:percent}``        ``0.4 %``
        ``{x:share}``          ``40%``; ``0.4%`` and ``99.6%`` where it is not all or none
        ``{parts:join ; }``    texts of the parts with ``; `` between them
    """

    sentence: Template
    """one sentence or clause, as evidence is listed; no full stop"""
    headline: Template | None = None
    """at most 15 words: what differs, where, and the cause when known"""
    advice: Template | None = None
    """what to do about it"""
    command: Template | None = None
    """the command to type next"""
    samples: Sequence[Mapping[str, object]] = field(default=({},))
    """facts for the test that renders every code, one mapping a variant of the sentence"""


def clause(sentence: Template, *samples: Mapping[str, object]) -> Phrase:
    """A phrase of one sentence or clause; without samples, of no facts."""
    return Phrase(sentence=sentence, samples=samples or ({},))


def heading(headline: Template, *samples: Mapping[str, object]) -> Phrase:
    """A phrase that stands above a finding and is its first evidence too."""
    return Phrase(sentence=headline, headline=headline, samples=samples or ({},))


class _Formatter(string.Formatter):
    def format_field(self, value: Any, spec: str) -> str:
        kind, _, rest = spec.partition(" ")
        if value is None:
            return str(UNKNOWN)
        if kind == "count":
            return count(int(value), rest)
        if kind == "verb":
            return _SINGULAR.get(rest, f"{rest}s") if int(value) == 1 else rest
        if kind == "list":
            return listed(value if not isinstance(value, str) else (value,))
        if kind == "times":
            return times(float(value))
        if kind == "percent":
            return percent(value)
        if kind == "share":
            return share(float(value), int(rest or 0))
        if kind == "join":
            return rest.join(value)
        if isinstance(value, float) and not spec:
            return format(value, ".6g")
        if isinstance(value, tuple):
            return listed(value)
        return str(super().format_field(value, spec))


_FORMATTER = _Formatter()
_SINGULAR = {"are": "is", "have": "has", "do": "does"}


def count(number: int, noun: str) -> str:
    """A number with its noun.

    Example:
        >>> count(1, "record"), count(1200, "record"), count(2, "entry")
        ('1 record', '1,200 records', '2 entries')
    """
    return f"{number:,} {noun if number == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """The plural of a noun.

    Example:
        >>> plural("batch"), plural("axis"), plural("difference")
        ('batches', 'axes', 'differences')
    """
    if noun.endswith("axis"):
        return f"{noun[:-2]}es"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"


def listed(names: Sequence[object], shown: int = SHOWN) -> str:
    """Names in a row, the last after "and"; more than ``shown`` + 1 are counted.

    Example:
        >>> listed(["a", "b"]), listed("abcdefg")
        ('a and b', 'a, b, c, d and 3 more')
    """
    words = [str(name) for name in names]
    if len(words) > shown + 1:
        return f"{', '.join(words[:shown])} and {len(words) - shown} more"
    return " and ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)


def ranks_named(ranks: Sequence[object]) -> str:
    """Ranks with their noun.

    Example:
        >>> ranks_named(["1"]), ranks_named([0, 2])
        ('rank 1', 'ranks 0 and 2')
    """
    return f"rank{'' if len(ranks) == 1 else 's'} {listed(ranks)}"


def times(ratio: float) -> str:
    """A ratio as a person writes it.

    Example:
        >>> times(1.5), times(19_812.3), times(2.5e9)
        ('1.5 times', '19,800 times', '2.5e+09 times')
    """
    if math.isinf(ratio):
        return "infinitely many times"
    return f"{float(f'{ratio:.3g}'):,.0f} times" if 100 <= ratio < 1e6 else f"{ratio:.3g} times"


def absolute(value: float | None) -> str:
    """An absolute difference as the standard writes it: ``0.0031``."""
    if value is None or not math.isfinite(value):
        return "–" if value is None or math.isnan(value) else str(value)
    if value == 0:
        return "0"
    digits = max(2, 1 - math.floor(math.log10(abs(value))))
    near = _limit_near(float(f"{value:.{digits}f}"), 1)
    if near is not None:
        return f"{beside(value, math.copysign(near, value)):.{digits}f}"
    return f"{value:.{digits}f}" if digits <= 9 else f"{value:.1e}"


def percent(value: float | None) -> str:
    """A relative difference as the standard writes it: ``0.4 %``; more places where it would read 0.0, or as
    the number of the other run beside it."""
    text = _percent(value)
    if not isinstance(value, _Side) or float(value) == value.other or text != _percent(value.other):
        return text
    pairs = ((f"{100 * one:.{digits}g} %" for one in (float(value), value.other)) for digits in range(3, 18))
    return next((text for text, other in pairs if text != other), text)


def _percent(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "–" if value is None or math.isnan(value) else f"{value} %"
    size = abs(100 * value)
    near = _limit_near(float(f"{100 * value:.1f}"), 100)
    if near is not None:
        return f"{beside(100 * value, math.copysign(near, value)):.1f} %"
    if size == 0 or size >= 0.05:
        return f"{100 * value:.1f} %"
    return f"{100 * value:.1g} %" if size >= 1e-4 else f"{100 * value:.0e} %"


def share(part: float, places: int = 0) -> str:
    """A part of a whole; some is not 0 %, and what is not all is not 100 %.

    Example:
        >>> share(0.4), share(0.004), share(0.9996), share(1.0)
        ('40%', '0.4%', '99.96%', '100%')
    """
    text = f"{part:.{places}%}"
    while 0 < part < 1 and float(text[:-1]) in (0, 100) and places < _MOST_PLACES:
        places += 1
        text = f"{part:.{places}%}"
    return text


_MOST_PLACES = 12


_LIMITS = (0.005, 0.01, 0.05, 0.1)
"""what the accuracy standard holds differences against: a number beside one of them is not printed like it"""


def _limit_near(shown: float, unit: int) -> float | None:
    """The limit that a printed number reads as, in its unit."""
    return next((unit * limit for limit in _LIMITS if math.isclose(abs(shown), unit * limit)), None)


def one_plus(factor: float) -> str:
    """A factor near 1.

    Example:
        >>> one_plus(0.01), one_plus(-0.01)
        ('1 + 0.01', '1 - 0.01')
    """
    return f"1 {'-' if factor < 0 else '+'} {abs(factor):.2g}"
