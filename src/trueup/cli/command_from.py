"""A typer command from option dataclasses: its parameters, its help, and the values it is called with.

A verb is a function of option dataclasses that returns its exit status::

    def command(runs: TracePair, options: CompareOptions, printed: Printed) -> int: ...

A parameter annotated ``GivenOptions[Options]`` gets only what a person gave, for options that a file or a
preset
also sets.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Protocol, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from trueup.cli.places import NamedPlace, unwritable, written_into_read
from trueup.cli.printing import warning_line
from trueup.errors import ConfigError
from trueup.types.option import (
    GivenOptions,
    OptionField,
    check_relations,
    expected,
    ignored_options,
    option_fields,
)

Verb = Callable[..., int]
_WRITTEN = frozenset({"--output", "--keep", "--tensorboard", "--save-plan", "DST", "DIR"})
"""flags and arguments that name what is written"""
_NO_PATHS = frozenset({"", "F", "NAME", "TEXT", "WHAT"})
"""what the value of an option is called that is text, and no path"""
_FILES = ("FILE", "YAML")
"""what the value of one of these is called where it is one file"""


class SingleCommand(TyperCommand):
    """A command that refuses what would be lost unseen: the first value of an option given twice, and an
    option in the place of another's value."""

    def make_parser(self, ctx):  # type: ignore[no-untyped-def]  # the library's own type has moved
        """The library's parser; raises ``ConfigError`` for an option given twice that takes one value."""
        parser = super().make_parser(ctx)
        read = parser.parse_args

        def parse_args(args: list[str]) -> tuple[object, object, Sequence[GivenParameter]]:
            words = list(args)  # reading consumes them
            _refuse_option_as_value(self.params, words)
            values, rest, order = read(args=args)
            _refuse_second(order, words)
            return values, rest, order

        setattr(parser, "parse_args", parse_args)  # noqa: B010  # a method, to the type checker
        return parser


class GivenParameter(Protocol):
    """A parameter of the command-line library."""

    opts: list[str]
    secondary_opts: list[str]
    nargs: int


def _refuse_option_as_value(parameters: Sequence[GivenParameter], words: Sequence[str]) -> None:
    """``--replay -o OUT``: a value was forgotten, and the next option would be taken for it."""
    flags = {name for one in parameters for name in (*one.opts, *one.secondary_opts) if name.startswith("-")}
    bare = {
        name
        for one in parameters
        if getattr(one, "is_flag", False)
        for name in (*one.opts, *one.secondary_opts)
    }
    own = words[: words.index("--")] if "--" in words else words
    for word, after in itertools.pairwise(own):
        if word in flags - bare and after.partition("=")[0] in flags:
            raise ConfigError(f"{word}: expected a value after it, not the option {after}")


def _refuse_second(order: Sequence[GivenParameter], words: Sequence[str]) -> None:
    seen: list[GivenParameter] = []
    for parameter in order:
        names = [*parameter.opts, *parameter.secondary_opts]
        flag = getattr(parameter, "is_flag", False)
        repeated = getattr(parameter, "multiple", False) or (flag and not parameter.secondary_opts)
        if names[0].startswith("-") and not repeated and parameter in seen:
            shown = " and ".join(_as_given(names, words, 0 if flag else parameter.nargs))
            once = parameter.opts[-1] if not flag else "/".join(names)
            raise ConfigError(f"{once} is given more than once{shown and f' ({shown})'}; give it once")
        seen.append(parameter)


def _as_given(names: Sequence[str], words: Sequence[str], values: int) -> Iterator[str]:
    """Every time an option with so many values occurs among ``words``, as written."""
    own = words[: words.index("--")] if "--" in words else words
    for at, word in enumerate(own):
        name, equals, _ = word.partition("=")
        if name in names:
            yield " ".join(own[at : at + 1 + (0 if equals else values)])


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionBlock:
    """One parameter of a verb: an option dataclass."""

    name: str
    options: type
    partial: bool

    @property
    def fields(self) -> list[OptionField]:
        """Those that are on the command line."""
        return [f for f in option_fields(self.options) if f.option.flags or f.option.argument]

    def parameter(self, field: OptionField, suffix: str = "") -> str:
        """The name of the typer parameter; unlike any of another block."""
        return f"{self.name}_{field.name}{suffix}"

    def value(self, words: Mapping[str, object]) -> object:
        """The dataclass, or what was given of it.

        Raises:
            ConfigError: a word that stands for no value, or options that contradict each other.
        """
        given: dict[str, object] = {}
        for field in self.fields:
            word, off = words[self.parameter(field)], words.get(self.parameter(field, "_off"))
            if off and word is not None:
                raise ConfigError(f"{field.flag} and {field.option.off} exclude each other")
            if off:
                given[field.name] = False
            elif word is not None and word != []:
                given[field.name] = _value_from(field, word)
        chosen = {
            field.name: given[field.name]
            for field in self.fields
            if given.get(field.name, field.default) != field.default
        }
        check_relations(self.fields, chosen, lambda field: field.flag)
        for sentence in ignored_options(self.fields, chosen, lambda field: field.flag):
            warning_line(sentence)
        return GivenOptions(given) if self.partial else self.options(**given)


def _places(
    blocks: Sequence[OptionBlock], words: Mapping[str, object]
) -> tuple[list[NamedPlace], list[NamedPlace]]:
    """What a command writes and what it reads, of what was given and is there; what a program that it runs
    reads is not known."""
    written, read = [], []
    for block in blocks:
        for field in block.fields:
            place, word = field.flag or field.option.argument, words[block.parameter(field)]
            if place in _WRITTEN and isinstance(word, Path):
                written.append(NamedPlace(place=place, path=word))
            elif _is_path(field) and (not place.endswith("COMMAND") or len(_items(word)) == 1):
                read += [NamedPlace(place=place, path=path) for path in _paths_in(word)]
    return written, read


def _is_path(field: OptionField) -> bool:
    """Whether what is given may be a path."""
    option, kind = field.option, field.kind
    if option.argument.startswith("--") or option.read or option.read_all or field.choices:
        return False
    if kind in (bool, int, float) or (kind is str and (option.argument or option.metavar) in _NO_PATHS):
        return False
    return not option.commas


def _items(word: object) -> list[object]:
    return list(word) if isinstance(word, (list, tuple)) else []


def _paths_in(word: object) -> Iterator[Path]:
    """What is there of a value: of one path, of several joined by commas, of a list."""
    if isinstance(word, (list, tuple)):
        for one in word:
            yield from _paths_in(one)
    elif isinstance(word, (str, Path)):
        for part in dict.fromkeys((str(word), *str(word).split(","))):
            path = Path(part)
            try:
                if part and path.exists():
                    yield path
            except (OSError, ValueError):  # a command line is no name
                continue


def _is_given(blocks: Sequence[OptionBlock], words: Mapping[str, object], name: str) -> bool:
    """Whether a flag was given in any block that has it."""
    return any(words.get(f"{block.name}_{name}") is True for block in blocks)


@cache
def blocks_of(verb: Verb) -> tuple[OptionBlock, ...]:
    """The option dataclasses of a verb, in order."""
    hints = get_type_hints(verb)
    hints.pop("return", None)
    return tuple(
        OptionBlock(name=name, options=get_args(hint)[0], partial=True)
        if get_origin(hint) is GivenOptions
        else OptionBlock(name=name, options=hint, partial=False)
        for name, hint in hints.items()
    )


def command_from(verb: Verb) -> Callable[..., None]:
    """``verb`` as typer registers it: one parameter an option, ended with the exit status."""
    blocks = blocks_of(verb)

    def command(**words: object) -> None:
        values = {block.name: block.value(words) for block in blocks}
        written, read = _places(blocks, words)
        problem = written_into_read(written, read, overwrite=_is_given(blocks, words, "overwrite"))
        if problem is not None:
            raise ConfigError(problem)
        raise typer.Exit(verb(**values))

    parameters = [one for block in blocks for field in block.fields for one in _parameters(block, field)]
    parameters.sort(key=lambda one: one.default is not inspect.Parameter.empty)  # stable: required ones first
    command.__doc__ = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.getdoc(verb) or "")
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def listed(verb: Verb) -> Callable[[], None]:
    """``verb`` as a list of commands shows it: its help, no options."""

    def command() -> None:
        raise AssertionError("a listed command is never called")

    command.__doc__ = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.getdoc(verb) or "")
    return command


def _parameters(block: OptionBlock, field: OptionField) -> Iterator[inspect.Parameter]:
    option = field.option
    required = field.required and not block.partial
    kind = _typer_type(field)
    if option.argument:
        info = typer.Argument(metavar=option.argument, help=help_text(field), show_default=False)
    else:
        info = typer.Option(
            *option.flags,
            metavar=option.metavar or _metavar(field),
            help=help_text(field),
            rich_help_panel=option.panel or None,
            hidden=option.hidden,
            show_default=False,
        )
    yield _parameter(block.parameter(field), kind if required else kind | None, info, required=required)
    if option.off:
        info = typer.Option(option.off, help=option.off_help, rich_help_panel=option.panel or None)
        yield _parameter(block.parameter(field, "_off"), bool | None, info, required=False)


def _parameter(name: str, kind: object, info: object, *, required: bool) -> inspect.Parameter:
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if required else None,
        annotation=Annotated[kind, info],
    )


def help_text(field: OptionField) -> str:
    """What the option does, its default, and when it has no effect."""
    option = field.option
    default = field.default_text()
    shown = default and not (
        isinstance(field.default, bool) and not option.default and "/" not in option.usage
    )
    parts = [option.help]
    parts += [f"At least {option.least:g}."] if option.least else []
    parts += [f"Default: {default}."] if shown else []
    parts += [f"No effect {option.no_effect}."] if option.no_effect else []
    return " ".join(parts)


def _typer_type(field: OptionField) -> type:
    """What typer reads: text where the value is made from text."""
    kind, option = field.kind, field.option
    if field.repeated:
        return list[str]
    if option.read is not None or field.choices:
        return str
    if field.pair:
        return tuple[str, str]
    return Path if option.off else next(plain for plain in (bool, int, float, Path, str) if kind is plain)


def _metavar(field: OptionField) -> str | None:
    if field.kind is int and field.option.read is None:
        return "N"
    return "|".join(field.choices) or None


def _value_from(field: OptionField, word: object) -> object:
    option, place = field.option, field.flag or field.option.argument
    if isinstance(word, list):
        words = [str(one) for one in word]
        blank = next((one for one in words if not one.strip(" ,")), None)
        if blank is not None:  # of no names is no filter at all, and was meant to be one
            raise expected(place, "names separated by commas" if option.commas else "a value", blank)
        if option.commas:
            words = [part.strip() for text in words for part in text.split(",") if part.strip()]
        return _repeated(field, words, place)
    if isinstance(word, tuple):
        kind = get_args(field.kind)[0]
        return tuple(kind(part) for part in word)
    value = field.from_text(word, place) if isinstance(word, str) else word
    problem = option.problem(value)
    if isinstance(value, Path) and field.flag in _WRITTEN:
        problem = unwritable(value, folder=option.metavar not in _FILES)
    if problem is not None:
        raise ConfigError(f"{place}: expected {problem}")
    return value


def _repeated(field: OptionField, words: list[str], place: str) -> object:
    if field.option.read_all is not None:
        return field.option.read_all(words, place)
    kind = get_args(field.kind)[0]
    return tuple(kind(word) for word in words)
