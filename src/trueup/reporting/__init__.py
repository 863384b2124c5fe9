"""Reports of a comparison: one screen, one page, one workbook, one page of advice, all drawn from one model.

Each renderer is imported when its format is asked for: a terminal summary does not pay for a workbook.
"""

from __future__ import annotations

import importlib
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from trueup.errors import ConfigError
from trueup.reporting.model import ComparisonLike, Report, report_from

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["FORMATS", "print_summary", "to_json", "write_reports"]

_WRITER = {
    "html": ("trueup.reporting.html", "write_html", "report.html"),
    "xlsx": ("trueup.reporting.xlsx", "write_xlsx", "compare_result_{timestamp}.xlsx"),
    "advisor": ("trueup.reporting.advisor", "write_advisor", "advisor_{timestamp}.txt"),
}
FORMATS = frozenset(_WRITER)
"""What ``write_reports`` can write."""

_HOME = {"print_summary": "trueup.reporting.terminal", "to_json": "trueup.reporting.terminal"}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'trueup.reporting' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def write_reports(
    comparison: Report | ComparisonLike | Path,
    *,
    output: Path,
    formats: set[str],
    console: Console | None = None,
) -> dict[str, Path]:
    """Write the reports asked for into ``output`` and return their paths by format.

    Args:
        comparison: a comparison in memory, or the folder its result files lie in.
        output: folder the files go to; made if missing.
        formats: any of ``html``, ``xlsx``, ``advisor``; empty writes nothing.
        console: where the one-screen summary goes afterwards; None prints nothing.

    Raises:
        ConfigError: a format nobody writes.
        TraceError: the folder holds no result.
    """
    unknown = sorted(formats - FORMATS)
    if unknown:
        raise ConfigError(f"no report format {unknown[0]!r}; there are: {', '.join(sorted(FORMATS))}")
    report = report_from(comparison)
    output.mkdir(parents=True, exist_ok=True)
    timestamp = datetime.now().strftime("%Y%m%d%H%M%S")
    written: dict[str, Path] = {}
    for name in (name for name in _WRITER if name in formats):
        module, function, pattern = _WRITER[name]
        path = output / pattern.format(timestamp=timestamp)
        getattr(importlib.import_module(module), function)(report, path)
        written[name] = path
    if console is not None:
        from trueup.reporting.terminal import print_summary

        print_summary(report, console, reports=written)
    return written
