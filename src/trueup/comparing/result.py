"""What a comparison leaves: its conclusions, and tables on disk or in memory."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueup.store.parquet import frame_from_parquet, lazy_from_parquet
from trueup.store.writer import write_text
from trueup.types.result import ResultDocument
from trueup.types.verdict import Verdict

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

    from trueup.comparing.content import Content


_AGAIN = "run the comparison again"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two runs compared.

    Example:
        >>> comparison.verdict.exit_code                          # doctest: +SKIP
        0
        >>> comparison.frame().filter(status="different").height  # doctest: +SKIP
        0
    """

    summary: ResultDocument
    """the document of result.json (docs/result-format.md): text with the reason beside it; infinities are the
    strings ``"inf"`` and ``"-inf"``"""
    output: Path | None = None
    """the folder that holds result.parquet, precision.parquet and result.json"""
    tables: tuple[pa.Table, ...] = field(default=(), repr=False)
    precision_table: pa.Table | None = field(default=None, repr=False)
    made: Content | None = field(default=None, repr=False)
    """what ``summary`` was made of, where it was not read"""

    @cached_property
    def content(self) -> Content:
        """``summary`` as values."""
        from trueup.comparing.content import content_from_json
        from trueup.comparing.written import AGAIN
        from trueup.store.checked import as_written

        if self.made is not None:
            return self.made
        with as_written("result.json" if self.output is None else self.output / "result.json", remedy=AGAIN):
            return content_from_json(self.summary)

    @property
    def verdict(self) -> Verdict:
        """The conclusion."""
        return self.content.verdict

    @property
    def exit_code(self) -> int:
        """0 agree, 1 differ, 2 undecided."""
        return int(self.summary["verdict"]["exit_code"])

    def frame(self) -> pl.DataFrame:
        """All rows (docs/result-format.md, result.parquet)."""
        if self.output is not None:
            return frame_from_parquet(self.output / "result.parquet", remedy=_AGAIN)
        import pyarrow as pa

        return _frame(pa.concat_tables(self.tables).unify_dictionaries())

    @cached_property
    def records(self) -> pl.LazyFrame:
        """The same, read when needed."""
        if self.output is None:
            return self.frame().lazy()
        return lazy_from_parquet(self.output / "result.parquet", remedy=_AGAIN)

    @cached_property
    def precision(self) -> pl.LazyFrame:
        """Dtypes side by side (docs/result-format.md, precision.parquet)."""
        if self.output is not None:
            return lazy_from_parquet(self.output / "precision.parquet", remedy=_AGAIN)
        return _frame(self.precision_table).lazy()


def open_comparison(folder: Path) -> Comparison:
    """A comparison written before, from its three files alone.

    Raises:
        TraceError: no result.json there, damaged, or not of this version.
    """
    from trueup.comparing.written import read_document

    return Comparison(summary=read_document(folder), output=folder)


def comparison_of(content: Content, **files: Any) -> Comparison:
    """A comparison that was just made; ``files`` are the other fields."""
    from trueup.comparing.written import document

    return Comparison(summary=plain(document(content)), made=content, **files)


def write_document(document: Mapping[str, object], folder: Path) -> None:
    """Write result.json by one rename; on one line, which is ten times faster to write."""
    write_text(folder / "result.json", json.dumps(document, allow_nan=False, separators=(",", ":")))


def plain(value: Any) -> Any:
    """Valid JSON: NaN becomes null, infinities ``"inf"`` and ``"-inf"``, numpy numbers Python's."""
    if value is None or type(value) in (str, int, bool):
        return value
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        value = value.item()
    if isinstance(value, float):
        if math.isnan(value):
            return None
        if math.isinf(value):
            return "inf" if value > 0 else "-inf"
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def _frame(table: pa.Table | None) -> pl.DataFrame:
    import polars as pl

    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame
