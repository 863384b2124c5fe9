"""The lines of an ``api_stack_dump.pkl`` as the entries msprobe, its successor, would have written."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trueup.errors import TraceError
from trueup.importers.msprobe.leaves import DumpedCall
from trueup.types.plain import number_from_json

_NAME = re.compile(
    r"(?P<base>\S(?:.*\S)?)_(?P<number>\d+)_(?P<phase>forward|backward)"
    r"_(?P<side>input|output|stack_info)(?P<slot>(?:\.\d{1,5})*)"
)
_FUNCTION = re.compile(r"(?P<prefix>Aten|Distributed|Functional|Module|NPU|Tensor|Torch|VF)_(?P<name>.+)")
"""of every other name a person gave it to a module that is dumped whole (``module_dump``)"""
_STATISTICS = ("Max", "Min", "Mean", "Norm")
"""the norm came with later versions"""
_NUM_CELLS = 6
_MD5_CELL = 2
"""empty but with ``summary_mode="md5"``, where there is no statistic"""
_DIGEST_CELL, _NORM_CELL = 6, 7
"""cells that troubleshooter's lists have besides"""


_Sides = dict[str, dict[str, object]]
"""``input`` and ``output`` -> slot -> leaf"""


@dataclass(slots=True)
class ApiStack:
    """Entries by msprobe's key, and the lines of code they came from."""

    data: dict[str, DumpedCall] = field(default_factory=dict)
    stack: dict[str, object] = field(default_factory=dict)


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
    sides: dict[str, _Sides] = {}
    for number, line in enumerate(raw.decode("utf-8", "replace").splitlines(), 1):
        if line.strip():
            _take(found, sides, line, f"{file}, line {number}")
    found.data = _collapsed(sides)
    return found


def _take(found: ApiStack, all_sides: dict[str, _Sides], line: str, place: str) -> None:
    try:
        cells: object = json.loads(line)
    except (ValueError, RecursionError):
        raise TraceError(
            f"{place}: not a JSON list; was the run killed while it was written? Remove the line to read the "
            "rest."
        ) from None
    head = cells[0] if isinstance(cells, list) and cells else None
    name = _NAME.fullmatch(head) if isinstance(head, str) else None
    if name is None or not isinstance(cells, list):
        raise TraceError(
            f"{place}: no line of an api_stack_dump.pkl, which begins with a name such as "
            "Torch_relu_0_forward_input.0"
        )
    function = _FUNCTION.fullmatch(name["base"])
    called = f"{function['prefix']}.{function['name']}" if function else f"Module.{name['base']}"
    key = f"{called}.{name['number']}.{name['phase']}"
    entry = all_sides.setdefault(key, {"input": {}, "output": {}})
    if name["side"] == "stack_info":
        if not isinstance(cells[-1], list):
            raise TraceError(f"{place}: expected the frames of a call after the name")
        found.stack[str(len(found.stack))] = [[key], [_frame(f) for f in cells[-1] if isinstance(f, list)]]
        return
    if len(cells) < _NUM_CELLS or not isinstance(cells[5], list) or not isinstance(cells[3], str):
        raise TraceError(f"{place}: expected a dtype, a shape and [max, min, mean] after the name")
    entry[name["side"]][name["slot"].removeprefix(".")] = _leaf(cells, place)


def _leaf(cells: list[object], place: str) -> dict[str, object]:
    """One tensor or number as msprobe describes it."""
    name, _, _, dtype, shape, statistics = cells[:_NUM_CELLS]
    assert isinstance(dtype, str)
    assert isinstance(statistics, list)
    if not dtype.startswith("torch."):
        kind = dtype.removeprefix("<class '").removesuffix("'>")
        return {"type": kind, "value": statistics[0] if statistics else None}
    if not isinstance(shape, list) or not all(type(size) is int and 0 <= size < 2**63 for size in shape):
        raise TraceError(f"{place}: the shape is {shape!r}, not a list of numbers")
    leaf: dict[str, object] = {"type": "torch.Tensor", "dtype": dtype, "shape": shape}
    more = dict(enumerate(cells[_NUM_CELLS:], _NUM_CELLS))
    numbers = [*statistics, *[None] * len(_STATISTICS)][: len(_STATISTICS)]
    numbers[-1] = more.get(_NORM_CELL) if numbers[-1] is None else numbers[-1]
    # of what has none these lists hold "Nan" or an empty list
    leaf |= {word: _statistic(value) for word, value in zip(_STATISTICS, numbers, strict=True)}
    digest = cells[_MD5_CELL] or more.get(_DIGEST_CELL)
    if isinstance(digest, str) and digest:
        leaf["md5"] = digest
    return leaf | {"data_name": f"{name}.npy"}


def _statistic(value: object) -> float | None:
    """A number, JSON's NaN too: of a tensor that holds one the extremes are NaN."""
    return value if isinstance(value, float) else number_from_json(value)


def _frame(frame: list[object]) -> str:
    path, line, function, source = [*map(str, frame), *[""] * 4][:4]
    return f"File {path}, line {line}, in {function}, \n {source}"


def _collapsed(all_sides: Mapping[str, _Sides]) -> dict[str, DumpedCall]:
    """Slots ``0``, ``1.0``, ``1.1`` become the nested lists of an entry."""
    found: dict[str, DumpedCall] = {}
    for key, sides in all_sides.items():
        inputs, outputs = _nested(sides["input"]), _nested(sides["output"])
        if key.endswith(".forward"):
            found[key] = {"input_args": inputs, "input_kwargs": {}, "output": outputs}
        else:
            found[key] = {"input": inputs, "output": outputs}
    return found


def _nested(slots: Mapping[str, object]) -> list[object]:
    if set(slots) == {""}:
        return [slots[""]]
    heads: dict[int, dict[str, object]] = {}
    for slot, leaf in slots.items():
        head, _, rest = slot.partition(".")
        heads.setdefault(int(head or 0), {})[rest] = leaf
    size = 1 + max(heads, default=-1)
    parts = [heads.get(index, {}) for index in range(size)]
    return [part[""] if set(part) == {""} else _nested(part) if part else None for part in parts]
