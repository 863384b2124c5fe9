"""Folders of arrays, ``step_N/rank_R/{tokens,labels,loss_mask,attention_mask}.npy``: read and written.

A program that saves what each forward was given makes such folders, one ``step_N`` a forward. Those that
trueup writes have ``batches.json`` beside them, which says to which step and microbatch a folder belongs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from trueup.batches.labels import IGNORE_INDEX
from trueup.batches.sidecar import AGAIN, SIDECAR, VERSION, Sidecar, SidecarFolder, read_sidecar
from trueup.batches.source import LABELS, TOKENS, Arrays, BatchPlace, is_whole
from trueup.errors import ConfigError, TraceError
from trueup.importers.npy import read_array
from trueup.store.checked import as_written
from trueup.types.arrays import Array

_STEP, _RANK = re.compile(r"step_(\d+)$"), re.compile(r"rank_(\d+)$")
_Key = tuple[int, int]
"""folder number, rank"""


class NpyBatches:
    """A folder of arrays as a source of batches."""

    def __init__(self, path: Path, *, num_microbatches: int | None = None) -> None:
        self.path = path
        known = read_sidecar(path, kind="batches")
        self.ignore_index = (known or {}).get("ignore_index", IGNORE_INDEX)
        keys = sorted(_folders(path))
        if not keys:
            raise TraceError(f"{path} holds no step_N/rank_R folder of recorded batches")
        if known is None:
            self._pieces = _in_turn(keys, num_microbatches or 1, path)
        else:
            self._pieces = _from_sidecar(keys, known, path)
            if num_microbatches is not None:
                raise ConfigError(
                    f"num_microbatches has no place here: {path / SIDECAR} says where each belongs"
                )

    @property
    def places(self) -> list[BatchPlace]:
        """Every microbatch of every rank, in order."""
        return sorted(self._pieces)

    def read(self, place: BatchPlace) -> Arrays:
        """The arrays of one place; rows that were written apart are put together again.

        Raises:
            TraceError: an array is missing, damaged, holds no tokens, or belongs to other tokens.
        """
        parts = [_read(self._at(key)) for key in self._pieces[place]]
        if len(parts) == 1:
            return parts[0]
        if any(part.keys() != parts[0].keys() for part in parts):
            raise TraceError(f"{self.path}: the folders of {place} do not hold the same arrays")
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _at(self, key: _Key) -> Path:
        return self.path / f"step_{key[0]}" / f"rank_{key[1]}"


def is_npy_folder(path: Path) -> bool:
    """Whether it looks like one, whole or not."""
    return path.is_dir() and any(_folders(path))


def _folders(path: Path) -> Iterable[_Key]:
    for step in path.iterdir():
        at = _STEP.match(step.name)
        if at is not None and step.is_dir():
            for rank in step.iterdir():
                of = _RANK.match(rank.name)
                # a trace of trueup has rank_00000 with tables in it
                if of is not None and str(int(of.group(1))) == of.group(1):
                    yield int(at.group(1)), int(of.group(1))


def _in_turn(keys: list[_Key], num_microbatches: int, path: Path) -> dict[BatchPlace, list[_Key]]:
    """Folders nobody explains: each is a forward, so many of them a step."""
    steps = sorted({number for number, _ in keys})
    if len(steps) % num_microbatches:
        raise ConfigError(
            f"{path} holds {len(steps)} step_N folders, no multiple of {num_microbatches} microbatches"
        )
    if num_microbatches == 1:
        return {BatchPlace(step=number, microbatch=0, rank=rank): [(number, rank)] for number, rank in keys}
    at = {number: divmod(index, num_microbatches) for index, number in enumerate(steps)}
    return {BatchPlace(*at[number], rank): [(number, rank)] for number, rank in keys}


def _from_sidecar(keys: list[_Key], known: Sidecar, path: Path) -> dict[BatchPlace, list[_Key]]:
    found: dict[BatchPlace, list[_Key]] = {}
    there = set(keys)
    with as_written(path / SIDECAR, remedy=AGAIN):
        pieces = sorted(
            (p["step"], p["microbatch"], p.get("row", 0), p["folder"], p["ranks"]) for p in known["pieces"]
        )
    for step, microbatch, _, folder, ranks in pieces:
        for rank in ranks:
            if (folder, rank) not in there:
                raise TraceError(f"{path}: step_{folder}/rank_{rank} is missing, which {SIDECAR} names")
            found.setdefault(BatchPlace(step, microbatch, rank), []).append((folder, rank))
    return found


def _read(folder: Path) -> Arrays:
    arrays = {file.stem: _array(file) for file in sorted(folder.glob("*.npy"))}
    tokens = arrays.get(TOKENS)
    if tokens is None:
        raise TraceError(f"{folder} lacks {TOKENS}.npy: no batch without tokens")
    if not is_whole(tokens) or tokens.ndim != 2:
        raise TraceError(
            f"{folder / TOKENS}.npy holds {tokens.dtype} of shape {list(tokens.shape)}; expected integers of "
            "shape [rows, length]"
        )
    labels = arrays.get(LABELS)
    if labels is not None and (not is_whole(labels) or labels.shape[:1] != tokens.shape[:1]):
        raise TraceError(
            f"{folder / LABELS}.npy holds {labels.dtype} of shape {list(labels.shape)}, the tokens have "
            f"{list(tokens.shape)}: expected one row of integers for each row of tokens"
        )
    return arrays


def _array(file: Path) -> Array:
    return read_array(file)


def write_npy_folder(
    folder: Path,
    batches: Iterable[tuple[BatchPlace, Arrays]],
    rows: Mapping[BatchPlace, int],
    *,
    by_row: bool = False,
    facts: Sidecar,
) -> int:
    """Write ``step_N/rank_R/*.npy`` and ``batches.json``; returns how many ``step_N`` there are.

    Folders bear the number of their step where each has one microbatch, else they are counted through from 0,
    one a microbatch (``by_row``: one a row), as a program does that saves what each forward is given.

    Args:
        folder: where to; made where it is not there.
        batches: those to write, one at a time.
        rows: how many rows each of them has.
        by_row: one folder a row.
        facts: what else ``batches.json`` says.

    Raises:
        ConfigError: an array has not one entry a row, so that rows cannot be written apart.
    """
    wanted = sorted({(p.step, p.microbatch, r) for p, n in rows.items() for r in range(n if by_row else 1)})
    in_turn = len({step for step, _, _ in wanted}) < len(wanted)
    pieces: dict[tuple[int, int, int], SidecarFolder] = {
        key: {
            "folder": n if in_turn else key[0],
            "step": key[0],
            "microbatch": key[1],
            "row": key[2],
            "ranks": [],
        }
        for n, key in enumerate(wanted)
    }
    for place, arrays in batches:
        for row, part in enumerate(_rows_of(place, arrays) if by_row else [arrays]):
            piece = pieces[place.step, place.microbatch, row]
            piece["ranks"].append(place.rank)
            at = folder / f"step_{piece['folder']}" / f"rank_{place.rank}"
            at.mkdir(parents=True, exist_ok=True)
            for name, array in part.items():
                np.save(at / f"{name}.npy", array)
    sidecar = {"version": VERSION, "kind": "batches", **facts, "pieces": list(pieces.values())}
    (folder / SIDECAR).write_text(json.dumps(sidecar, indent=1) + "\n", encoding="utf-8")
    return len(wanted)


def _rows_of(place: BatchPlace, arrays: Arrays) -> list[Arrays]:
    check_rows(place, arrays)
    rows = range(len(arrays[TOKENS]))
    return [{name: array[row : row + 1] for name, array in arrays.items()} for row in rows]


def check_rows(place: BatchPlace, arrays: Arrays) -> None:
    """Raise where an array has not one entry a row, so that rows cannot be written apart.

    Raises:
        ConfigError: naming it.
    """
    rows = len(arrays[TOKENS])
    whole = sorted(name for name, array in arrays.items() if array.shape[:1] != (rows,))
    if whole and rows > 1:
        raise ConfigError(
            f"{place}: {', '.join(whole)} has not one entry a row, so that rows cannot be written apart"
        )
