"""Batches out of a trace: what the root module was given, and the labels its loss was made with."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
import polars as pl

from trueup.batches.labels import IGNORE_INDEX, agreement, join, laid_beside, rows_of_parts, shift_of
from trueup.batches.source import ATTENTION_MASK, LABELS, LOSS_MASK, TOKENS, Arrays, BatchPlace, is_whole
from trueup.errors import TraceError
from trueup.numerics.dtypes import DTYPES, float64_from_array
from trueup.store import StepTables, TraceSource
from trueup.types.arrays import Array
from trueup.types.trace import SummaryRow

_TOKEN_NAMES = ("tokens", "input_ids", "ids", "x", "idx", "input", "inputs")
_LABEL_NAMES = ("labels", "targets", "target", "label")
_MASKS = {"attention_mask": ATTENTION_MASK, "loss_mask": LOSS_MASK}
_INTEGERS = ("int", "uint")


class _Row(SummaryRow, total=False):
    """A record with the summary of its tensor, and with its call."""

    microbatch: int
    slot: str
    kind: str
    arguments: str | None


@dataclass(slots=True)
class _Found:
    """Rows of one microbatch of one rank."""

    inputs: dict[str, _Row] = field(default_factory=dict)
    """name, or position where it was given without one -> row"""
    labels: list[_Row] = field(default_factory=list)
    masks: list[_Row] = field(default_factory=list)
    """several of a loss worked out in chunks"""


class TraceBatches:
    """A trace as a source of batches.

    Raises:
        TraceError: it has no whole step, no integers went into a root module, or their values were not kept.
    """

    def __init__(self, trace: TraceSource) -> None:
        self.trace = trace
        self.ignore_index = IGNORE_INDEX
        self._found: dict[BatchPlace, _Found] = {}
        self._valueless: list[BatchPlace] = []
        for step, ranks in trace.steps().items():
            for rank in ranks:
                self._look(trace.read(step, rank))
        if not self._found:
            raise TraceError(self._why_none())
        self.without_tokens = sorted(
            {rank for ranks in trace.steps().values() for rank in ranks} - {p.rank for p in self._found}
        )
        """ranks whose root was given no token ids, as later pipeline stages are"""

    @property
    def path(self) -> Path:
        """The trace's folder."""
        return self.trace.path

    @property
    def places(self) -> list[BatchPlace]:
        """Every microbatch of every rank, in order."""
        return sorted(self._found)

    def read(self, place: BatchPlace) -> Arrays:
        """Tokens as recorded; labels as the loss had them, else as the model was given them, laid (B, T)."""
        found = self._found[place]
        inputs = {name: self._array(place, row) for name, row in found.inputs.items()}
        name = _tokens_among(found.inputs)
        assert name is not None
        arrays: Arrays = {TOKENS: inputs.pop(name)}
        tokens = arrays[TOKENS]
        labels, rows = self._whole(place, found.labels, tokens)
        labels = None if labels is None else _laid(labels, tokens, fill=self.ignore_index)
        given = next((inputs.pop(name) for name in _LABEL_NAMES if name in inputs), None)
        labels = given if labels is None else labels
        for name, array in inputs.items():
            labels = self._placed(name, array, arrays, labels)
        if labels is not None:
            arrays[LABELS] = labels
        mask, _ = self._whole(place, found.masks, tokens, rows=rows)
        mask = None if mask is None else _laid(mask, tokens, fill=0)
        if mask is not None:
            arrays[LOSS_MASK] = mask
        return arrays

    def _placed(self, name: str, array: Array, arrays: Arrays, labels: Array | None) -> Array | None:
        """Put another input under its name, unless it is the labels, which are then returned."""
        if not name.isdigit():
            arrays[_MASKS.get(name, name)] = array
            return labels
        tokens = arrays[TOKENS]
        if is_whole(array) and array.shape == tokens.shape:
            same = labels is not None and np.array_equal(array, labels)
            moved = shift_of(agreement(array, array != self.ignore_index, tokens))
            if same or (labels is None and moved in (0, 1)):
                return array
            if (np.diff(array, axis=1) == 1).all():
                arrays["position_ids"] = array
                return labels
        if array.dtype == np.bool_ and array.ndim == 4:
            arrays[ATTENTION_MASK] = array
        else:
            arrays[f"input_{name}"] = array
        return labels

    def _whole(
        self, place: BatchPlace, rows_of_loss: list[_Row], tokens: Array, *, rows: int | None = None
    ) -> tuple[Array | None, int | None]:
        """What a loss was made with as one, and by how many rows its parts lie side by side."""
        parts = [self._array(place, row) for row in rows_of_loss]
        if len(parts) < 2:
            return (parts[0] if parts else None), rows
        rows = rows or rows_of_parts(parts, tokens, ignore_index=self.ignore_index)
        whole = None if rows is None else join(parts, rows)
        return (parts[0] if whole is None else whole), rows

    def _array(self, place: BatchPlace, row: _Row) -> Array:
        stored = self.trace.tensor(place.step, place.rank, row)
        if stored is None:
            raise TraceError(f"{self.path}: the values of {row['slot']} of {place} were not kept")
        kind = DTYPES[stored.dtype]
        array: Array = stored.data.view(np.dtype(kind.storage)).reshape(stored.shape)
        if np.dtype(kind.storage).kind != "u" or kind.kind == "uint":
            return array
        return float64_from_array(array, stored.dtype).astype(np.float32)  # bfloat16, fp8: exact in float32

    def _look(self, tables: StepTables) -> None:
        for row in _rows(tables):
            place = BatchPlace(tables.step, row["microbatch"], tables.rank)
            found = self._found.setdefault(place, _Found())
            if row["kind"] == "loss":
                self._note_loss(found, row)
            elif row["tensor"] is not None and (_is_integer(row) or _is_mask(row)):
                found.inputs.setdefault(_name(row["slot"]), row)
            elif _is_integer(row):
                self._valueless.append(place)
        for place in [p for p, found in self._found.items() if _tokens_among(found.inputs) is None]:
            del self._found[place]

    def _note_loss(self, found: _Found, row: _Row) -> None:
        loss_arguments = json.loads(row["arguments"] or "{}")
        self.ignore_index = loss_arguments.get("ignore_index", self.ignore_index)
        of_word = {"labels": found.labels, "mask": found.masks}.get(row["slot"].partition(".")[0])
        if of_word is not None and row["tensor"] is not None:
            of_word.append(row)

    def _why_none(self) -> str:
        keep = "capture with --preset batches, --preset diagnose or --task tensor"
        if not self.trace.steps():
            return f"{self.path} holds no whole step, hence no batch; {keep}"
        if self._valueless:
            return f"{self.path} holds no values of its batches ({self._valueless[0]} first); {keep}"
        return (
            f"{self.path} holds no batch of token ids: no root module was given integers of shape [rows, "
            f"length] in training. If the program gives them deeper inside, it cannot be told which they are"
        )


def _laid(array: Array, tokens: Array, *, fill: float) -> Array | None:
    """Beside the tokens; labels of another kind (one a row) as they are."""
    laid = laid_beside(array, tokens, fill=fill)
    if laid is not None or array.shape[:1] != tokens.shape[:1]:
        return laid
    return array


def _rows(tables: StepTables) -> list[_Row]:
    """Inputs of the main root's training calls, and what the losses were made with, with their summaries."""
    words = ("kind", "name", "mode", "arguments")
    calls = tables.calls.with_columns(pl.col(word).cast(pl.String) for word in words)
    calls = calls.with_row_index("number").with_columns(pl.col("number").cast(pl.Int32))
    calls = calls.select(pl.col("number").alias("call"), *words, "parent")
    records = tables.records.with_columns(pl.col("phase", "slot").cast(pl.String))
    joined = records.join(calls, on="call", how="left", maintain_order="left")
    root = (
        (pl.col("kind") == "module")
        & pl.col("parent").is_null()
        & (pl.col("name") == "")
        & (pl.col("mode") == "train")
        & (pl.col("phase") == "forward")
        & pl.col("slot").str.starts_with("input")
    )
    chosen = joined.filter(root | (pl.col("kind") == "loss"))
    summaries = tables.summaries.with_columns(pl.col("dtype").cast(pl.String))
    return cast(
        list[_Row], chosen.join(summaries, on="summary", how="left", maintain_order="left").to_dicts()
    )


def _is_integer(row: _Row) -> bool:
    return (row["dtype"] or "").startswith(_INTEGERS) and len(row["shape"] or ()) >= 2


def _is_mask(row: _Row) -> bool:
    return row["dtype"] == "bool" or _name(row["slot"]) in _MASKS


def _name(slot: str) -> str:
    """``input.input_ids`` -> input_ids; ``input.1`` and ``input.0.1`` -> a number of its own."""
    words = slot.split(".")[1:]
    named = [word for word in words if not word.isdigit()]
    return named[-1] if named else "".join(words)


def _tokens_among(inputs: dict[str, _Row]) -> str | None:
    """Which input the token ids are: by name, else the first integers that are no labels and no mask."""
    whole = [name for name, row in inputs.items() if _is_integer(row) and len(row["shape"]) == 2]
    by_name = next((name for name in _TOKEN_NAMES if name in whole), None)
    others = (n for n in whole if n not in _LABEL_NAMES and n not in _MASKS and "position" not in n)
    return by_name or next(others, None)
