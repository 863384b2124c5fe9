"""A conclusion as a value: a code with typed numbers and places; its English is in ``wording``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trueup.types.codes import Code, GivenCode, code_from

Number = int | float | None
Place = str | tuple[str, ...] | None
Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something was concluded.

    Example:
        >>> from trueup.types.codes import GivenCode
        >>> one = reason(GivenCode.TEXT, text="as the log says", line=3)
        >>> one.number("line"), one.place("text")
        (3, 'as the log says')
    """

    code: Code
    numbers: tuple[tuple[str, Number], ...] = ()
    """counts, sizes, steps, ranks; None is unknown, booleans are 0 and 1"""
    places: tuple[tuple[str, Place], ...] = ()
    """names: of sites, modules, parameters, sides, dtypes, files"""
    parts: tuple[Reason, ...] = ()
    """the conclusions it is made of"""

    def number(self, name: str) -> Number:
        """A number by its name; None where it is not there."""
        return dict(self.numbers).get(name)

    def place(self, name: str) -> Place:
        """A place by its name; None where it is not there."""
        return dict(self.places).get(name)

    @property
    def facts(self) -> dict[str, Number | Place]:
        """Numbers and places together."""
        return {**dict(self.numbers), **dict(self.places)}

    def has(self, *codes: Code) -> bool:
        """Whether it, or a conclusion it is made of, has one of these codes."""
        return self.code in codes or any(part.has(*codes) for part in self.parts)

    def to_json(self) -> dict[str, Json]:
        """Plain values: ``code numbers places``, and ``parts`` where there are some. Infinities are the
        strings ``"inf"`` and ``"-inf"``, NaN is null."""
        plain: dict[str, Json] = {
            "code": self.code.value,
            "numbers": {name: _plain(value) for name, value in self.numbers},
            "places": {
                name: list(value) if isinstance(value, tuple) else value for name, value in self.places
            },
        }
        if self.parts:
            plain["parts"] = [part.to_json() for part in self.parts]
        return plain


def reason(code: Code, *parts: Reason, **facts: Number | Place | Sequence[str]) -> Reason:
    """A reason of keyword facts: numbers and booleans become ``numbers``, text and lists of it ``places``."""
    numbers: list[tuple[str, Number]] = []
    places: list[tuple[str, Place]] = []
    for name, value in facts.items():
        if isinstance(value, str):
            places.append((name, str(value)))
        elif value is None or isinstance(value, (int, float)):
            numbers.append((name, _exact(value)))
        elif hasattr(value, "item"):  # a numpy scalar
            numbers.append((name, _exact(value.item())))
        else:
            places.append((name, tuple(map(str, value))))
    return Reason(code, tuple(numbers), tuple(places), parts)


def given(text: str) -> Reason:
    """Text that is not ours, as a reason."""
    return Reason(GivenCode.TEXT, places=(("text", text),))


def reason_from_json(plain: object) -> Reason:
    """The reason that ``to_json`` wrote; a sentence of a version 1 document is kept as it is, and so is a
    code that this version does not know."""
    if not isinstance(plain, Mapping):
        return given(str(plain))
    try:
        code = code_from(str(plain["code"]))
    except KeyError:
        return given(str(plain.get("code") or ""))
    numbers, places, parts = (plain.get(name) or {} for name in ("numbers", "places", "parts"))
    return Reason(
        code,
        tuple((str(name), _number(value)) for name, value in numbers.items()),
        tuple(
            (str(name), tuple(map(str, value)) if isinstance(value, list) else value)
            for name, value in places.items()
        ),
        tuple(map(reason_from_json, parts)),
    )


def read_reason(plain: Mapping[str, Any], name: str) -> Reason | None:
    """The reason of one key of a document (``headline``, with ``headline_reason`` beside it in version 2)."""
    beside = plain.get(f"{name}_reason")
    if isinstance(beside, Mapping):
        known = reason_from_json(beside)
        text = plain.get(name) or known.place("text")
        return given(str(text)) if known.code is GivenCode.TEXT else known
    return given(str(plain[name])) if plain.get(name) else None


def read_reasons(plain: Mapping[str, Any], name: str) -> tuple[Reason, ...]:
    """The reasons of one key that holds a list, each once."""
    texts, beside = plain.get(name) or [], plain.get(f"{name}_reasons")
    if not isinstance(beside, list):
        return tuple(dict.fromkeys(given(str(one)) for one in texts))
    known = (reason_from_json(one) for one in beside)
    paired = zip(known, texts, strict=False)
    return tuple(dict.fromkeys(given(str(t)) if one.code is GivenCode.TEXT else one for one, t in paired))


def _exact(value: Number) -> Number:
    return int(value) if isinstance(value, bool) else value


def _plain(value: Number) -> Json:
    if value is None or isinstance(value, int) or math.isfinite(value):
        return value
    return None if math.isnan(value) else "inf" if value > 0 else "-inf"


def _number(value: object) -> Number:
    if value is None or isinstance(value, (int, float)):
        return value
    return float(str(value))


__all__ = [
    "Json",
    "Number",
    "Place",
    "Reason",
    "given",
    "read_reason",
    "read_reasons",
    "reason",
    "reason_from_json",
]
