"""Batches out of Megatron's indexed dataset and into it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from trueup.batches.indexed_dataset import IndexedDataset, prefix_of, write_indexed_dataset
from trueup.batches.labels import IGNORE_INDEX, moved
from trueup.batches.sidecar import AGAIN, SIDECAR, VERSION, Sidecar, read_sidecar
from trueup.batches.source import ATTENTION_MASK, LABELS, LOSS_MASK, TOKENS, Arrays, BatchPlace
from trueup.errors import ConfigError, TraceError
from trueup.store.checked import as_written
from trueup.types.arrays import Array, Dtype

NAME = "batches_text_document"
"""prefix of the files that are written"""
_Row = tuple[int, bool]
"""number of a sequence, and whether its last token is a label alone"""


class ExportedDataset:
    """What ``trueup export --format megatron`` wrote: ``batches.json`` says which row is whose."""

    def __init__(self, folder: Path, known: Sidecar) -> None:
        self.path = folder
        self.ignore_index = IGNORE_INDEX
        self._rows: dict[BatchPlace, list[_Row]] = {}
        with as_written(folder / SIDECAR, remedy=AGAIN):
            self._data = IndexedDataset(folder / known["prefix"])
            self._with_labels = known["labels"]
            for number, (step, microbatch, rank, labelled) in enumerate(known["rows"]):
                self._rows.setdefault(BatchPlace(step, microbatch, rank), []).append((number, bool(labelled)))
        named = sum(map(len, self._rows.values()))
        if named != len(self._data):
            raise TraceError(f"{folder} holds {len(self._data)} sequences, {SIDECAR} names {named}")

    @property
    def places(self) -> list[BatchPlace]:
        """Every microbatch of every rank, in order."""
        return sorted(self._rows)

    def read(self, place: BatchPlace) -> Arrays:
        """``tokens`` and, where they were recorded, ``labels``, int64 (B, T)."""
        rows = [(self._data[number].astype(np.int64), labelled) for number, labelled in self._rows[place]]
        kept = [row[:-1] if labelled else row for row, labelled in rows]
        if len({row.shape for row in kept}) > 1:
            raise TraceError(
                f"{self.path / SIDECAR}: the rows of {place} have different lengths; export again"
            )
        tokens = np.stack(kept)
        if not self._with_labels:
            return {TOKENS: tokens}
        labels = moved(tokens, 1, fill=IGNORE_INDEX)
        for at, (row, labelled) in enumerate(rows):
            if labelled:
                labels[at, -1] = row[-1]
        return {TOKENS: tokens, LABELS: labels}


class MegatronDataset:
    """An indexed dataset of any origin, dealt out in file order, with no shuffling.

    With ``seq_length`` T, row i is tokens iT to iT + T of all sequences end to end, documents run on, as
    Megatron's GPTDataset cuts them; without it each sequence is a row. A row's labels are the same tokens
    moved by one. A step takes ``num_microbatches`` times ``num_ranks`` times ``micro_batch_size`` rows, ranks
    side by side within a microbatch, as Megatron's sampler deals them out. Rows that fill no step are left
    out.
    """

    ignore_index = IGNORE_INDEX

    def __init__(
        self,
        prefix: Path,
        *,
        seq_length: int | None,
        micro_batch_size: int,
        num_ranks: int,
        num_microbatches: int,
    ) -> None:
        self.path = prefix
        self._data = IndexedDataset(prefix)
        self._length = seq_length
        self._size, self._ranks, self._microbatches = micro_batch_size, num_ranks, num_microbatches
        if seq_length is None:
            _check_alike(self._data, prefix)
        rows = len(self._data) if seq_length is None else max(self._data.num_tokens - 1, 0) // seq_length
        a_step = micro_batch_size * num_ranks * num_microbatches
        self.num_steps = rows // a_step
        if not self.num_steps:
            raise ConfigError(
                f"{prefix} holds {rows} rows, one step wants {a_step}: give a smaller number of any"
            )

    @property
    def places(self) -> list[BatchPlace]:
        """Every microbatch of every rank, in order."""
        return [
            BatchPlace(step, microbatch, rank)
            for step in range(self.num_steps)
            for microbatch in range(self._microbatches)
            for rank in range(self._ranks)
        ]

    def read(self, place: BatchPlace) -> Arrays:
        """``tokens`` and ``labels``, int64 (B, T)."""
        before = (place.step * self._microbatches + place.microbatch) * self._ranks + place.rank
        rows = np.stack([self._row(before * self._size + row) for row in range(self._size)])
        return {TOKENS: rows[:, :-1].astype(np.int64), LABELS: rows[:, 1:].astype(np.int64)}

    def _row(self, number: int) -> Array:
        if self._length is None:
            return self._data[number]
        return self._data.stream(number * self._length, (number + 1) * self._length + 1)


def _check_alike(data: IndexedDataset, prefix: Path) -> None:
    lengths = np.unique(data.sizes)
    if len(lengths) > 1 or (len(lengths) and lengths[0] < 2):
        raise ConfigError(
            f"{prefix} has sequences of {lengths[0]} to {lengths[-1]} tokens, no rows of one length: "
            "give seq_length, the tokens of a row"
        )


def open_megatron(
    path: Path,
    *,
    seq_length: int | None,
    micro_batch_size: int | None,
    num_ranks: int | None,
    num_microbatches: int | None,
) -> ExportedDataset | MegatronDataset:
    """The dataset at a prefix, a ``.bin``, an ``.idx``, or in a folder that trueup wrote.

    Raises:
        ConfigError: the counts do not fit the dataset, or it says itself what they are.
        TraceError: damaged.
    """
    folder = path if path.is_dir() else path.parent
    known = read_sidecar(folder, kind="megatron")
    if known is not None and (path.is_dir() or prefix_of(path).name == known.get("prefix")):
        counts = (seq_length, micro_batch_size, num_ranks, num_microbatches)
        if any(count is not None for count in counts):
            raise ConfigError(
                f"{folder / SIDECAR} says which row is whose: seq_length and counts have no place here"
            )
        return ExportedDataset(folder, known)
    return MegatronDataset(
        prefix_of(path),
        seq_length=seq_length,
        micro_batch_size=micro_batch_size or 1,
        num_ranks=num_ranks or 1,
        num_microbatches=num_microbatches or 1,
    )


def write_megatron(folder: Path, batches: Iterable[tuple[BatchPlace, Arrays]], *, facts: Sidecar) -> Dtype:
    """Write each row as one sequence and one document, and ``batches.json``; returns the dtype of the ids.

    A sequence is the row's T tokens and its last label, or T tokens where that is ignored. Labels must be
    shifted.

    Raises:
        ConfigError: such a dataset cannot hold what was recorded.
    """
    sequences: list[Array] = []
    rows: list[list[int]] = []
    labelled: set[bool] = set()
    for place, arrays in sorted(batches, key=lambda one: one[0]):
        labels = _next_tokens(place, arrays, facts.get("ignore_index", IGNORE_INDEX))
        labelled.add(labels is not None)
        for at, tokens in enumerate(arrays[TOKENS]):
            last = None if labels is None else labels[at]
            sequences.append(tokens if last is None else np.append(tokens, last))
            rows.append([*place, int(last is not None)])
    if len(labelled) > 1:
        raise ConfigError("some batches have labels and some have none; use --format batches")
    folder.mkdir(parents=True, exist_ok=True)
    dtype = write_indexed_dataset(folder / NAME, sequences)
    sidecar = {
        "version": VERSION,
        "kind": "megatron",
        **facts,
        "prefix": NAME,
        "labels": labelled == {True},
        "rows": rows,
    }
    (folder / SIDECAR).write_text(json.dumps(sidecar) + "\n", encoding="utf-8")
    return dtype


def _next_tokens(place: BatchPlace, arrays: Arrays, ignore_index: int) -> list[int | None] | None:
    """Each row's last label, None where it is ignored; None where there are no labels at all."""
    tokens, labels = arrays[TOKENS], arrays.get(LABELS)
    what = None
    if (tokens < 0).any():
        what = "negative token ids"
    elif labels is not None and (labels.shape != tokens.shape or (labels[:, :-1] != tokens[:, 1:]).any()):
        what = "labels that are ignored or are not the next token"
    for name in (LOSS_MASK, ATTENTION_MASK):
        if what is None and name in arrays and _masks_more(arrays[name], labels, ignore_index):
            what = f"a {name} that leaves positions out"
    if what is not None:
        raise ConfigError(f"{place} has {what}, which an indexed dataset cannot hold; use --format batches")
    if labels is None:
        return None
    return [None if last == ignore_index else int(last) for last in labels[:, -1]]


def _masks_more(mask: Array, labels: Array | None, ignore_index: int) -> bool:
    """Whether it leaves out more than labels that are ignored anyway; a causal mask is no statement."""
    if mask.ndim != 2:
        return False
    live = np.ones(mask.shape, bool)
    if labels is not None and labels.shape == mask.shape:
        live = labels != ignore_index
    return bool((mask[live] != 1).any())
