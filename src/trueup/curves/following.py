"""Reads on while logs grow, and judges anew whenever one did."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from trueup.curves import files
from trueup.curves.comparison import CurveComparison, Options, compare_curves
from trueup.curves.curve import Curve
from trueup.curves.readers import LogRows, Reader
from trueup.curves.reading import curve_from_rows, read_curve
from trueup.errors import NothingCompared, TraceError


@dataclass(slots=True)
class Tail:
    """One log that grows: whole lines are read once, where the format allows it; else the file anew."""

    source: str
    columns: Mapping[str, str]
    curve: Curve | None = None
    _at: int = 0
    _stamp: tuple[int, float] = (0, 0.0)
    _reader: Reader | None = None
    _rows: list[LogRows] = field(default_factory=list)

    def update(self) -> bool:
        """Read what is new; whether anything was.

        Raises:
            TraceError: the log is gone, or holds nothing that is known.
        """
        path = Path(self.source)
        if not path.is_file():
            return self._anew()
        status = path.stat()
        stamp = status.st_size, status.st_mtime
        if stamp == self._stamp:
            return False
        shrunk = status.st_size < self._stamp[0]
        self._stamp = stamp
        if self._reader is None or shrunk:
            return self._first(path)
        if not self._reader.appendable:
            return self._anew()
        return self._append(path)

    def _anew(self) -> bool:
        before = None if self.curve is None else (self.curve.num_steps, self.curve.span)
        self.curve = read_curve(self.source, columns=self.columns)
        return (self.curve.num_steps, self.curve.span) != before

    def _first(self, path: Path) -> bool:
        self._rows, self._at = [], 0
        if files.is_packed(path):
            return self._anew()
        data = files.contents(path)
        self._reader = files.reader_for(path, data)
        if self._reader is None or not self._reader.appendable:
            return self._anew()
        return self._append(path)

    def _append(self, path: Path) -> bool:
        assert self._reader is not None
        with path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        end = data.rfind(b"\n") + 1
        if not end:
            return False
        self._at += end
        rows = self._reader.read(data[:end], path, self.columns)
        if not rows.frame.height:
            return False
        self._rows.append(rows)
        self._rows = [_joined(self._rows)]
        self.curve = curve_from_rows(self.source, path, [(path, self._reader, self._rows[0])])
        return True


def _joined(rows: Sequence[LogRows]) -> LogRows:
    norms = [one.local_norms for one in rows if one.local_norms is not None]
    return LogRows(
        frame=pl.concat([one.frame for one in rows], how="diagonal"),
        local_norms=pl.concat(norms) if norms else None,
        units={column: unit for one in rows for column, unit in one.units.items()},
        notes=tuple(dict.fromkeys(note for one in rows for note in one.notes)),
        loss_is_mean=rows[-1].loss_is_mean,
    )


def follow(
    target: str,
    references: Sequence[str],
    *,
    columns: Mapping[str, str] | None = None,
    options: Options | None = None,
    every: float = 10.0,
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[CurveComparison | str]:
    """A comparison at once and after every growth of any log, a sentence while there is nothing to compare;
    without end.

    Args:
        target: log of the run under question.
        references: logs of the reference and its repeats; they may grow too.
        columns: column -> its name in the file.
        options: of the comparison.
        every: seconds between two looks.
        wait: how to wait; for tests.

    Raises:
        TraceError: a log is of no known kind although it holds text.
    """
    tails = [Tail(source=source, columns=columns or {}) for source in (target, *references)]
    last_message = ""
    while True:
        grown, waiting = False, ""
        for tail in tails:
            try:
                grown |= tail.update()
            except TraceError as error:
                waiting = str(error)
        target_curve, *reference_curves = [tail.curve for tail in tails]
        known = [curve for curve in reference_curves if curve is not None]
        if grown and target_curve is not None and known:
            try:
                yield compare_curves(target_curve, known, options)
                last_message = ""
            except NothingCompared as error:
                waiting = str(error)
        if waiting and waiting != last_message:
            last_message = waiting
            yield f"waiting: {waiting}"
        wait(every)
