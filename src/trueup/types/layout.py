"""The layout of a run: its mesh of processes, and how every tensor is placed on it.

Plain data, as a program declares it (``trueup.declare_layout``), as a trace's manifest holds it and as a
person may write it in YAML; docs/trace-format.md says what each key means.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from trueup.errors import ConfigError
from trueup.types.placement import (
    At,
    Invariant,
    Partial,
    Placement,
    Replicate,
    Shard,
    Unknown,
    gradient_of,
    placement_from,
)
from trueup.types.trace import Root

VERSION = 1
BATCH = "batch"
"""stands in rows for the axes of ``Layout.batch`` and for the microbatches of a rank together"""


@dataclass(frozen=True, slots=True)
class LayoutRow:
    """Placements of the tensors that fit; of several rows that fit, the first that names an axis holds."""

    name: str
    """pattern of a module's or parameter's fqn; ``*`` stands for anything"""
    placements: Mapping[str, Placement]
    slot: str = "*"
    phase: str | None = None
    """of the records it is about, whose own placement it gives; None: of the tensor, whose gradient is placed
    dually"""
    split: tuple[int, ...] | None = None
    """sizes, one of them -1, in which dim 0 is to be seen before dims are counted"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """See the module's docstring."""

    mesh: Mapping[str, int]
    """axis -> processes; ranks are numbered row-major over it, the last axis fastest"""
    parameters: tuple[LayoutRow, ...] = ()
    tensors: tuple[LayoutRow, ...] = ()
    batch: tuple[str, ...] = ()
    """axes along which processes read other samples: microbatch m of the d-th of D is number m D + d"""
    stages: tuple[tuple[int, ...], ...] = ((0,),)
    """for each index along ``pipeline`` the stages it has, in the order in which they first ran"""
    pipeline: str = "pp"
    reduced: tuple[str, ...] = ()
    """axes over which ``.grad`` is reduced already when backward returns"""
    source: str = "declared"
    """where it is known from"""
    _tables: dict[str, LayoutTable] = field(default_factory=dict, repr=False, compare=False)
    _known: dict[tuple[str, str, str, str, bool], Placed] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def size(self) -> int:
        """Processes."""
        return math.prod(self.mesh.values())

    @property
    def num_stages(self) -> int:
        """Pipeline stages."""
        return 1 + max(stage for some in self.stages for stage in some)

    @property
    def num_batches(self) -> int:
        """Processes that read different samples."""
        return math.prod(self.mesh[axis] for axis in self.batch)

    def coordinate(self, rank: int) -> dict[str, int]:
        """Index of a rank along each axis."""
        found: dict[str, int] = {}
        for axis in reversed(list(self.mesh)):
            rank, found[axis] = divmod(rank, self.mesh[axis])
        return {axis: found[axis] for axis in self.mesh}

    def group(self, rank: int, axes: Collection[str]) -> tuple[int, ...]:
        """The ranks that differ from one, which is among them, along these axes alone."""
        own = self.coordinate(rank)
        return tuple(
            other
            for other in range(self.size)
            if all(at == own[axis] for axis, at in self.coordinate(other).items() if axis not in axes)
        )

    @property
    def wide_axes(self) -> tuple[str, ...]:
        """Axes of more than one process."""
        return tuple(axis for axis, size in self.mesh.items() if size > 1)

    def batch_index(self, coordinate: Mapping[str, int]) -> int:
        """Which of the processes that read different samples."""
        number = 0
        for axis in self.batch:
            number = number * self.mesh[axis] + coordinate[axis]
        return number

    def stages_at(self, coordinate: Mapping[str, int]) -> tuple[int, ...]:
        """Stages of a process."""
        return self.stages[coordinate[self.pipeline]] if self.pipeline in self.mesh else self.stages[0]

    def of_tensor(self, name: str, phase: str, slot: str) -> Placed:
        """Placements of a tensor that a call takes or gives, or of its gradient."""
        return self._found("tensor", name, phase, slot, dual=phase == "backward")

    def of_function(self, name: str, phase: str, slot: str) -> Placed:
        """As ``of_tensor``, of a call of the framework's: without a row nothing is known of it."""
        return self._found("function", name, phase, slot, dual=phase == "backward")

    def of_parameter(self, name: str, phase: str, slot: str) -> Placed:
        """Placements of a parameter, its optimizer's state, or of its gradient in one of its states."""
        dual = phase == "param_grad" and slot != "clipped"
        found = self._found("parameter", name, phase, slot, dual=dual)
        whole = self._found("parameter", name, phase, slot, dual=False).placements
        reduced = {axis: whole[axis] for axis in self.reduced if slot == "accumulated"}
        over_batch: Placement = Partial() if slot == "local" else Invariant()
        return Placed({**found.placements, **reduced, BATCH: over_batch}, None)

    def _found(self, kind: str, name: str, phase: str, slot: str, *, dual: bool) -> Placed:
        key = kind, name, phase, slot, dual
        if key not in self._known:
            if kind not in self._tables:
                self._tables[kind] = self._table(kind)
            self._known[key] = self._tables[kind].fitting(name, phase, slot, dual=dual)
        return self._known[key]

    def _table(self, kind: str) -> LayoutTable:
        """The rows of one kind, and the one that holds where none of them does."""
        if kind == "parameter":
            return LayoutTable((*self.parameters, LayoutRow("*", dict.fromkeys(self.mesh, Replicate()))))
        if kind == "tensor":
            return LayoutTable((*self.tensors, LayoutRow("*", {BATCH: Shard(0)})))
        others = [axis for axis in self.mesh if axis not in self.batch]
        given = (row for row in self.tensors if row.name != "*")
        return LayoutTable((*given, LayoutRow("*", {BATCH: Shard(0), **dict.fromkeys(others, Unknown())})))

    def to_plain(self) -> dict[str, object]:
        """As a manifest holds it."""
        return {
            "version": VERSION,
            "mesh": dict(self.mesh),
            "batch": list(self.batch),
            "pipeline": {"axis": self.pipeline, "stages": [list(some) for some in self.stages]},
            "reduced": list(self.reduced),
            "parameters": [_plain(row) for row in self.parameters],
            "tensors": [_plain(row) for row in self.tensors],
        }


@dataclass(frozen=True, slots=True)
class Placed:
    """Placements of one tensor."""

    placements: Mapping[str, Placement]
    split: tuple[int, ...] | None


class LayoutTable:
    """Rows, those of one name found without a look at the others: an inferred layout has thousands."""

    def __init__(self, rows: Sequence[LayoutRow]) -> None:
        self._patterns: list[tuple[int, LayoutRow]] = []
        self._named: dict[str, list[tuple[int, LayoutRow]]] = {}
        for number, row in enumerate(rows):
            wild = any(sign in row.name for sign in "*?[")
            (self._patterns if wild else self._named.setdefault(row.name, [])).append((number, row))

    def fitting(self, name: str, phase: str, slot: str, *, dual: bool) -> Placed:
        """``dual``: the record is of a gradient, rows without a phase are about the tensor."""
        placements: dict[str, Placement] = {}
        split: tuple[int, ...] | None = None
        for _, row in sorted((*self._patterns, *self._named.get(name, ())), key=lambda one: one[0]):
            if row.phase not in (None, phase):
                continue
            if not (fnmatchcase(name, row.name) and fnmatchcase(slot, row.slot)):
                continue
            for axis, placement in row.placements.items():
                if axis not in placements:
                    placements[axis] = gradient_of(placement) if dual and row.phase is None else placement
            split = split or row.split
        return Placed(placements, split)


def layout_from_plain(plain: Mapping[str, Any], *, source: str = "declared") -> Layout:
    """The layout that ``to_plain`` wrote.

    Raises:
        ConfigError: of another version, or not of that form.
    """
    if plain.get("version") != VERSION:
        raise ConfigError(f"a layout of version {plain.get('version')!r}; this trueup reads {VERSION}")
    try:
        pipeline = plain.get("pipeline") or {}
        layout = Layout(
            mesh={str(axis): int(size) for axis, size in plain["mesh"].items()},
            parameters=tuple(map(_row, plain.get("parameters") or ())),
            tensors=tuple(map(_row, plain.get("tensors") or ())),
            batch=tuple(plain.get("batch") or ()),
            stages=tuple(tuple(some) for some in pipeline.get("stages") or [[0]]),
            pipeline=str(pipeline.get("axis", "pp")),
            reduced=tuple(plain.get("reduced") or ()),
            source=source,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"the layout cannot be read: {type(error).__name__}: {error}") from error
    _check(layout)
    return layout


def _check(layout: Layout) -> None:
    axes = [*layout.mesh, BATCH, *([] if layout.pipeline in layout.mesh else [layout.pipeline])]
    for row in (*layout.parameters, *layout.tensors):
        for axis in row.placements:
            if axis not in axes:
                raise ConfigError(
                    f"row {row.name!r} of the layout names axis {axis!r}; known: {', '.join(axes)}"
                )
    for axis in (*layout.batch, *layout.reduced):
        if axis not in layout.mesh:
            raise ConfigError(f"axis {axis!r} of the layout is not in its mesh {dict(layout.mesh)}")
    wanted = layout.mesh.get(layout.pipeline, 1)
    if len(layout.stages) != wanted:
        raise ConfigError(
            f"the layout lists the stages of {len(layout.stages)} processes; "
            f"axis {layout.pipeline} has {wanted}"
        )


def _row(plain: Mapping[str, Any]) -> LayoutRow:
    given = dict(plain)
    name, slot, phase = given.pop("name"), given.pop("slot", "*"), given.pop("phase", None)
    split = given.pop("split", None)
    placements = {axis: placement_from(text) for axis, text in given.items()}
    return LayoutRow(str(name), placements, str(slot), phase, None if split is None else tuple(split))


def _plain(row: LayoutRow) -> dict[str, object]:
    more: dict[str, object] = {} if row.slot == "*" else {"slot": row.slot}
    if row.phase is not None:
        more["phase"] = row.phase
    if row.split is not None:
        more["split"] = list(row.split)
    return {"name": row.name, **more, **{axis: str(one) for axis, one in row.placements.items()}}


def bare_name(name: str, roots: Sequence[Root]) -> str:
    """A name without that of the root it is below, where that is a further stage of the main one.

    Args:
        name: of a module or parameter, as capture made it.
        roots: ``name`` and ``type`` of each root; the main one's name is empty.
    """
    main = next((root["type"] for root in roots if root["name"] == ""), None)
    for root in roots:
        if root["name"] and root["type"] == main:
            if name == root["name"]:
                return ""
            if name.startswith(f"{root['name']}."):
                return name[len(root["name"]) + 1 :]
    return name


__all__ = ["BATCH", "At", "Layout", "LayoutRow", "Placed", "bare_name", "layout_from_plain"]
