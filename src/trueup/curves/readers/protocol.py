"""What a reader of training logs does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import polars as pl

from trueup.types.reason import Reason

LOCAL_NORM_SCHEMA: dict[str, type[pl.DataType]] = {
    "step": pl.Int64,
    "index": pl.Int64,
    "name": pl.String,
    "local_norm": pl.Float64,
}
"""``local_norm`` is the L2 norm, also of a log of squares; ``name`` is null where it holds a bare list"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRows:
    """What one file says: rows in the order they were written, not yet one a step."""

    frame: pl.DataFrame
    """some of the columns of :mod:`trueup.curves.columns`, ``step`` always"""
    local_norms: pl.DataFrame | None = None
    units: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[Reason, ...] = ()
    loss_is_mean: bool = False
    """whether a line's loss is the mean over the steps since the line before"""


def mentions(data: bytes, text: bytes) -> bool:
    """Whether the first or last megabyte holds ``text``: what is printed every step is in both."""
    return text in data[: 1 << 20] or text in data[-(1 << 20) :]


class Reader(Protocol):
    """One format of training logs."""

    @property
    def name(self) -> str:
        """In one word."""

    @property
    def title(self) -> str:
        """As reports say it."""

    @property
    def appendable(self) -> bool:
        """Whether a file that grows can be read on from where it ended."""

    def recognises(self, head: bytes, path: Path) -> bool:
        """Whether a file that begins with ``head`` is of this format."""

    def read(self, data: bytes, path: Path, chosen: Mapping[str, str]) -> LogRows:
        """The rows of a whole file, or of the whole lines that were added to one.

        ``chosen``: column -> name in the file, as a person said.
        """
