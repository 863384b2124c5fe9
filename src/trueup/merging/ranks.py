"""One step of one rank, its calls brought to names and microbatches that all ranks share."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl

from trueup.merging.assembling import OwnPlace
from trueup.merging.summary import STATISTICS, Summary
from trueup.numerics.summary import SKETCH_SIZE
from trueup.store import StepTables, StepView
from trueup.types.layout import Layout, bare_name
from trueup.types.trace import Root, ShardPiece, SummaryRow


class CallKey(NamedTuple):
    """What makes a call the same one on every rank."""

    above: CallKey | int | None
    """key of the parent; of an outermost call the microbatch of the step, of a parameter nothing"""
    mode: str
    kind: str
    name: str
    ordinal: int


@dataclass(frozen=True, slots=True)
class Call:
    """A call as all ranks know it."""

    key: CallKey
    name: str
    microbatch: int
    """of the step; -1 for what belongs to none"""
    position: int
    """which of the microbatches that are compared as one"""
    stage: int


class RankStep:
    """One rank in one step, its calls by the names that all ranks share.

    Args:
        view: the step as the rank recorded it.
        layout: of the run.
        fold: microbatches of the step that are compared as one.
        numbers: of the microbatches, by which they are compared; None: their own.
    """

    def __init__(
        self, view: StepView, layout: Layout, fold: int, numbers: Mapping[int, int] | None = None
    ) -> None:
        self.rank, self.view, facts = view.rank, view, view.facts
        self.coordinate = layout.coordinate(view.rank)
        self.batch_axes = layout.batch
        self._layout, self._fold, self._numbers = layout, fold, numbers or {}
        self._roots = facts.get("roots") or []
        self.pieces: dict[str, ShardPiece] = {
            name: piece
            for optimizer in facts.get("optimizers") or []
            for name, piece in (optimizer.get("pieces") or {}).items()
        }
        self.calls: list[Call | None] = []
        self._name_calls()
        self._summaries = {name: view.tables.summaries[name].to_list() for name in _WANTED}
        texts = self._summaries["placement"]
        known = {text: json.loads(text) for text in set(texts) if text is not None}
        self._recorded = [known.get(text) for text in texts]
        columns = (self._summaries[name] for name in ("dtype", "shape", "numel", *STATISTICS, "digest"))
        self._plain = list(zip(*columns, strict=True))

    def _name_calls(self) -> None:
        stages = self._layout.stages_at(self.coordinate)
        chunks = [root["name"] for root in self._roots if self._is_stage(root)] or [""]
        batches = self._layout.num_batches
        offset = self._layout.batch_index(self.coordinate)
        pipelined = self._layout.num_stages > 1
        counts: dict[tuple[str, str, str], int] = {}
        view = self.view
        columns = (view.parent, view.kind, view.name, view.ordinal, view.microbatch, view.mode)
        for parent, kind, name, ordinal, microbatch, mode in zip(*columns, strict=True):
            bare = bare_name(name, self._roots) if self._roots else name
            if name in self.pieces:
                bare, ordinal = self.pieces[name]["name"], 0
            if kind == "collective":
                self.calls.append(None)
            elif kind == "parameter":
                self.calls.append(Call(CallKey(None, "", kind, bare, ordinal), bare, -1, 0, 0))
            elif parent < 0:
                number = self._numbers.get(microbatch, microbatch)
                if pipelined:  # a schedule runs forwards ahead of their backwards: only their order counts
                    number = counts.get((kind, name, mode), 0)
                    counts[kind, name, mode] = number + 1
                    ordinal = 0
                chunk = next((at for at, root in enumerate(chunks) if _below(name, root, chunks)), 0)
                stage = stages[chunk] if kind == "module" and chunk < len(stages) else max(stages)
                step_number = number * batches + offset
                group, position = divmod(step_number, self._fold)
                key = CallKey(group, mode, kind, bare, ordinal)
                self.calls.append(Call(key, bare, group, position, stage))
            else:
                above = self.calls[parent]
                if above is None:
                    self.calls.append(None)
                    continue
                key = CallKey(above.key, mode, kind, bare, ordinal)
                self.calls.append(Call(key, bare, above.microbatch, above.position, above.stage))

    def _is_stage(self, root: Root) -> bool:
        main = next((one["type"] for one in self._roots if one["name"] == ""), None)
        return root["type"] == main

    def own(self, call: int, summary: int) -> OwnPlace | None:
        """What a record says of its own place."""
        piece = self.pieces.get(self.view.name[call])
        if piece is not None and self.view.kind[call] == "parameter":
            start, _ = piece["flat"]
            return OwnPlace(
                axes=tuple(piece["axes"]), offset=(start,), shape=tuple(piece["shape"]), flat=True
            )
        recorded = self._recorded[summary]
        if recorded is None or "global_shape" not in recorded:
            return None
        names = [part for axis in recorded["mesh"] for part in _axes_of(str(axis), self._layout)]
        return OwnPlace(
            axes=tuple(names),
            offset=tuple(recorded["offset"]),
            shape=tuple(recorded["global_shape"]),
            partial=any("P" in one for one in recorded["placements"]),
        )

    def summary(self, row: int) -> tuple[Summary, int]:
        """A row of summaries, and the elements of the whole in which its sketch was taken."""
        dtype, shape, *numbers = self._plain[row]
        found = Summary(dtype, tuple(shape), *numbers)  # in the order of its fields
        sketch = self._summaries["sketch"][row]
        if sketch is not None:
            found.sketch = np.frombuffer(sketch, "<f4", SKETCH_SIZE).astype(np.float64)
        recorded = self._recorded[row]
        whole = None if recorded is None else recorded.get("whole")
        return found, found.numel if whole is None else math.prod(whole)

    def stored(self, row: int) -> bool:
        """Whether the values of a row of summaries were kept."""
        return self._summaries["tensor"][row] is not None

    def summary_row(self, row: int) -> SummaryRow:
        """A row of summaries, to read its values by."""
        columns = self._summaries
        return {
            "dtype": columns["dtype"][row],
            "shape": columns["shape"][row],
            "chunk": columns["chunk"][row],
            "tensor": columns["tensor"][row],
        }


_WANTED = (
    *STATISTICS,
    "numel",
    "dtype",
    "shape",
    "placement",
    "digest",
    "sketch",
    "chunk",
    "tensor",
    "device",
)


def _below(name: str, root: str, roots: list[str]) -> bool:
    """Whether a call belongs to that root: a named one by its prefix, the main one if to no other."""
    if root:
        return name == root or name.startswith(f"{root}.")
    return not any(other and (name == other or name.startswith(f"{other}.")) for other in roots)


def _axes_of(name: str, layout: Layout) -> list[str]:
    """Mesh axes behind the name of a dim of a device mesh, which may join several by underscores."""
    if name in layout.mesh:
        return [name]
    parts = [part for part in name.split("_") if part in layout.mesh]
    return parts or list(layout.mesh)


def num_microbatches(tables: StepTables, layout: Layout) -> int:
    """Microbatches of one rank in a step."""
    calls = tables.calls.filter(
        pl.col("parent").is_null()
        & (pl.col("kind").cast(pl.String) == "module")
        & (pl.col("mode").cast(pl.String) == "train")
    )
    if not calls.height:
        return 1
    if layout.num_stages > 1:
        return int(calls.group_by("name").len()["len"].max())  # type: ignore[arg-type]
    return int(calls["microbatch"].max()) + 1  # type: ignore[arg-type]
