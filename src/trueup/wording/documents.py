"""JSON documents: text where a person looks, the reason beside it for scripts.

    {"headline": "...", "headline_reason": {"code": ..., "numbers": ..., "places": ...},
     "evidence": ["..."], "evidence_reasons": [{...}]}

A key ``next`` holds the command to type, ``next_note`` what it is for, ``next_reason`` the reason of both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from trueup.types.codes import GivenCode
from trueup.types.confidence import Confidence
from trueup.types.reason import Reason, reason_from_json
from trueup.wording.catalogue import command, headline, text

_AS_IT_IS = frozenset({str, int, float, bool, type(None)})
"""most values of a large document: asked for first"""


def document(value: Any) -> Any:
    """Plain values of what reports are made of: dataclasses become objects (those with ``to_json`` as it
    makes them), enums their values, reasons their text with the reason beside it."""
    if type(value) in _AS_IT_IS:
        return value
    if isinstance(value, Enum):
        return value.value
    if hasattr(value, "to_json"):
        return document(value.to_json())
    if is_dataclass(value):
        return _object((one.name, getattr(value, one.name)) for one in fields(value))
    if isinstance(value, Mapping):
        return _object((str(name), item) for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return [text(item) if isinstance(item, Reason) else document(item) for item in value]
    return value


def refuse_unreadable(plain: object) -> None:
    """Be sure that every reason of a document that was read can be put into words again.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: one cannot: a fact is missing or of another kind.
    """
    if isinstance(plain, Mapping):
        for name, item in plain.items():
            if name.endswith("_reason"):
                one_reason = reason_from_json(item)
                _ = headline(one_reason) if name == "headline_reason" else text(one_reason)
                _ = command(one_reason) if name == "next_reason" else None
            elif name.endswith("_reasons"):
                _ = [text(reason_from_json(one)) for one in item or ()]
            else:
                refuse_unreadable(item)
    elif isinstance(plain, (list, tuple)):
        for item in plain:
            refuse_unreadable(item)


def _object(items: Iterable[tuple[str, object]]) -> dict[str, object]:
    plain: dict[str, object] = {}
    for name, item in items:
        if type(item) in _AS_IT_IS:
            if item is not None or name not in plain:  # ``next_note`` is there already, from ``next``
                plain[name] = item
        elif isinstance(item, Reason):
            plain |= _reason(name, item)
        elif isinstance(item, Confidence):
            plain |= {name: item.share, f"{name}_word": item.word.value}
        elif isinstance(item, (list, tuple)) and any(isinstance(one, Reason) for one in item):
            plain[name] = document(item)
            plain[f"{name}_reasons"] = [one.to_json() for one in item if isinstance(one, Reason)]
        else:
            plain[name] = document(item)
    return plain


def _reason(name: str, reason: Reason) -> dict[str, object]:
    beside = {f"{name}_reason": reason.to_json()}
    if name == "next" and reason.code is GivenCode.TEXT:
        return {"next": text(reason), **beside}
    if name == "next":
        return {"next": command(reason), "next_note": text(reason), **beside}
    return {name: headline(reason) if name == "headline" else text(reason), **beside}
