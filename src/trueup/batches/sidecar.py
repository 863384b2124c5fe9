"""``batches.json``: what trueup's own exports say of themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict, cast

from trueup.batches.labels import IGNORE_INDEX
from trueup.batches.source import Place
from trueup.errors import TraceError

SIDECAR = "batches.json"
VERSION = 1


class Piece(TypedDict, total=False):
    """A folder of arrays, and whose it is."""

    folder: int
    step: int
    microbatch: int
    row: int
    ranks: list[int]


class Sidecar(TypedDict, total=False):
    """What every export says, and what each kind says besides."""

    version: int
    kind: str
    source: str
    label_form: str
    label_shift_recorded: int | None
    ignore_index: int
    pieces: list[Piece]
    prefix: str
    labels: bool
    rows: list[tuple[int, int, int, int]]
    """step, microbatch, rank and whether the last token is a label, of each sequence"""


def read_sidecar(folder: Path, *, kind: str) -> Sidecar | None:
    """What ``batches.json`` says, None where there is none or it speaks of another kind.

    Raises:
        TraceError: it cannot be read, or is of another version.
    """
    file = folder / SIDECAR
    if not file.is_file():
        return None
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TraceError(f"{file} cannot be read: {error}") from error
    if not isinstance(known, dict) or known.get("version") != VERSION:
        said = known.get("version") if isinstance(known, dict) else None
        raise TraceError(f"{file} is of version {said!r}, this trueup reads {VERSION}")
    return cast(Sidecar, known) if known.get("kind") == kind else None


def place_from(step: object, microbatch: object, rank: object) -> Place:
    """Whose a row is, as a file says it.

    Raises:
        TypeError: one of them is no whole number.
    """
    for one in (step, microbatch, rank):
        if not isinstance(one, int):
            raise TypeError(f"{one!r} is no whole number")
    return Place(*cast(tuple[int, int, int], (step, microbatch, rank)))


def ignore_index_of(said: Mapping[str, object], folder: Path) -> int:
    """The label that does not count, as a file says it, else -100.

    Raises:
        TraceError: it is no whole number.
    """
    found = said.get("ignore_index", IGNORE_INDEX)
    if not isinstance(found, int):
        raise wrong(folder, TypeError(f"{found!r} is no whole number"))
    return found


def wrong(folder: Path, error: Exception) -> TraceError:
    """The error for a file whose content is not what trueup writes."""
    return TraceError(f"{folder / SIDECAR} is not what trueup wrote ({type(error).__name__}: {error})")
