"""The calls of one step of one rank, by number, by name and by place; -1 is no call."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TypeAlias

import polars as pl

from trueup.store.places import places
from trueup.store.reader import StepTables
from trueup.types.reason import Json

_PathPart: TypeAlias = "tuple[str, str, int, str | None] | int | None"


class CallTree:
    """Columns of ``calls``, each read when it is first asked for, and who calls whom."""

    tables: StepTables

    @cached_property
    def kind(self) -> list[str]:
        """``module api collective parameter loss``"""
        return self._words("kind").to_list()

    @cached_property
    def name(self) -> list[str]:
        """Fully qualified name of a module or parameter (``""`` is the root), name of a function."""
        return [name or "" for name in self._words("name").to_list()]

    @cached_property
    def type(self) -> list[str | None]:
        """Class of a module."""
        return self._words("type").to_list()

    @cached_property
    def mode(self) -> list[str | None]:
        """``train eval recompute``"""
        return self._words("mode").to_list()

    @cached_property
    def ordinal(self) -> list[int]:
        """How many calls of the same kind and name the same caller made before."""
        return self.tables.calls["ordinal"].to_list()

    @cached_property
    def microbatch(self) -> list[int | None]:
        """Microbatch of a call; records have ``record_microbatch``."""
        return self.tables.calls["microbatch"].to_list()

    @cached_property
    def parent(self) -> list[int]:
        """The module call that makes a call, -1 at top level."""
        return self.tables.calls["parent"].fill_null(-1).to_list()

    @cached_property
    def opaque(self) -> list[bool]:
        """Whether a module was captured at its boundary only."""
        return self.tables.calls["opaque"].to_list()

    @cached_property
    def stack(self) -> list[int | None]:
        """Number of a call's stack."""
        return self.tables.calls["stack"].to_list()

    @cached_property
    def arguments_text(self) -> list[str | None]:
        """What a call was given besides tensors, as JSON."""
        return self._words("arguments").to_list()

    @cached_property
    def kinds_with_arguments(self) -> frozenset[str]:
        """Kinds of calls whose arguments were looked for: those of which some call has any."""
        pairs = zip(self.kind, self.arguments_text, strict=True)
        return frozenset(kind for kind, text in pairs if text is not None)

    def arguments(self, call: int) -> Mapping[str, Json]:
        """The same, slot -> value; empty where there is none."""
        text = self.arguments_text[call]
        return json.loads(text) if text else {}

    def shown(self, call: int) -> str:
        """Name as a person reads it: ``torch.matmul[1]``."""
        return (self.name[call] or "(root)") + (f"[{self.ordinal[call]}]" if self.ordinal[call] else "")

    # -- the tree of calls ------------------------------------------

    def children(self, call: int) -> list[int]:
        """Calls that a call makes itself, in order; of -1 those at top level."""
        return self._children.get(call, [])

    def enclosing(self, call: int) -> list[int]:
        """Module calls around a call, innermost first."""
        found = []
        while (call := self.parent[call]) >= 0:
            found.append(call)
        return found

    def caller(self, call: int) -> str | None:
        """Name of the module whose own code makes a call; None at top level."""
        parent = self.parent[call]
        return None if parent < 0 else self.name[parent]

    def named(self, kind: str, name: str) -> list[int]:
        """Calls of a kind and name, in order."""
        return self._by_name.get((kind, name), [])

    def calls_of_kind(self, kind: str) -> Iterator[int]:
        """Calls of one kind, in order."""
        return (call for call, one in enumerate(self.kind) if one == kind)

    @cached_property
    def places(self) -> list[str]:
        """Place of each call (``store.places``), the same in every run of a program."""
        return places(self.tables.calls)

    def path(self, call: int, *, microbatch: bool = True) -> tuple[_PathPart, ...]:
        """A call's place: kind, name, ordinal and mode of it and of the calls around it, outermost first."""
        found: list[_PathPart] = []
        while call >= 0:
            found.append((self.kind[call], self.name[call], self.ordinal[call], self.mode[call]))
            if self.parent[call] < 0 and microbatch and self.kind[call] != "parameter":
                found.append(self.microbatch[call])
            call = self.parent[call]
        return tuple(reversed(found))

    def same_place(self, other: CallTree, call: int, *, microbatch: bool = True) -> list[int]:
        """Calls here at the place a call has in another view."""
        wanted = other.path(call, microbatch=microbatch)
        alike = self.named(other.kind[call], other.name[call])
        return [one for one in alike if self.path(one, microbatch=microbatch) == wanted]

    @cached_property
    def frames(self) -> Mapping[int | None, list[str]]:
        """Frames of each stack, innermost first: ``file:line function | source line``."""
        return dict(self.tables.stacks.select("stack", "frames").iter_rows())

    def innermost_frame(self, call: int) -> str | None:
        """Where a call was made; of a call around it where it has no stack."""
        for one in (call, *self.enclosing(call)):
            frames = self.frames.get(self.stack[one])
            if frames:
                return frames[0]
        return None

    def _words(self, column: str) -> pl.Series:
        words: pl.Series = self.tables.calls[column].cast(pl.String)
        return words

    @cached_property
    def _children(self) -> dict[int, list[int]]:
        return grouped(self.parent)

    @cached_property
    def _by_name(self) -> dict[tuple[str, str], list[int]]:
        found: dict[tuple[str, str], list[int]] = {}
        for call, key in enumerate(zip(self.kind, self.name, strict=True)):
            found.setdefault(key, []).append(call)
        return found


def grouped(keys: list[int]) -> dict[int, list[int]]:
    """Key -> the rows that have it, in order."""
    found: dict[int, list[int]] = {}
    for row, key in enumerate(keys):
        found.setdefault(key, []).append(row)
    return found
