"""The lines of an ``api_stack_dump.pkl`` as the entries msprobe, its successor, would have written."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trueup.errors import TraceError

_NAME = re.compile(
    r"(?P<prefix>[A-Za-z]+)_(?P<api>\w+)_(?P<number>\d+)_(?P<phase>forward|backward)"
    r"_(?P<side>input|output|stack_info)(?P<slot>(?:\.\d+)*)"
)
_STATISTICS = ("Max", "Min", "Mean")
_NUM_CELLS = 6


@dataclass(slots=True)
class ApiStack:
    """Entries by msprobe's key, and the lines of code they came from."""

    data: dict[str, Any] = field(default_factory=dict)
    stack: dict[str, Any] = field(default_factory=dict)


def read_api_stack(file: Path) -> ApiStack:
    """What ``file`` holds; numbers, text and lists, never objects.

    Raises:
        TraceError: a real pickle, empty, cut off, or of another kind; says at which line.
    """
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise TraceError(f"{file} cannot be read: {error.strerror or error}") from error
    if not raw.strip():
        raise TraceError(f"{file} is empty: the run ended before a dumped step was over. Dump again.")
    if not raw.lstrip().startswith(b"["):
        raise TraceError(
            f"{file} is a pickle; loading one can execute code, so it is not read. What ptdbg_ascend calls "
            "api_stack_dump.pkl is text, one JSON list a line; dump again with a current msprobe, which "
            "writes dump.json."
        )
    found = ApiStack()
    for number, line in enumerate(raw.decode("utf-8", "replace").splitlines(), 1):
        if line.strip():
            _take(found, line, f"{file}, line {number}")
    _collapse(found)
    return found


def _take(found: ApiStack, line: str, place: str) -> None:
    try:
        cells: Any = json.loads(line)
    except (ValueError, RecursionError):
        raise TraceError(
            f"{place}: not a JSON list; was the run killed while it was written? Remove the line to read the "
            "rest."
        ) from None
    name = _NAME.fullmatch(cells[0]) if isinstance(cells, list) and cells and _is_text(cells[0]) else None
    if name is None:
        raise TraceError(
            f"{place}: no line of an api_stack_dump.pkl, which begins with a name such as "
            "Torch_relu_0_forward_input.0"
        )
    key = f"{name['prefix']}.{name['api']}.{name['number']}.{name['phase']}"
    entry = found.data.setdefault(key, {"input": {}, "output": {}})
    if name["side"] == "stack_info":
        found.stack[str(len(found.stack))] = [[key], [_frame(f) for f in cells[-1] if isinstance(f, list)]]
        return
    if len(cells) < _NUM_CELLS or not isinstance(cells[5], list) or not _is_text(cells[3]):
        raise TraceError(f"{place}: expected a dtype, a shape and [max, min, mean] after the name")
    entry[name["side"]][name["slot"].removeprefix(".")] = _leaf(cells, place)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _leaf(cells: list[Any], place: str) -> dict[str, Any]:
    """One tensor or number as msprobe describes it."""
    name, _, _, dtype, shape, statistics = cells[:_NUM_CELLS]
    if not dtype.startswith("torch."):
        kind = dtype.removeprefix("<class '").removesuffix("'>")
        return {"type": kind, "value": statistics[0] if statistics else None}
    if not isinstance(shape, list) or not all(isinstance(size, int) for size in shape):
        raise TraceError(f"{place}: the shape is {shape!r}, not a list of numbers")
    leaf: dict[str, Any] = {"type": "torch.Tensor", "dtype": dtype, "shape": shape}
    for word, value in zip(_STATISTICS, statistics, strict=False):
        leaf[word] = float(value) if isinstance(value, (int, float)) else None
    return leaf | {"data_name": f"{name}.npy"}


def _frame(frame: list[Any]) -> str:
    path, line, function, source = [*map(str, frame), *[""] * 4][:4]
    return f"File {path}, line {line}, in {function}, \n {source}"


def _collapse(found: ApiStack) -> None:
    """Slots ``0``, ``1.0``, ``1.1`` become the nested lists of an entry."""
    for key, sides in found.data.items():
        inputs, outputs = _nested(sides["input"]), _nested(sides["output"])
        if key.endswith(".forward"):
            found.data[key] = {"input_args": inputs, "input_kwargs": {}, "output": outputs}
        else:
            found.data[key] = {"input": inputs, "output": outputs}


def _nested(slots: dict[str, dict[str, Any]]) -> list[Any]:
    if set(slots) == {""}:
        return [slots[""]]
    heads: dict[int, dict[str, dict[str, Any]]] = {}
    for slot, leaf in slots.items():
        head, _, rest = slot.partition(".")
        heads.setdefault(int(head or 0), {})[rest] = leaf
    size = 1 + max(heads, default=-1)
    parts = [heads.get(index, {}) for index in range(size)]
    return [part[""] if set(part) == {""} else _nested(part) if part else None for part in parts]
