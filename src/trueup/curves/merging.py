"""Rows as they were written, restarts and all, to one row a step."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import polars as pl

from trueup.curves.columns import LOSS, STEP
from trueup.curves.curve import Restart


def merge(pieces: Sequence[pl.DataFrame]) -> tuple[pl.DataFrame, tuple[Restart, ...]]:
    """One row a step, ascending; of steps that were trained again the later row.

    Args:
        pieces: one frame a file, in the order the files were written.
    """
    frame = pl.concat([piece for piece in pieces if piece.height] or list(pieces), how="diagonal")
    steps = frame[STEP].to_numpy()
    if len(steps) < 2 or bool((np.diff(steps) > 0).all()):
        return frame, ()
    frame = _one_row_where_repeated(frame)
    steps = frame[STEP].to_numpy()
    restarts = _restarts(frame, steps)
    return frame.unique(STEP, keep="last", maintain_order=True).sort(STEP), restarts


def in_order(pieces: Sequence[tuple[float, pl.DataFrame]]) -> list[pl.DataFrame]:
    """Frames by their first step; where that is the same, by when the file was written."""
    return [frame for _, frame in sorted(pieces, key=lambda pair: (_first(pair[1]), pair[0]))]


def _first(frame: pl.DataFrame) -> int:
    return int(frame[STEP][0]) if frame.height else 0


def _one_row_where_repeated(frame: pl.DataFrame) -> pl.DataFrame:
    """Lines of the same step that follow each other (several ranks, or one line a metric) as one."""
    run = (pl.col(STEP) != pl.col(STEP).shift()).fill_null(True).cum_sum().alias("#")
    frame = frame.with_columns(run)
    if frame["#"][-1] == frame.height:
        return frame.drop("#")
    others = [name for name in frame.columns if name not in (STEP, "#")]
    return (
        frame.group_by("#", maintain_order=True)
        .agg(pl.col(STEP).first(), pl.col(others).drop_nulls().last())
        .drop("#")
    )


def _restarts(frame: pl.DataFrame, steps: np.ndarray[tuple[int], np.dtype[np.int64]]) -> tuple[Restart, ...]:
    found = []
    loss = frame[LOSS].to_numpy() if LOSS in frame.columns else None
    begins = (np.flatnonzero(np.diff(steps) < 0) + 1).tolist()
    for at, end in itertools.pairwise([*begins, len(steps)]):
        before, after = steps[:at], steps[at:end]
        shared, earlier, later = np.intersect1d(before[::-1], after, return_indices=True)
        differ = None
        if loss is not None and len(shared):
            gaps = np.abs(loss[at - 1 - earlier] - loss[at + later])
            differ = float(np.nanmax(gaps)) if np.isfinite(gaps).any() else None
        found.append(Restart(step=int(steps[at]), num_steps=len(shared), max_loss_diff=differ))
    return tuple(found)
