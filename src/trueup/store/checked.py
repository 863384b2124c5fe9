"""What a JSON file of a trace holds, held to its type: a damaged file is an error with its name and place."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from trueup.errors import TraceError

_Kind = TypeVar("_Kind")


def checked(value: object, kind: type[_Kind], where: str) -> _Kind:
    """``value`` itself, once it is known to be of ``kind``, a ``TypedDict``; keys that are not known stay.

    Raises:
        TraceError: a key has a value of another type; names ``where`` and the key.
    """
    try:
        _adapter(cast(Any, kind)).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise TraceError(
            f"{where}: {place}: {first['msg']} (got {str(first['input'])[:60]!r}); was it edited by hand? "
            "Put back what the capture wrote, or capture again"
        ) from error
    return cast(_Kind, value)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
