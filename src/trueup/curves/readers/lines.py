"""Logs of one line a step: which marker, which keys, and what the numbers mean is all a format has to say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from trueup.curves.columns import GRAD_NORM, LOSS, SCHEMA, STEP
from trueup.curves.readers.protocol import LogRows, mentions
from trueup.curves.readers.scanning import Key, scan
from trueup.types.codes import CurvesCode
from trueup.types.reason import reason

SAMPLE_BYTES = 1 << 17
"""Of the marked lines of this much text the keys are chosen that a program uses, and it is seen what else
is there."""

_NORMS = (b"local_norm:", b"local norm:", b"local_norm/")
"""what a program writes where it prints local norms"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFormat:
    """A :class:`~trueup.curves.readers.protocol.Reader` of lines.

    Columns that are none of a curve (an epoch, say) are left for ``finish`` to use.
    """

    name: str
    title: str
    marker: str
    """stands in every line that tells of a step"""
    keys: Mapping[str, tuple[Key, ...]]
    """column -> what may stand before its number; the first that a file has is taken"""
    scales: Mapping[str, float] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    loss_is_mean: bool = False
    finish: Callable[[pl.DataFrame], pl.DataFrame] | None = None
    local_norms: Callable[[bytes], pl.DataFrame | None] | None = None
    numbered: bool = False
    """the lines hold no step: they are counted from 1"""
    appendable: bool = True

    def recognises(self, head: bytes, path: Path) -> bool:
        """Whether one line has the marker, a step, and a loss or gradient norm."""
        if self.marker.encode() not in head:
            return False
        begin = head.find(self.marker.encode())
        keys = self._present(head[begin : begin + SAMPLE_BYTES]) or self._present(head)
        return (STEP in keys or self.numbered) and (LOSS in keys or GRAD_NORM in keys)

    def read(self, data: bytes, path: Path, chosen: Mapping[str, str]) -> LogRows:
        """The rows of the lines in ``data``."""
        begin = max(0, data.find(self.marker.encode()))
        keys = self._present(data[begin : begin + SAMPLE_BYTES]) or self._present(data)
        frame = scan(data, self.marker, list(keys.values()))
        frame = frame.rename({str(index): column for index, column in enumerate(keys)})
        if self.numbered:
            frame = frame.with_row_index(STEP, offset=1)
        if self.finish is not None:
            frame = self.finish(frame)
        frame = frame.select(
            (pl.col(column) * self.scales.get(column, 1.0)).cast(kind, strict=False)
            for column, kind in SCHEMA.items()
            if column in frame.columns
        )
        measured = [column for column in (LOSS, GRAD_NORM) if column in frame.columns]
        frame = frame.filter(pl.col(STEP).is_not_null() & pl.any_horizontal(pl.col(measured).is_not_null()))
        norms = self.local_norms(data) if self.local_norms is not None else None
        notes = (reason(CurvesCode.COUNTED_LINES, unit="line"),) if self.numbered else ()
        if (norms is None or not norms.height) and any(mentions(data, words) for words in _NORMS):
            notes = (*notes, reason(CurvesCode.NORMS_UNREAD))
        return LogRows(
            frame=frame,
            local_norms=norms,
            units={column: unit for column, unit in self.units.items() if column in frame.columns},
            loss_is_mean=self.loss_is_mean,
            notes=notes,
        )

    def _present(self, data: bytes) -> dict[str, Key]:
        """The key of each column that the marked lines of ``data`` have."""
        every = [(column, key) for column, keys in self.keys.items() for key in keys]
        end = data.rfind(b"\n")
        frame = scan(data[: end + 1] or data, self.marker, [key for _, key in every])
        found: dict[str, Key] = {}
        for index, (column, key) in enumerate(every):
            if column not in found and frame[str(index)].null_count() < frame.height:
                found[column] = key
        return found
