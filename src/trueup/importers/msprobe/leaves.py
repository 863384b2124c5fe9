"""The values inside one entry: nested lists and objects taken apart into named slots."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TypedDict, cast

_DTYPE = re.compile(r"torch\.[a-z]+\d*\w*$")
_MEMORY_FORMAT = re.compile(r"torch\.(contiguous|channels_last|channels_last_3d|preserve)(_format)?$")
_MINDSPORE_DTYPE = re.compile(r"(Bool|B?Float|U?Int|BF|UI|Complex)\w*\d*$")
_SIZE = re.compile(r"torch\.Size\(\[([\d, ]*)\]\)$")
_SLICE = re.compile(r"slice\((\S+), (\S+), (\S+)\)$")


class Leaf(TypedDict, total=False):
    """A tensor, or a value of another type."""

    type: str
    dtype: str
    shape: list[int]
    Max: float | None
    Min: float | None
    Mean: float | None
    Norm: float | None
    requires_grad: bool | None
    md5: str | float | None
    data_name: str | None


class DumpedCall(TypedDict, total=False):
    """One call, forward (its inputs have a name or none) or backward."""

    input_args: list[object]
    input_kwargs: dict[str, object]
    input: list[object]
    output: list[object]
    parameters: dict[str, Leaf | None]


@dataclass(slots=True)
class Leaves:
    """What one side (inputs or outputs) of an entry holds, by slot."""

    tensors: list[tuple[str, Leaf]] = field(default_factory=list)
    scalars: dict[str, object] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)
    """slots that held ``None``, or something msprobe does not record"""

    def add(self, slot: str, value: object) -> None:
        """Take ``value`` apart into this object, under ``slot``."""
        if value is None:
            self.absent.append(slot)
        elif isinstance(value, dict):
            kind = value.get("type")
            if isinstance(kind, str):
                if "shape" in value:
                    self.tensors.append((slot, cast(Leaf, value)))
                else:
                    self.scalars[slot] = scalar_from_dump(value)
            elif value:
                for key, inner in value.items():
                    self.add(f"{slot}.{key}", inner)
            else:
                self.scalars[slot] = {}
        elif isinstance(value, list):
            if not value:
                self.scalars[slot] = []
            for index, inner in enumerate(value):
                self.add(f"{slot}.{index}", inner)
        else:
            self.scalars[slot] = value


def input_leaves(entry: DumpedCall) -> Leaves:
    """``input_args`` and ``input_kwargs`` of a forward entry."""
    found = Leaves()
    for index, value in enumerate(entry.get("input_args") or ()):
        found.add(f"input.{index}", value)
    for key, value in (entry.get("input_kwargs") or {}).items():
        found.add(f"input.{key}", value)
    return found


def output_leaves(entry: DumpedCall) -> Leaves:
    """``output`` of a forward entry; a mapping as the whole result gives ``output.<key>``, as in capture."""
    found = Leaves()
    output = entry.get("output") or []
    if (
        len(output) == 1
        and isinstance(output[0], dict)
        and output[0]
        and not isinstance(output[0].get("type"), str)
    ):
        found.add("output", output[0])
        return found
    for index, value in enumerate(output):
        found.add(f"output.{index}", value)
    return found


def backward_slots(side: str, num_gradients: int, forward: Leaves | None, num_forward: int) -> list[str]:
    """Slots of the gradients of one side, in msprobe's order.

    msprobe lists one gradient per position; where the forward value was nested, one per tensor instead.
    """
    if forward is not None and num_gradients != num_forward and len(forward.tensors) == num_gradients:
        return [slot for slot, _ in forward.tensors]
    if forward is not None and forward.tensors and num_gradients <= len(forward.tensors):
        nested = any(
            slot.count(".") > 1 or not slot.rpartition(".")[2].isdecimal() for slot, _ in forward.tensors
        )
        if nested and num_gradients >= num_forward:
            return [slot for slot, _ in forward.tensors[:num_gradients]]
    return [f"{side}.{index}" for index in range(num_gradients)]


def scalar_from_dump(leaf: dict[str, object]) -> object:
    """A typed leaf as the plain JSON value capture would have written; unknown types are kept whole."""
    kind, value = leaf["type"], leaf.get("value")
    if kind in ("int", "float", "bool", "str", "torch.dtype", "mindspore.dtype", "torch.device"):
        return value
    if kind == "slice" and isinstance(value, list) and len(value) == 3:
        return f"slice({value[0]}, {value[1]}, {value[2]})"
    if kind == "torch.Size" and isinstance(value, list):
        return f"torch.Size({value})"
    if kind == "ellipsis":
        return "Ellipsis"
    if kind == "torch.memory_format":
        return f"torch.{leaf.get('format')}"
    return leaf


def scalar_for_dump(value: object, slot: str, framework: str) -> object:
    """The typed leaf of one argument; what msprobe has no form for becomes null."""
    if value is None or isinstance(value, (list, dict)):
        if isinstance(value, dict) and isinstance(value.get("type"), str):
            return value
        return value if value in ([], {}) else None
    if not isinstance(value, str):
        return {"type": type(value).__name__, "value": value}
    return _text_for_dump(value, slot, framework)


def _text_for_dump(value: str, slot: str, framework: str) -> dict[str, object] | None:
    name = slot.rpartition(".")[2]
    if framework == "mindspore" and _MINDSPORE_DTYPE.match(value) and not name.isalpha() | (name == "dtype"):
        return {"type": "mindspore.dtype", "value": value}
    if framework == "mindspore" and name == "dtype":
        return {"type": "mindspore.dtype", "value": value}
    if _MEMORY_FORMAT.match(value):
        return {"type": "torch.memory_format", "format": value.removeprefix("torch.")}
    if _DTYPE.match(value):
        return {"type": "torch.dtype", "value": value}
    if name == "device":
        return {"type": "torch.device", "value": value}
    if value == "Ellipsis":
        return {"type": "ellipsis", "value": "..."}
    size, cut = _SIZE.match(value), _SLICE.match(value)
    if size:
        return {"type": "torch.Size", "value": [int(n) for n in size.group(1).split(",") if n.strip()]}
    if cut:
        bounds = [
            None if b == "None" else int(b) if b.lstrip("-").isdecimal() else None for b in cut.groups()
        ]
        return {"type": "slice", "value": bounds}
    if value.startswith("<") and value.endswith(">"):  # an object capture did not write out
        return None
    return {"type": "str", "value": value}
