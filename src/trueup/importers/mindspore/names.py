"""File names and operator names of MindSpore's dump taken apart.

A tensor's file is ``{op_type}.{op_name}.{task}.{stream}.{timestamp}.{side}.{slot}.{format}[.{dtype}].npy``, a
whole operator's in Ascend's own format ends after the timestamp. In ``op_name`` the slashes of the operator's
full name became underscores; ``order`` knows the full names where the dump holds them, else they are guessed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

_SIDES = ("input", "output")
_HEADS = ("Gradients", "recompute_Default", "Default", "Expand")
_WRAPPERS = ("network", "_backbone")
_CONTAINERS = frozenset({"CellList", "CellDict"})
_MANGLED = re.compile(r"[./\\ ]")
_NUMBERED = re.compile(r"(?P<op>.+?)(?:-op(?P<number>\d+))?")
_SCOPE_IN_MANGLED = re.compile(r"(_*[A-Za-z0-9]\w*?-_*[A-Za-z0-9]+)_(?=.)")
_GROUP_IN_MANGLED = re.compile(r"((?:Grad_|_)\w+?)_(\w+-op\d+.*)")
_SHORT_DTYPES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "int": "int32",
    "uint": "uint32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
}
_UPDATES = re.compile(
    r"(Fused|Sparse)*(Apply(?!Rotary)[A-Z]\w*|Adam\w*|Lamb|LARS\w*|SGD|Momentum|RMSProp\w*|Adafactor|Ftrl\w*)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileName:
    """What the name of one file says; ``side`` is None where the file holds a whole operator."""

    op_type: str
    op_name: str
    """with underscores where the full name has slashes"""
    task: str
    stream: str
    timestamp: int
    side: str | None = None
    slot: int = 0
    format: str | None = None
    dtype: str | None = None


def file_name(name: str) -> FileName | None:
    """Take the name of a ``.npy`` file, or of an operator's file of Ascend, apart; None for every other name.

    Example:
        >>> file_name("Add.Default_Add-op0.3.1.17.input.2.DefaultFormat.BFloat16.npy").dtype
        'bfloat16'
        >>> file_name("statistic.csv") is None
        True
    """
    parts = name.removesuffix(".npy").split(".")
    if not name.endswith(".npy"):
        parts = parts[:-1] if parts[-1] == "bin" else parts
        return _named(parts) if len(parts) >= 5 and _numbers(parts[-3:]) else None
    for at in range(len(parts) - 2, 4, -1):
        if parts[at] in _SIDES and parts[at + 1].isdecimal() and _numbers(parts[at - 3 : at]):
            after = parts[at + 2 :]
            return _named(
                parts[:at],
                side=parts[at],
                slot=int(parts[at + 1]),
                format=after[0] if after else None,
                dtype=dtype_from_mindspore(after[1]) if len(after) > 1 else None,
            )
    return None


def _numbers(parts: list[str]) -> bool:
    return all(part.isascii() and part.isdecimal() for part in parts)


def _named(parts: list[str], **more: str | int | None) -> FileName:
    return FileName(
        op_type=parts[0],
        op_name=".".join(parts[1:-3]),
        task=parts[-3],
        stream=parts[-2],
        timestamp=int(parts[-1]),
        **more,  # type: ignore[arg-type]
    )


@lru_cache(maxsize=1_000)
def dtype_from_mindspore(spelled: str) -> str:
    """Our name of a dtype.

    Example:
        >>> dtype_from_mindspore("Float32"), dtype_from_mindspore("BFloat16"), dtype_from_mindspore("bool_")
        ('float32', 'bfloat16', 'bool')
    """
    word = spelled.strip().lower().removeprefix("dt_").removesuffix("_")
    return _SHORT_DTYPES.get(word, word)


def mangled(full_name: str) -> str:
    """An operator's full name as file names spell it.

    Example:
        >>> mangled("Default/fc1-Dense/MatMul-op0")
        'Default_fc1-Dense_MatMul-op0'
    """
    return _MANGLED.sub("_", full_name)


def full_name_from_mangled(name: str) -> str:
    """A guess at the full name where no list of them is there; right where scopes carry class names.

    Example:
        >>> full_name_from_mangled("Default_network-WithLossCell__backbone-Net_fc1-Dense_MatMul-op0")
        'Default/network-WithLossCell/_backbone-Net/fc1-Dense/MatMul-op0'
    """
    parts = []
    rest = name
    while head := next((h for h in _HEADS if rest.startswith(f"{h}_")), None):
        parts.append(head)
        rest = rest[len(head) + 1 :]
    while scope := _SCOPE_IN_MANGLED.match(rest):
        parts.append(scope.group(1))
        rest = rest[scope.end() :]
    group = _GROUP_IN_MANGLED.fullmatch(rest) if {"Gradients", "Expand"} & set(parts) else None
    return "/".join([*parts, *(group.groups() if group else (rest,))])


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorName:
    """What the full name of an operator says."""

    op: str
    """the operator's own name, without its number"""
    phase: str
    """``forward``, ``backward`` or ``optimizer``"""
    mode: str
    """``train``, or ``recompute`` where the forward operator runs again inside backward"""
    group: str | None
    """what the operator was expanded from (``Grad_MatMul``, ``_SoftmaxBackward``)"""
    wrappers: tuple[tuple[str, str | None], ...]
    """name and class of the cells around the model (``network``, ``_backbone``); the last may be the model"""
    modules: tuple[tuple[str, str | None], ...]
    """name and class of the cells below them"""


@lru_cache(maxsize=100_000)
def operator_name(full_name: str, op_type: str = "") -> OperatorName:
    """Take a full name apart. One of no known form is an operator of the top level.

    Example:
        >>> operator_name("Gradients/Default/network-Cell/fc2-Dense/Grad_MatMul/MatMul-op2").modules
        (('fc2', 'Dense'),)
    """
    *scope, last = full_name.split("/")
    heads = []
    while scope and scope[0] in _HEADS:
        heads.append(scope.pop(0))
    group = None
    if scope and (scope[-1].startswith("Grad_") or "Expand" in heads):
        group = scope.pop()
    cells = [_cell(part) for part in scope]
    number = wrappers_among(cells)
    op = _NUMBERED.fullmatch(last)
    own = op.group("op") if op else last
    phase = _phase(heads, group, cells, own, op_type)
    recomputed = "recompute_Default" in heads and "Gradients" not in heads
    return OperatorName(
        op=own,
        phase=phase,
        mode="recompute" if recomputed else "train",
        group=group,
        wrappers=tuple(cells[:number]),
        modules=tuple(cells[number:]),
    )


def wrappers_among(cells: Sequence[tuple[str, str | None]]) -> int:
    """How many of the outermost cells lead to the model."""
    return next((i for i, (name, _) in enumerate(cells) if name not in _WRAPPERS), len(cells))


def _cell(part: str) -> tuple[str, str | None]:
    name, _, kind = part.partition("-")
    return name, kind or None


def _phase(
    heads: list[str], group: str | None, cells: list[tuple[str, str | None]], op: str, op_type: str
) -> str:
    if any(name == "optimizer" for name, _ in cells) or _UPDATES.fullmatch(op) or _UPDATES.fullmatch(op_type):
        return "optimizer"
    backward = group is not None and (group.startswith("Grad_") or "Backward" in group or "Grad" in group)
    return "backward" if "Gradients" in heads or backward else "forward"


def is_container(kind: str | None) -> bool:
    """Whether cells of that class only hold others and are never called."""
    return kind in _CONTAINERS
