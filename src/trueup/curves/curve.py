"""A curve: one row a step of one training run, wherever it was logged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl

from trueup.curves.columns import GRAD_NORM, LOSS, STEP, STEP_SECONDS
from trueup.types.arrays import Floats, Ints
from trueup.types.reason import Reason

_ENOUGH = 10_000
"""lines that tell how far apart lines are"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """A place where a run went back and trained steps again; the later rows are kept."""

    step: int
    """first step trained again"""
    num_steps: int
    """steps logged twice"""
    max_loss_diff: float | None
    """largest difference of the loss between the two"""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """What the logs of one run say, ascending in ``step``, each step once."""

    name: str
    path: Path
    frame: pl.DataFrame
    """columns of :mod:`trueup.curves.columns`; those that nobody logged are not there"""
    format: str
    files: tuple[str, ...]
    restarts: tuple[Restart, ...] = ()
    notes: tuple[Reason, ...] = ()
    units: Mapping[str, str] = field(default_factory=dict)
    loss_is_mean: bool = False
    local_norms: pl.DataFrame | None = None
    trace: Path | None = None
    """the folder, where the curve is that of a trueup trace"""

    @property
    def num_steps(self) -> int:
        """Steps the log has a line for."""
        return self.frame.height

    @cached_property
    def interval(self) -> int:
        """Steps between two lines, the usual ones."""
        if self.num_steps < 2:
            return 1
        steps = self.frame[STEP].head(_ENOUGH).to_numpy()
        return max(1, int(np.median(np.diff(steps))))

    @property
    def span(self) -> tuple[int, int]:
        """First and last step."""
        return int(self.frame[STEP][0]), int(self.frame[STEP][-1])

    @property
    def hours(self) -> float | None:
        """How long it trained, where the log says how long steps take."""
        logged = self.values(STEP_SECONDS)
        if logged is None:
            return None
        seconds = float(np.nansum(logged))
        return seconds * self.interval / 3600 if seconds else None

    def values(self, column: str) -> Floats | None:
        """A column as float64, missing numbers NaN; None where nobody logged it."""
        if column not in self.frame.columns:
            return None
        logged = self.frame[column].cast(pl.Float64)
        values: Floats = (logged.fill_null(float("nan")) if logged.null_count() else logged).to_numpy()
        return values

    def broken_steps(self) -> dict[str, Ints]:
        """Of loss and gradient norm the steps that logged NaN or infinity; a missing number is none."""
        found = {}
        for column in (LOSS, GRAD_NORM):
            if column in self.frame.columns:
                known = self.frame[column].cast(pl.Float64).fill_null(0.0).to_numpy()
                found[column] = self.frame[STEP].to_numpy()[~np.isfinite(known)]
        return found

    def to_json(self) -> dict[str, object]:
        """Where it comes from and what was done to it."""
        first, last = self.span
        return {
            "name": self.name,
            "path": str(self.path),
            "format": self.format,
            "files": list(self.files),
            "first_step": first,
            "last_step": last,
            "lines": self.num_steps,
            "interval": self.interval,
            "columns": self.frame.columns,
            "units": dict(self.units),
            "restarts": [
                {"step": r.step, "num_steps": r.num_steps, "max_loss_diff": r.max_loss_diff}
                for r in self.restarts
            ],
            "notes": list(self.notes),
        }
