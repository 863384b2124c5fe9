"""Dataclasses to plain JSON values and back, by their type annotations."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import UnionType
from typing import (
    Annotated,
    Literal,
    Protocol,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

from trueup.errors import ConfigError
from trueup.types.option import expected, option_fields, unknown_key_message

_Value = TypeVar("_Value")


def number_from_json(value: object) -> float | None:
    """A number of a JSON file; None for what is none: text, a boolean, NaN, or a whole number beyond every
    float.

    Example:
        >>> [number_from_json(value) for value in (2, float("inf"), "2", True, float("nan"), 10**400)]
        [2.0, inf, None, None, None, None]
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def number_from_hex(text: str | None) -> int | None:
    """A digest as files hold it; None where it is none.

    Example:
        >>> number_from_hex("ff"), number_from_hex("f-f"), number_from_hex(None)
        (255, None, None)
    """
    try:
        return int(text or "", 16)
    except ValueError:
        return None


@runtime_checkable
class Plain(Protocol):
    """A value with a JSON form of its own."""

    def to_plain(self) -> object:
        """Plain values."""

    @classmethod
    def from_plain(cls, plain: object, place: str) -> object:
        """Inverse of ``to_plain``; ``place`` is named in an error."""


def plain_from(value: object) -> object:
    """``value`` as JSON knows it: paths and enums as text, sets sorted, dataclasses as objects.

    Example:
        >>> plain_from({"output": Path("runs"), "kinds": frozenset({"b", "a"})})
        {'output': 'runs', 'kinds': ['a', 'b']}
    """
    if isinstance(value, Plain):
        return value.to_plain()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if is_dataclass(value):
        return fields_to_json(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, Mapping):
        return {name: plain_from(part) for name, part in value.items()}
    return [plain_from(part) for part in value] if isinstance(value, (list, tuple)) else value


def fields_to_json(value: object) -> dict[str, object]:
    """Every field of a dataclass, in order, as plain values."""
    assert is_dataclass(value)
    return {field.name: plain_from(getattr(value, field.name)) for field in fields(value)}


def fields_from_json(cls: type[_Value], plain: Mapping[str, object], *, source: str) -> _Value:
    """A dataclass from plain values, or from values of the fields' own types; checked by its options.

    Raises:
        ConfigError: an unknown key (the nearest known one named), or a value of the wrong type or out of
        bounds.
    """
    return cast(_Value, _dataclass_from(cls, plain, f"{source}:"))


def value_from(hint: object, plain: object, place: str) -> object:
    """The value of type ``hint`` that ``plain`` stands for.

    Raises:
        ConfigError: it stands for none; names ``place``.

    Example:
        >>> value_from(tuple[int, ...] | None, [1, 2], "steps")
        (1, 2)
    """
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return value_from(args[0], plain, place)
    if origin in (Union, UnionType):
        return _member_from(args, plain, place)
    if origin in (tuple, frozenset, list):
        return _collection_from(origin, args, plain, place)
    if origin is Literal:
        if plain not in args:
            raise expected(place, f"one of: {', '.join(map(str, args))}", plain)
        return plain
    if isinstance(hint, type) and issubclass(hint, Plain):
        return plain if isinstance(plain, hint) else hint.from_plain(plain, place)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum_from(hint, plain, place)
    if is_dataclass(hint):
        if isinstance(plain, Mapping):
            return _dataclass_from(cast("type[object]", hint), plain, place)
        if not isinstance(plain, cast("type[object]", hint)):
            raise expected(place, "a mapping", plain)
        return plain
    return _PLAIN_TYPES[hint](plain, place) if hint in _PLAIN_TYPES else plain


def _dataclass_from(cls: type[object], plain: Mapping[str, object], place: str) -> object:
    hints = _hints(cls)  # type: ignore[arg-type]
    described = {field.name: field for field in option_fields(cls)}
    values = {}
    for name, value in plain.items():
        inside = f"{place} {name}" if place.endswith(":") else f"{place}.{name}"
        if name not in hints:
            raise ConfigError(f"{place.rstrip(':')}: {unknown_key_message(name, hints, 'option')}")
        field = described.get(name)
        if isinstance(value, str) and field is not None and field.option.read is not None:
            values[name] = field.option.read(value, inside)
        else:
            values[name] = value_from(hints[name], value, inside)
        problem = None if field is None else field.option.problem(values[name])
        if problem is not None:
            raise ConfigError(f"{inside}: expected {problem}")
    return cls(**values)


@cache
def _hints(cls: type[object]) -> dict[str, object]:
    return get_type_hints(cls, include_extras=True)


def _member_from(kinds: tuple[object, ...], plain: object, place: str) -> object:
    if plain is None and type(None) in kinds:
        return None
    last: ConfigError | None = None
    for kind in kinds:
        if kind is not type(None):
            try:
                return value_from(kind, plain, place)
            except ConfigError as error:
                last = error
    raise last or expected(place, "nothing", plain)


def _collection_from(
    origin: Callable[[Iterable[object]], object], args: tuple[object, ...], plain: object, place: str
) -> object:
    if isinstance(plain, (str, bytes)) or not isinstance(plain, Iterable):
        raise expected(place, "a list", plain)
    parts = list(plain)
    if origin is tuple and args[-1] is not Ellipsis:
        if len(parts) != len(args):
            raise expected(place, f"{len(args)} values", plain)
        return tuple(value_from(kind, part, place) for kind, part in zip(args, parts, strict=True))
    return origin(value_from(args[0], part, place) for part in parts)


def _enum_from(kind: type[Enum], plain: object, place: str) -> object:
    for member in kind:
        if plain is member or plain == member.value:
            return member
    raise expected(place, f"one of: {', '.join(str(member.value) for member in kind)}", plain)


def _path(plain: object, place: str) -> object:
    if not isinstance(plain, (str, os.PathLike)):
        raise expected(place, "a path", plain)
    return Path(plain)


def _integer(plain: object, place: str) -> object:
    number = _number(plain, place, what="an integer")
    if isinstance(number, float) and not number.is_integer():
        raise expected(place, "an integer", plain)
    return int(number)


def _number(plain: object, place: str, what: str = "a number") -> float:
    """Text too: YAML reads 1e-3 as text."""
    if isinstance(plain, bool) or not isinstance(plain, (int, float, str)):
        raise expected(place, what, plain)
    try:
        return float(plain) if isinstance(plain, str) else plain
    except ValueError as error:
        raise expected(place, what, plain) from error


def _boolean(plain: object, place: str) -> object:
    if not isinstance(plain, bool):
        raise expected(place, "true or false", plain)
    return plain


def _text(plain: object, place: str) -> object:
    if not isinstance(plain, str):
        raise expected(place, "text", plain)
    return plain


_PLAIN_TYPES: dict[object, Callable[[object, str], object]] = {
    Path: _path,
    int: _integer,
    float: _number,
    bool: _boolean,
    str: _text,
}
