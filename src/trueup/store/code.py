"""The program's functions that a rank's first step could reach, as capture kept them."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypedDict

from trueup.store import layout
from trueup.store.reader import TraceSource
from trueup.types.reason import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramFunction:
    """One function of the program."""

    name: str
    file: str
    line: int
    source: str
    digest: str
    """of its instructions"""
    values: Mapping[str, object]
    """plain values by the name they are used under"""
    calls: Mapping[str, int | str]
    """name -> number of a function of the program, or the full name of a library's"""

    @property
    def at(self) -> str:
        """``file:line``."""
        return f"{self.file}:{self.line}"


Called = int | str


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenTensor:
    """A tensor that a function was given."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CalledFunction:
    """A function that a module's own code called in its first pass."""

    name: str
    arguments: Mapping[str, Json]
    """slot -> what is no tensor"""
    after: int
    """how many calls of modules and the like the same code had made before"""
    tensors: Mapping[str, GivenTensor] = field(default_factory=dict)
    """by slot"""


Roots = Mapping[str, Called]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCode:
    """All functions of a rank's program, and where its calls begin."""

    functions: tuple[ProgramFunction, ...]
    types: Mapping[str, str]
    """module -> its class"""
    classes: Roots
    """class of modules -> its forward"""
    modules: Roots
    """module -> a forward of its own, ``module hook`` -> what is hung on it"""
    frames: Roots
    """functions above the calls, innermost first"""
    roles: Roots = field(default_factory=dict)
    """what else the step runs: the optimizer's step"""
    called: Mapping[str | None, tuple[CalledFunction, ...]] = field(default_factory=dict)
    """module -> functions that its own code called, in order; None: code outside all modules"""

    @property
    def names(self) -> set[str]:
        """Of the program's functions above the calls, and of its classes of modules."""
        return {*self.frames, *(name for name, called in self.classes.items() if isinstance(called, int))}

    @property
    def forwards(self) -> set[Called]:
        """What runs when modules are called, and is the program's own."""
        return {one for one in (*self.classes.values(), *self.modules.values()) if isinstance(one, int)}

    def function(self, called: Called | None) -> ProgramFunction | None:
        """The program's function of a number; None for a library's."""
        return (
            self.functions[called] if isinstance(called, int) and 0 <= called < len(self.functions) else None
        )

    def forward_of(self, module: str) -> Called | None:
        """What runs when a module is called."""
        return self.modules.get(module, self.classes.get(self.types.get(module, "")))


_Call = tuple[str, str | None, int, dict[str, tuple[str, list[int]]]]
"""as capture writes it: name, arguments as JSON, calls of modules before, dtype and shape of tensors"""


class _Noted(TypedDict):
    """Of all modules, and of the code outside."""

    modules: dict[str, list[_Call]]
    outside: list[_Call]


def _called(plain: _Noted | None) -> dict[str | None, tuple[CalledFunction, ...]]:
    """Of traces that kept it."""
    if plain is None:
        return {}
    return {
        module: tuple(
            CalledFunction(
                name=name,
                arguments=json.loads(text) if text else {},
                after=after,
                tensors={
                    slot: GivenTensor(dtype=dtype, shape=tuple(shape))
                    for slot, (dtype, shape) in tensors.items()
                },
            )
            for name, text, after, tensors in calls
        )
        for module, calls in (*plain["modules"].items(), (None, plain["outside"]))
    }


def code_of(source: TraceSource, rank: int) -> ProgramCode | None:
    """What a trace kept of a rank's program; None where nothing was, or it cannot be read."""
    path = layout.code_file(source.path, rank)
    if not path.is_file():
        return None
    try:
        plain = json.loads(gzip.decompress(path.read_bytes()))
        columns = ("name", "file", "line", "source", "digest", "values", "calls")
        functions = tuple(
            ProgramFunction(**dict(zip(columns, one, strict=True))) for one in plain["functions"]
        )
        roots = plain["roots"]
        return ProgramCode(
            functions=functions,
            types=roots["type"],
            classes=roots["class"],
            modules=roots["module"],
            frames=roots["frame"],
            roles=roots["role"],
            called=_called(plain.get("called")),
        )
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, AttributeError):
        return None
