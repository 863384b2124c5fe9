"""What a file of ours holds, held to its type: a damaged file is an error with its name and place."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from trueup.errors import TraceError
from trueup.store.files import object_from_json, refuse_irregular

_Kind = TypeVar("_Kind")

CAPTURE_AGAIN = "Put back what the capture wrote, or capture again"


def checked(value: object, kind: type[_Kind], where: str, *, remedy: str = CAPTURE_AGAIN) -> _Kind:
    """``value`` itself, once it is known to be of ``kind``, a ``TypedDict``; keys that are not known stay.
    A number in place of a text, or a text that spells a number, is another type.

    Raises:
        TraceError: a key has a value of another type; names ``where`` and the key.
    """
    try:
        _adapter(cast(Any, kind)).validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise TraceError(
            f"{where}: {place}: {first['msg']} (got {str(first['input'])[:60]!r}); was it edited by hand? "
            f"{remedy}"
        ) from error
    return cast(_Kind, value)


def document_from_file(
    path: Path,
    kind: type[_Kind],
    *,
    versions: Sequence[int],
    remedy: str,
    version: str = "schema_version",
) -> _Kind:
    """The JSON document that trueup wrote there.

    Args:
        path: of the file.
        kind: a ``TypedDict``, what is read of it.
        versions: those that are read.
        remedy: what a person does where it is damaged.
        version: the key of its version.

    Raises:
        TraceError: it is not there, is no JSON, of another version, or has a value of another type.
    """
    try:
        refuse_irregular(path)
        document = object_from_json(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        raise TraceError(f"{path} is not there. {remedy}") from None
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}. {remedy}") from error
    except ValueError as error:
        raise TraceError(f"{path} is not JSON ({error}). {remedy}") from error
    if (found := document.get(version)) not in versions:
        known = ", ".join(map(str, versions))
        raise TraceError(f"{path} is of version {found!r}, this trueup reads {known}. {remedy}")
    return checked(document, kind, str(path), remedy=remedy)


def object_from_cell(text: str, kind: type[_Kind], where: str, *, remedy: str) -> _Kind:
    """The JSON object in a cell of a table.

    Raises:
        TraceError: it is no JSON object, or a key has a value of another type; names ``where``.
    """
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{where}: {text[:60]!r} is no JSON ({error}); {remedy}") from error
    return checked(found, kind, where, remedy=remedy)


@contextmanager
def as_written(where: object, *, remedy: str = CAPTURE_AGAIN) -> Iterator[None]:
    """Around code that makes values of what a file of ours holds, and nothing else.

    Raises:
        TraceError: a key is missing, or a value is none that we write; names ``where``.
    """
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise TraceError(
            f"{where} is not what trueup wrote ({type(error).__name__}: {error}). {remedy}"
        ) from error


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
