"""Reads what a monitor writes, while it writes it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Required, TypedDict  # pydantic reads typing's from Python 3.12 on

from trueup.errors import ConfigError, TraceError
from trueup.monitoring.events import VERSION
from trueup.monitoring.rollouts import mismatch_lines
from trueup.store import layout
from trueup.store.checked import document_from_file
from trueup.store.reader import scalar_line
from trueup.store.series import ColumnSeries, SeriesReader
from trueup.types.plain import number_from_json
from trueup.types.trace import ScalarLine

NUMBERS = ("loss", "grad_norm", "learning_rate", "loss_scale", "update_ratio", "weight_norm", "step_seconds")


@dataclass(slots=True)
class MonitoredRun:
    """One rank of a run, as far as it is written; ``update`` reads on."""

    root: Path
    rank: int
    lines: list[ScalarLine] = field(default_factory=list)
    """scalars, one a step, in the order written"""
    _at: int = 0

    def update(self) -> bool:
        """Read the whole lines that are new; whether there were any.

        Raises:
            TraceError: the scalars cannot be read.
        """
        path = layout.scalars_file(self.root, self.rank)
        try:
            if not path.exists():
                return False
            if path.stat().st_size < self._at:  # written anew
                self._at, self.lines = 0, []
            with path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
        except OSError as error:
            raise TraceError(f"{path} cannot be read: {error.strerror or error}") from error
        end = data.rfind(b"\n") + 1
        self._at += end
        new = [entry for line in data[:end].splitlines() if (entry := _line(line, path)) is not None]
        self.lines += new
        return bool(new)

    def numbers(self, name: str, *, noted: bool = False) -> NDArray[np.float64]:
        """One scalar over the steps; of a learning rate the largest.

        NaN where it was not noted; with ``noted`` only the steps where it was.
        """
        values = (line.get(name) for line in self.lines)
        return np.asarray([_number(v) for v in values if not noted or v is not None], np.float64)

    def series(self, kind: str, column: str, *, last: int | None = None) -> ColumnSeries | None:
        """One column of one kind; None where it was not measured."""
        return self.reader().series(kind, column, last=last)

    def reader(self) -> SeriesReader:
        """The series as they are now."""
        return SeriesReader(layout.series_dir(self.root, self.rank))

    def alarms(self) -> list[AlarmDocument]:
        """Every alarm of any rank, in the order of steps."""
        return read_alarms(self.root)


class AlarmDocument(TypedDict, total=False):
    """What the file of an alarm holds (docs/trace-format.md); ``file`` is its path, ``ranks`` those that gave
    it at the same step."""

    version: int
    time: float
    rule: Required[str]
    step: Required[int]
    rank: Required[int]
    sentence: Required[str]
    subjects: list[dict[str, object]]
    num_subjects: int
    advice: Required[str]
    captured_step: int | None
    rerun: str
    before: list[ScalarLine]
    file: str
    ranks: list[int]


def open_run(root: Path, *, rank: int | None = None) -> MonitoredRun:
    """The rank of a run to be shown; by default the first that wrote anything.

    Raises:
        TraceError: the folder is no run, or its run was not monitored.
        ConfigError: it has no such rank.
    """
    if not root.is_dir():
        raise TraceError(f"no such run: {root}")
    if not layout.monitor_dir(root).is_dir():
        what = (
            "was captured without --monitor"
            if (root / layout.MANIFEST).exists()
            else "holds no run of trueup"
        )
        raise TraceError(f"{root} {what}; trueup capture --monitor -o {root} -- python train.py")
    known = sorted(layout.ranks(root))
    if rank is not None and rank not in known:
        raise ConfigError(f"--rank {rank}: {root} has ranks {', '.join(map(str, known)) or 'none yet'}")
    run = MonitoredRun(root, rank if rank is not None else (known[0] if known else 0))
    run.update()
    return run


def read_alarms(root: Path) -> list[AlarmDocument]:
    """What the files of a run's alarms hold, in the order of steps; one that cannot be read is left out."""
    folder = layout.events_dir(root)
    paths = sorted(path for path in folder.glob("*.json") if layout.parse_event_file(path.name))
    found: list[AlarmDocument] = []
    for path in paths:
        with suppress(TraceError):
            entry = document_from_file(path, AlarmDocument, version="version", versions=(VERSION,), remedy="")
            found.append({**entry, "file": str(path)})
    return sorted(found, key=lambda entry: (entry["step"], entry.get("time", 0)))


def merged_alarms(alarms: list[AlarmDocument]) -> list[AlarmDocument]:
    """One a step and rule, with the ranks that gave it under ``ranks``."""
    merged: dict[tuple[int, str], AlarmDocument] = {}
    for alarm in alarms:
        first = merged.setdefault((alarm["step"], alarm["rule"]), {**alarm, "ranks": []})
        first["ranks"].append(alarm["rank"])
    return list(merged.values())


def alarm_sentences(root: Path, *, most: int = 5) -> list[str]:
    """What to tell the person once the run is over."""
    alarms = merged_alarms(read_alarms(root))
    if not alarms:
        return ["the monitor gave no alarm"]
    lines = [f"ALARM step {alarm['step']}: {alarm['sentence']}; {alarm['advice']}" for alarm in alarms[:most]]
    if len(alarms) > most:
        lines.append(f"and {len(alarms) - most} more alarms")
    return lines


def _line(line: bytes, path: Path) -> ScalarLine | None:
    with suppress(TraceError):
        return scalar_line(line.decode("utf-8", "replace"), str(path))
    return None


def _number(value: object) -> float:
    if isinstance(value, list):
        return max((known for one in value if (known := number_from_json(one)) is not None), default=math.nan)
    known = number_from_json(value)
    return math.nan if known is None else known


def state_of(run: MonitoredRun) -> Mapping[str, object]:
    """What is known now, as plain values: the last of every number, and the alarms."""
    last: Mapping[str, object] = run.lines[-1] if run.lines else {}
    return {
        "run": str(run.root),
        "rank": run.rank,
        "steps": len(run.lines),
        "step": last.get("step"),
        "numbers": {name: last[name] for name in NUMBERS if last.get(name) is not None},
        "mismatch": lines[-1] if (lines := mismatch_lines(run.root)) else {},
        "alarms": merged_alarms(run.alarms()),
    }
