"""Gradients of which each rank holds a piece, put together: under FSDP2 what backward gives is whole."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from trueup.numerics.sketch import sketch
from trueup.store import StepView
from trueup.types.arrays import Floats

_PLAIN = ("S(", "R")
"""how distributed tensors write a cut along a dim, and a copy: a piece is a box that starts at its offset"""


def is_piece(book: StepView, record: int | None, whole: int | None) -> bool:
    """Whether a record has other than the elements of the gradient that backward gave."""
    held, given = book.shape(record), book.shape(whole)
    return held is not None and given is not None and np.prod(held) != np.prod(given)


def sketch_of_whole(books: Sequence[StepView], fqn: str, slot: tuple[str, str]) -> Floats | None:
    """The sketch of a gradient whose pieces lie on the ranks of ``books``; None where values of a piece are
    missing, or it does not say where it lies."""
    whole: Floats | None = None
    for book in books:
        record = book.parameter(fqn, *slot)
        row, piece = book.summary(record), book.value(record)
        if row is None or not row["placement"]:
            return None
        place = json.loads(row["placement"])
        if not all(str(one).startswith(_PLAIN) for one in place.get("placements", ("",))):
            return None
        if whole is None:
            whole = np.full(place["global_shape"], np.nan)
        if piece is None:
            continue  # of no elements, or else its place stays open
        at = tuple(
            slice(start, start + size) for start, size in zip(place["offset"], piece.shape, strict=True)
        )
        whole[at] = piece
    if whole is None or np.isnan(whole).any():
        return None
    return sketch(whole).astype(np.float64)
