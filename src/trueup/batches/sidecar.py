"""``batches.json``: what trueup's own exports say of themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from typing_extensions import Required, TypedDict  # pydantic reads typing's from Python 3.12 on

from trueup.store.checked import document_from_file

SIDECAR = "batches.json"
VERSION = 1
AGAIN = "Export the batches again"


class SidecarFolder(TypedDict, total=False):
    """A folder of arrays, and whose it is."""

    folder: Required[int]
    step: Required[int]
    microbatch: Required[int]
    row: int
    ranks: Required[list[int]]


class Sidecar(TypedDict, total=False):
    """What every export says, and what each kind says besides."""

    version: int
    kind: str
    source: str
    label_form: str
    label_shift_recorded: int | None
    ignore_index: int
    pieces: list[SidecarFolder]
    prefix: str
    labels: bool
    rows: list[Sequence[int]]
    """step, microbatch, rank and whether the last token is a label, of each sequence"""


def read_sidecar(folder: Path, *, kind: str) -> Sidecar | None:
    """What ``batches.json`` says, None where there is none or it speaks of another kind.

    Raises:
        TraceError: it cannot be read, is of another version, or has a value of another type.
    """
    file = folder / SIDECAR
    if not file.is_file():
        return None
    known = document_from_file(file, Sidecar, version="version", versions=(VERSION,), remedy=AGAIN)
    return known if known.get("kind") == kind else None
