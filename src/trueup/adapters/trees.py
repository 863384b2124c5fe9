"""Arguments and results of a call, taken apart into named slots: tensors on one side, everything else on the
other."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sized
from typing import Any, Generic, TypeVar

TensorT = TypeVar("TensorT")
_PLAIN = (bool, int, float, str)
_LONG = 64
"""lists of more non-tensors are named by their length"""
_slots: dict[tuple[str, int], str] = {}
_inputs: list[str] = []
"""slots of a call's arguments, as many as a call has had"""
_arguments: dict[object, str] = {}


def slot(prefix: str, index: int) -> str:
    """``prefix.index``, made once."""
    key = (prefix, index)
    name = _slots.get(key)
    if name is None:
        name = _slots[key] = f"{prefix}.{index}"
    return name


class Trees(Generic[TensorT]):
    """Takes calls apart, for one framework's type of tensor."""

    def __init__(self, tensor_type: type[TensorT], *, described: tuple[type, ...]) -> None:
        """``described``: types other than plain ones whose text says everything (dtypes, devices)."""
        self._tensor = tensor_type
        self._described = (*described, slice)

    def leaves(self, prefix: str, value: Any, depth: int = 0) -> Iterator[tuple[str, object]]:
        """Slots and leaves of one argument or result: tuples, lists, mappings, dataclasses and ``None``
        included."""
        if isinstance(value, self._tensor) or value is None or isinstance(value, _PLAIN) or depth > 8:
            yield prefix, value
        elif isinstance(value, (tuple, list)):
            if len(value) > _LONG and not isinstance(value[0], self._tensor):
                yield prefix, _Long(value)
                return
            names = getattr(value, "_fields", None)
            for i, item in enumerate(value):
                inner = f"{prefix}.{names[i]}" if names else slot(prefix, i)
                yield from self.leaves(inner, item, depth + 1)
        elif isinstance(value, dict) or (hasattr(value, "keys") and not isinstance(value, type)):
            for key in value.keys():  # noqa: SIM118  (mappings that iterate over something else exist)
                yield from self.leaves(f"{prefix}.{key}", value[key], depth + 1)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            for item in dataclasses.fields(value):
                yield from self.leaves(f"{prefix}.{item.name}", getattr(value, item.name), depth + 1)
        else:
            yield prefix, value

    def split_call(
        self, args: tuple[object, ...], kwargs: dict[str, object] | None
    ) -> tuple[list[tuple[str, TensorT]], str | None]:
        """Tensors of a call by slot, its other arguments as one JSON object, if there are any."""
        tensors: list[tuple[str, TensorT]] = []
        rest: list[tuple[str, object]] = []
        tensor_type = self._tensor
        while len(_inputs) < len(args):
            _inputs.append(slot("input", len(_inputs)))
        for name, arg in zip(_inputs, args, strict=False):
            if isinstance(arg, tensor_type):
                tensors.append((name, arg))
            elif arg is None:
                continue
            elif isinstance(arg, _PLAIN):
                rest.append((name, arg))
            else:
                self._split(name, arg, tensors, rest)
        if kwargs:
            for key, arg in kwargs.items():
                if arg is not None:
                    self._split(f"input.{key}", arg, tensors, rest)
        return tensors, _json(rest) if rest else None

    def split_result(self, value: object) -> list[tuple[str, TensorT]]:
        """Tensors of a result by slot; a bare tensor is ``output.0``."""
        if isinstance(value, self._tensor):
            return [("output.0", value)]
        if value is None or isinstance(value, _PLAIN):
            return []
        return [(name, leaf) for name, leaf in self.leaves("output", value) if isinstance(leaf, self._tensor)]

    def _split(
        self, name: str, value: object, tensors: list[tuple[str, TensorT]], rest: list[tuple[str, object]]
    ) -> None:
        for inner, leaf in self.leaves(name, value):
            if isinstance(leaf, self._tensor):
                tensors.append((inner, leaf))
            elif leaf is not None:
                rest.append((inner, leaf if isinstance(leaf, _PLAIN) else self._text(leaf)))

    def _text(self, value: object) -> str:
        """A short text without memory addresses, so that two runs write the same."""
        if isinstance(value, _Long):
            return value.text
        if isinstance(value, self._described) or value is Ellipsis:
            return str(value)
        return f"<{type(value).__name__}>"


class _Long:
    """A list too long to list."""

    def __init__(self, value: Sized) -> None:
        self.text = f"<{type(value).__name__} of {len(value)}>"


def _json(rest: list[tuple[str, object]]) -> str:
    key = tuple((name, value.__class__, value) for name, value in rest)
    text = _arguments.get(key)
    if text is None:
        if len(_arguments) > 100_000:
            _arguments.clear()
        text = _arguments[key] = json.dumps(dict(rest), ensure_ascii=True)
    return text
