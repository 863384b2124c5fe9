"""The catalogue: phrases of all rooms, and how a reason is put into words with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from trueup.types.codes import Code
from trueup.types.reason import Reason
from trueup.wording.phrase import Phrase, ReasonFacts, Template


@cache
def phrases() -> Mapping[Code, Phrase]:
    """Every code's phrase, from every module of this package that has some."""
    names = (module.name for module in iter_modules([str(Path(__file__).parent)]))
    rooms = (import_module(f"trueup.wording.{name}") for name in names)
    return {code: phrase for room in rooms for code, phrase in getattr(room, "PHRASES", {}).items()}


def phrase_of(code: Code) -> Phrase:
    """The phrase of a code; every code has one, which a test holds."""
    return phrases()[code]


def text(reason: Reason) -> str:
    """A reason as one sentence or clause, without a full stop."""
    return _rendered(phrase_of(reason.code).sentence, reason)


def texts(reasons: Iterable[Reason]) -> list[str]:
    """Several, each once."""
    return list(dict.fromkeys(map(text, reasons)))


def headline(reason: Reason) -> str:
    """What stands above a verdict or finding; the sentence where a code has no headline of its own."""
    phrase = phrase_of(reason.code)
    return _rendered(phrase.headline or phrase.sentence, reason)


def advice(reason: Reason) -> str | None:
    """What to do about it."""
    template = phrase_of(reason.code).advice
    return None if template is None else _rendered(template, reason)


def command(reason: Reason) -> str | None:
    """The command to type next."""
    template = phrase_of(reason.code).command
    return None if template is None else _rendered(template, reason)


def _rendered(template: Template, reason: Reason) -> str:
    facts = ReasonFacts(reason, tuple(map(text, reason.parts)))
    return facts.fill(template) if isinstance(template, str) else template(facts)
