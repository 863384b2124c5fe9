"""Options described once, on the fields of frozen dataclasses.

The command line, keyword arguments of the Python API, configuration files, the manifest and docs/options.md
all follow the same description::

    steps: Annotated[StepSet, Option("Steps to capture.", "--steps", read=StepSet.parse)] = StepSet()
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, fields, replace
from enum import Enum
from functools import cache
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Generic,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from trueup.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    _Options = TypeVar("_Options", bound=DataclassInstance)
else:
    _Options = TypeVar("_Options")
_Kind = TypeVar("_Kind")
_LONGEST = 120
"""characters of a value in an error"""
_LARGEST = 2**63 - 1
"""as arrays hold integers"""
_MOST_NAMES = 40
"""known names an error lists"""


@dataclass(frozen=True, slots=True)
class Option:
    """What is known of a choice besides its type and default."""

    help: str
    usage: str = ""
    """flags and value: ``-o --output DIR``, ``--merge/--no-merge``; empty: not on the command line"""
    _: KW_ONLY
    argument: str = ""
    """name of a positional argument, in place of flags"""
    panel: str = ""
    default: str = ""
    """the default in words, where the value does not tell"""
    unit: str = ""
    no_effect: str = ""
    """when the option has no effect"""
    config_key: str = ""
    """key of msprobe's ``config.json``"""
    off: str = ""
    """flag that sets the field to False, beside flags that take a value"""
    off_help: str = ""
    least: float | None = None
    most: float | None = None
    above: float | None = None
    read: Callable[[str, str], object] | None = None
    """the value from text; the second argument is the place to name in an error"""
    read_all: Callable[[Sequence[str], str], object] | None = None
    """the same for an option that may be repeated"""
    commas: bool = False
    """an option that may be repeated also takes values separated by commas"""
    several: bool = False
    """one flag takes all words up to the next option"""
    bare: str = ""
    """the value of a flag without a value"""
    together: str = ""
    """the other field of a pair: both or neither"""
    excludes: str = ""
    only_with: str = ""
    """other fields: where none of them is given the option has no effect; ``no_effect`` says so"""
    idle_with: str = ""
    """other fields: where one of them is given the option has no effect"""
    hidden: bool = False

    @property
    def flags(self) -> tuple[str, ...]:
        """As the command-line library takes them: ``--merge/--no-merge`` is one."""
        return tuple(word for word in self.usage.split() if word.startswith("-"))

    @property
    def metavar(self) -> str:
        """How its value is called in help."""
        return " ".join(self.usage.split()[len(self.flags) :])

    def problem(self, value: object) -> str | None:
        """What was expected, if ``value`` is a number out of bounds.

        Example:
            >>> Option("Rows.", least=1).problem(0)
            'a number from 1 (got 0)'
        """
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        if isinstance(value, int) and abs(value) > _LARGEST:
            return f"{self.bounds or 'an integer'}, of at most 64 bits (got {value})"
        if not self.bounds:
            return None
        low = self.least is None or value >= self.least
        high = self.most is None or value <= self.most
        fits = low and high and (self.above is None or value > self.above)
        finite = isinstance(value, int) or math.isfinite(value)
        if not finite and not self.bounds.startswith("a finite"):
            return f"a finite number (got {value})"
        return None if fits and finite else f"{self.bounds} (got {value})"

    @property
    def bounds(self) -> str:
        """The numbers allowed, in words; empty where all are."""
        if self.above is not None:
            return f"a finite number above {self.above:g}"
        if self.least is None:
            return ""
        return f"a number from {self.least:g}" + (f" to {self.most:.12g}" if self.most else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionField:
    """A field of an option dataclass."""

    name: str
    kind: object
    """its type, without None beside a single other"""
    default: object
    """``MISSING`` for a required one"""
    option: Option

    @property
    def required(self) -> bool:
        """Whether there is no default."""
        return self.default is MISSING

    @property
    def flag(self) -> str:
        """The name a person knows it by on the command line."""
        words = [word.partition("/")[0] for word in self.option.flags]
        return next((word for word in words if word.startswith("--")), "".join(words[:1]))

    @property
    def choices(self) -> dict[str, object]:
        """Word -> value, where the type has a fixed set of values."""
        if isinstance(self.kind, type) and issubclass(self.kind, Enum):
            return {str(m.value if isinstance(m.value, str) else m.name.lower()): m for m in self.kind}
        return {str(v): v for v in get_args(self.kind)} if get_origin(self.kind) is Literal else {}

    @property
    def repeated(self) -> bool:
        """Whether the flag may be given more than once."""
        endless = get_origin(self.kind) is tuple and get_args(self.kind)[-1] is Ellipsis
        return self.option.read_all is not None or (endless and self.option.read is None)

    @property
    def pair(self) -> bool:
        """Whether the flag takes two values."""
        return get_origin(self.kind) is tuple and self.option.read is None and not self.repeated

    def from_text(self, text: str, place: str) -> object:
        """The value a word or text stands for.

        Raises:
            ConfigError: none; names ``place``.
        """
        if self.option.read is not None:
            return self.option.read(text, place)
        if not self.choices:
            return text
        for word, value in self.choices.items():
            if word.lower() == text.lower():
                return value
        raise expected(place, f"one of: {', '.join(self.choices)}", text)

    def default_text(self) -> str:
        """The default as a person writes it; empty for none."""
        if self.option.default or self.required:
            return self.option.default
        if isinstance(self.default, bool):
            return "on" if self.default else ""
        if self.default is None or (
            isinstance(self.default, (tuple, frozenset, dict, str)) and not self.default
        ):
            return ""
        if isinstance(self.default, Enum):
            return next(word for word, value in self.choices.items() if value is self.default)
        if isinstance(self.default, (tuple, frozenset)):
            return ",".join(map(str, self.default))
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)


@dataclass(frozen=True, slots=True)
class GivenOptions(Generic[_Options]):
    """The options of a dataclass that a person gave, by the name of the field."""

    values: Mapping[str, object]

    def over(self, base: _Options) -> _Options:
        """``base`` with what was given in place of its own."""
        return replace(base, **self.values)

    def get(self, name: str, kind: type[_Kind]) -> _Kind | None:
        """What was given for a field of this type; None where nothing was."""
        value = self.values.get(name)
        return value if isinstance(value, kind) else None

    def __contains__(self, name: str) -> bool:
        return name in self.values


def option_fields(cls: type) -> tuple[OptionField, ...]:
    """The fields of ``cls`` that carry an ``Option``, in order."""
    return _option_fields(cast("Hashable", cls))


@cache
def _option_fields(cls: type) -> tuple[OptionField, ...]:
    hints = get_type_hints(cls, include_extras=True)
    found = []
    for field in fields(cls):
        kind, *extras = get_args(hints[field.name]) if _is_annotated(hints[field.name]) else (None,)
        option = next((extra for extra in extras if isinstance(extra, Option)), None)
        if option is not None:
            default = field.default if field.default_factory is MISSING else field.default_factory()
            found.append(OptionField(name=field.name, kind=_bare(kind), default=default, option=option))
    return tuple(found)


def check_options(options: object, source: str = "") -> None:
    """Raise for a number out of bounds, or two options that contradict each other.

    Raises:
        ConfigError: the first such option.
    """
    described = option_fields(type(options))
    given = {}
    for field in described:
        value = getattr(options, field.name)
        problem = field.option.problem(value)
        if problem is not None:
            raise ConfigError(f"{source}{field.name}: expected {problem}")
        if value is not None and value != field.default:
            given[field.name] = value
    check_relations(described, given, lambda field: f"{source}{field.name}")


def check_relations(
    described: Sequence[OptionField], given: Mapping[str, object], named: Callable[[OptionField], str]
) -> None:
    """Raise for options that need or exclude one another; ``named`` says what a person calls a field.

    Raises:
        ConfigError: the first such pair.
    """
    names = {field.name: named(field) for field in described}
    for field in described:
        together, excludes = field.option.together, field.option.excludes
        if together and (field.name in given) != (together in given):
            raise ConfigError(f"{names[field.name]} and {names[together]} go together: give both or neither")
        if field.name in given and excludes in given:
            raise ConfigError(f"{names[field.name]} and {names[excludes]} exclude each other")


def ignored_options(
    described: Sequence[OptionField], given: Mapping[str, object], named: Callable[[OptionField], str]
) -> Iterator[str]:
    """A sentence for each option that was given and has no effect beside the others."""
    for field in described:
        option = field.option
        if field.name not in given:
            continue
        missing = option.only_with and not any(name in given for name in option.only_with.split())
        if missing or any(name in given for name in option.idle_with.split()):
            yield f"{named(field)} has no effect {option.no_effect}"


def expected(place: str, what: str, value: object) -> ConfigError:
    """The error for a value that is not of the form expected.

    Example:
        >>> str(expected("--by", "one of: name, map", "nam"))
        "--by: expected one of: name, map (got 'nam')"
    """
    shown = repr(value)
    return ConfigError(
        f"{place}: expected {what} (got {shown if len(shown) <= _LONGEST else shown[:_LONGEST]})"
    )


def unknown_key_message(key: str, known: Iterable[str], what: str = "key") -> str:
    """A sentence naming the known key nearest to ``key``, or all of them where none is near.

    Example:
        >>> unknown_key_message("sumary_mode", ["summary_mode", "scope"])
        "unknown key 'sumary_mode'; did you mean 'summary_mode'?"
    """
    import difflib  # not before a person's mistake: captured programs import this module

    words = {word.lower(): word for word in known}
    near = difflib.get_close_matches(key.lower(), words, n=1, cutoff=0.5)
    if near:
        return f"unknown {what} {key!r}; did you mean {words[near[0]]!r}?"
    names = sorted(words.values())
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"unknown {what} {key!r}; known are {', '.join(names[:_MOST_NAMES])}{more}"


def _is_annotated(hint: object) -> bool:
    return get_origin(hint) is Annotated


def _bare(hint: object) -> object:
    """A type without None."""
    if get_origin(hint) not in (Union, UnionType):
        return hint
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    return kinds[0] if len(kinds) == 1 else hint
