"""Writes what a monitor measured as a TensorBoard event file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from trueup.monitoring.reader import NUMBERS, MonitoredRun
from trueup.monitoring.rollouts import SERIES, mismatch_lines
from trueup.store.events import events, records, version

_ROWS = 1024
"""steps filled in at once"""
_MORE = ("local_norm", "num_not_finite", "tokens", "skipped")


def export_tensorboard(run: MonitoredRun, folder: Path) -> Path:
    """Write every number of a run, one tag each: ``loss``, ``gradient/l2_norm/layers.0.attn.qkv.weight``.

    Returns the file. NaN of a scalar is written; what was not measured at a step is not.

    Raises:
        OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    times = run.numbers("time")
    steps = run.numbers("step").astype(np.int64)
    first = int(times[0]) if len(times) else 0
    path = folder / f"events.out.tfevents.{first:010d}.trueup.rank_{run.rank:05d}"
    with path.open("wb") as file:
        file.write(records(version(float(first))).tobytes())
        names = [name for name in (*NUMBERS, *_MORE) if any(name in line for line in run.lines)]
        values = np.stack([run.numbers(name) for name in names], axis=1) if names else np.zeros((0, 0))
        there = np.asarray([[line.get(name) is not None for name in names] for line in run.lines], bool)
        _write_rows(file, names, steps, times, values, there)
        _write_mismatch(file, run)
        time_of = dict(zip(steps.tolist(), times.tolist(), strict=True))
        for kind, columns in run.reader().kinds.items():
            for column in columns:
                series = run.series(kind, column)
                if series is None:
                    continue
                tags = [f"{kind}/{column}/{name}" for name in series.names]
                when = np.asarray([time_of.get(step, float(first)) for step in series.steps.tolist()])
                known = ~np.isnan(series.values)
                _write_rows(file, tags, series.steps, when, series.values.astype(np.float64), known)
    return path


def _write_mismatch(file: BinaryIO, run: MonitoredRun) -> None:
    """``mismatch/k3``: training against inference, of runs with a rollout."""
    lines = mismatch_lines(run.root)
    if lines:
        values = np.array([[line[name] for name in SERIES] for line in lines])
        steps = np.array([line["step"] for line in lines], np.int64)
        times = np.array([line["time"] for line in lines])
        tags = [f"mismatch/{name}" for name in SERIES]
        _write_rows(file, tags, steps, times, values, ~np.isnan(values))


def _write_rows(
    file: BinaryIO,
    tags: Sequence[str],
    steps: NDArray[np.int64],
    times: NDArray[np.float64],
    values: NDArray[np.float64],
    there: NDArray[np.bool_],
) -> None:
    for begin in range(0, len(steps), _ROWS):
        rows = slice(begin, begin + _ROWS)
        patterns, pattern_of = np.unique(there[rows], axis=0, return_inverse=True)
        messages: dict[int, bytes] = {}
        for number, pattern in enumerate(patterns):
            chosen = np.flatnonzero(pattern_of.reshape(-1) == number)
            if pattern.any():
                filled = events(
                    [tag for tag, present in zip(tags, pattern, strict=True) if present],
                    steps[rows][chosen],
                    times[rows][chosen],
                    values[rows][np.ix_(chosen, np.flatnonzero(pattern))],
                )
                for place, record in zip(chosen.tolist(), records(filled), strict=True):
                    messages[place] = record.tobytes()
        file.write(b"".join(messages[place] for place in sorted(messages)))
